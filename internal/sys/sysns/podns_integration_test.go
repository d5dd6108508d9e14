//go:build integration

package sysns_test

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/require"
	"github.com/berthrun/berth/internal/sys/sysns"
)

func TestPodNamespacesArePinnedAndRemoved(t *testing.T) {
	require.Root(t)
	dir := t.TempDir()
	ipc, uts := filepath.Join(dir, "ipc"), filepath.Join(dir, "uts")
	host, err := os.Hostname()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		for _, pin := range []string{ipc, uts} {
			for range 2 {
				if err := sysns.Unpin(pin); err != nil {
					t.Error(err)
				}
			}
			if _, err := os.Lstat(pin); !errors.Is(err, os.ErrNotExist) {
				t.Errorf("%s is left: %v", pin, err)
			}
		}
	})
	err = sysns.PodNamespaces{
		IPC: ipc, UTS: uts, Hostname: "made-by-test",
		Sysctls: map[string]string{"kernel/shmmni": "1234", "fs/mqueue/msg_max": "77"},
	}.Make()
	if err != nil {
		t.Fatal(err)
	}
	if now, err := os.Hostname(); err != nil || now != host {
		t.Errorf("the host's name is %q, %v; it was %q", now, err, host)
	}
	for pin, kind := range map[string]int{ipc: unix.CLONE_NEWIPC, uts: unix.CLONE_NEWUTS} {
		f, err := os.Open(pin)
		if err != nil {
			t.Fatal(err)
		}
		got, err := unix.IoctlRetInt(int(f.Fd()), unix.NS_GET_NSTYPE)
		if err != nil || got != kind {
			t.Errorf("%s: kind %x, %v; want %x", pin, got, err, kind)
		}
		f.Close()
	}
	for what, sysctl := range map[string]string{
		"that the kernel does not have": "kernel/no-such", "that is a directory": "kernel/random", "that nobody writes": "kernel/version",
	} {
		if err := sysns.WriteSysctls(map[string]string{sysctl: "1"}); !errors.Is(err, errs.Invalid) {
			t.Errorf("a sysctl %s: %v", what, err)
		}
	}
}

func BenchmarkPodNamespaces(b *testing.B) {
	require.Root(b)
	dir := b.TempDir()
	ns := sysns.PodNamespaces{IPC: filepath.Join(dir, "ipc"), UTS: filepath.Join(dir, "uts"), Hostname: "x"}
	for b.Loop() {
		if err := errors.Join(ns.Make(), sysns.Unpin(ns.IPC), sysns.Unpin(ns.UTS)); err != nil {
			b.Fatal(err)
		}
	}
}
