package systemd

import (
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/berthrun/berth/internal/require"
)

// TestTreeSees: every change of a file changes the tree.
func TestTreeSees(t *testing.T) {
	require.Root(t)
	for name, change := range map[string]func(dir string) error{
		"content of the same length": func(dir string) error { return os.WriteFile(dir+"/file", []byte("two"), 0) },
		"mode":                       func(dir string) error { return os.Chmod(dir+"/file", 0o600) },
		"setuid":                     func(dir string) error { return os.Chmod(dir+"/file", 0o644|os.ModeSetuid) },
		"owner":                      func(dir string) error { return os.Chown(dir+"/file", 1, 0) },
		"group of a directory":       func(dir string) error { return os.Chown(dir+"/dir", 0, 1) },
		"owner of a link":            func(dir string) error { return os.Lchown(dir+"/link", 1, 0) },
		"target":                     func(dir string) error { return relink(dir+"/link", "dir") },
		"kind":                       func(dir string) error { return relink(dir+"/file", "dir") },
		"new":                        func(dir string) error { return os.Mkdir(dir+"/dir/new", 0o755) },
		"gone":                       func(dir string) error { return os.Remove(dir + "/dir") },
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			for _, err := range []error{
				os.WriteFile(dir+"/file", []byte("one"), 0o644), os.Mkdir(dir+"/dir", 0o755), os.Symlink("file", dir+"/link"),
				os.WriteFile(filepath.Join(dir, "log"), []byte("one"), 0o644),
			} {
				if err != nil {
					t.Fatal(err)
				}
			}
			list := func() []string {
				t.Helper()
				list, err := tree(dir, []string{"/log"})
				if err != nil {
					t.Fatal(err)
				}
				return list
			}
			before := list()
			if err := os.WriteFile(dir+"/log", []byte("more"), 0o644); err != nil {
				t.Fatal(err)
			}
			if now := list(); !slices.Equal(before, now) {
				t.Errorf("what is let out shows: %q, then %q", before, now)
			}
			if err := change(dir); err != nil {
				t.Fatal(err)
			}
			if now := list(); slices.Equal(before, now) {
				t.Errorf("the change does not show in %q", now)
			}
		})
	}
}

func relink(at, target string) error {
	if err := os.Remove(at); err != nil {
		return err
	}
	return os.Symlink(target, at)
}
