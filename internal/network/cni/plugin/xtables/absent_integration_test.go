//go:build integration

package xtables_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/google/nftables"

	"github.com/berthrun/berth/internal/network/cni/plugin/xtables"
	"github.com/berthrun/berth/internal/require"
	"github.com/berthrun/berth/internal/sys/sysns"
)

// TestIsAbsent: a program that fails does not decide whether there is a table. The kernel does, for each family.
func TestIsAbsent(t *testing.T) {
	require.Root(t)
	dir, netns := t.TempDir(), filepath.Join(t.TempDir(), "netns")
	for _, name := range []string{"iptables", "ip6tables"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte("#!/bin/sh\nexit 1\n"), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := sysns.NewNetNS(netns); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := sysns.RemoveNetNS(netns); err != nil {
			t.Error(err)
		}
	})
	look := func(path string, v6, want bool) {
		t.Helper()
		t.Setenv("PATH", path)
		if _, err := xtables.Read(t.Context(), nil, v6, "nat"); err == nil || xtables.IsAbsent(err) != want {
			t.Errorf("%v: absent %t, want %t", err, xtables.IsAbsent(err), want)
		}
	}
	err := sysns.InNetNS(netns, func() error {
		look(dir, false, true)
		conn, err := nftables.New()
		if err != nil {
			return err
		}
		conn.AddTable(&nftables.Table{Name: "nat", Family: nftables.TableFamilyIPv4})
		if err := conn.Flush(); err != nil {
			return err
		}
		look(dir, false, false)
		look(dir, true, true)
		look(t.TempDir(), false, true) // without the program
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}
