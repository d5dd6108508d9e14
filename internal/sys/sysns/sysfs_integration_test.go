//go:build integration

package sysns

import (
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/berthrun/berth/internal/require"
)

// TestWritableSysfs: a read-only mount of sysfs in a network namespace makes the next one read-only, but
// not after WritableSysfs, and stays read-only itself.
func TestWritableSysfs(t *testing.T) {
	require.Root(t)
	for name, writable := range map[string]func() error{"this kernel": WritableSysfs, "an old kernel": remountSysfs} {
		t.Run(name, func(t *testing.T) { sysfsBecomesWritable(t, writable) })
	}
}

func sysfsBecomesWritable(t *testing.T, writable func() error) {
	pin := filepath.Join(t.TempDir(), "ns")
	if err := NewNetNS(pin); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := RemoveNetNS(pin); err != nil {
			t.Error(err)
		}
	})
	mounted := func(flags uintptr) string {
		dir := t.TempDir()
		err := InNetNS(pin, func() error { return unix.Mount("sysfs", dir, "sysfs", flags, "") })
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
	if err := InNetNS(pin, writable); err != nil {
		t.Fatal(err)
	}
	if third := mounted(0); isReadOnly(third) || !isReadOnly(first) {
		t.Errorf("a later mount is read-only: %v; the first one: %v", isReadOnly(third), isReadOnly(first))
	}
}
