//go:build integration

package sysns_test

import (
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/berthrun/berth/internal/require"
	"github.com/berthrun/berth/internal/sys/sysns"
)

// TestWritableSysfs: a read-only mount of sysfs in a network namespace makes the next one read-only, but
// not after WritableSysfs, and stays read-only itself.
func TestWritableSysfs(t *testing.T) {
	require.Root(t)
	pin := filepath.Join(t.TempDir(), "ns")
	if err := sysns.NewNetNS(pin); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := sysns.RemoveNetNS(pin); err != nil {
			t.Error(err)
		}
	})
	mounted := func(flags uintptr) string {
		dir := t.TempDir()
		err := sysns.InNetNS(pin, func() error { return unix.Mount("sysfs", dir, "sysfs", flags, "") })
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
				t.Error(err)
			}
		})
		return dir
	}
	isReadOnly := func(dir string) bool {
		var st unix.Statfs_t
		if err := unix.Statfs(dir, &st); err != nil {
			t.Fatal(&os.PathError{Op: "statfs", Path: dir, Err: err})
		}
		return st.Flags&unix.ST_RDONLY != 0
	}
	first := mounted(unix.MS_RDONLY)
	mounted(0) // read-only, too
	if err := sysns.InNetNS(pin, sysns.WritableSysfs); err != nil {
		t.Fatal(err)
	}
	if third := mounted(0); isReadOnly(third) || !isReadOnly(first) {
		t.Errorf("a later mount is read-only: %v; the first one: %v", isReadOnly(third), isReadOnly(first))
	}
}
