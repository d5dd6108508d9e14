//go:build integration

package sysmount

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/berthrun/berth/internal/require"
)

// TestBindRoot: what the host's mount forbids does not count, with mount_setattr and without.
func TestBindRoot(t *testing.T) {
	require.Root(t)
	source := t.TempDir()
	if err := unix.Mount("tmpfs", source, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, ""); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := Detach(source); err != nil {
			t.Error(err)
		}
	})
	root := filepath.Join(source, "root")
	if err := os.Mkdir(root, 0o755); err != nil {
		t.Fatal(err)
	}
	for name, bind := range map[string]func(target string, readOnly bool) error{
		"new": func(target string, readOnly bool) error { return BindRoot(root, target, "", readOnly) },
		"old": func(target string, readOnly bool) error { return bindRootBefore(root, target, readOnly) },
	} {
		for _, readOnly := range []bool{false, true} {
			target := t.TempDir()
			if err := bind(target, readOnly); err != nil {
				t.Fatal(err)
			}
			var st unix.Statfs_t
			if err := unix.Statfs(target, &st); err != nil || st.Flags&(unix.ST_NOSUID|unix.ST_NODEV|unix.ST_NOEXEC) != 0 || (st.Flags&unix.ST_RDONLY != 0) != readOnly {
				t.Errorf("%s, read-only %v: flags %x, %v", name, readOnly, st.Flags, err)
			}
			if err := os.WriteFile(filepath.Join(target, "x"), nil, 0o600); readOnly != errors.Is(err, unix.EROFS) {
				t.Errorf("%s, read-only %v: %v", name, readOnly, err)
			}
			if err := Detach(target); err != nil {
				t.Error(err)
			}
		}
	}
}
