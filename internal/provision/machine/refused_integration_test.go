//go:build integration

package machine

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/provision"
	"github.com/berthrun/berth/internal/require"
)

// TestRefusalIsExplained: the error of a refused operation names the cause.
func TestRefusalIsExplained(t *testing.T) {
	require.Root(t)
	base := t.TempDir()
	f := newFiles("/", nil, "")
	attr := provision.Attr{Mode: 0o640}
	write := func(p string) error { return f.Write(p, strings.NewReader("new"), attr) }
	for _, c := range []struct {
		name   string
		spoil  func(t *testing.T, dir string)
		change func(dir string) error
		want   string // DIR is the directory
	}{
		{"immutable file", flag("/file", unix.STATX_ATTR_IMMUTABLE), func(dir string) error { return write(dir + "/file") }, "DIR/file is immutable"},
		{"immutable directory", flag("", unix.STATX_ATTR_IMMUTABLE), func(dir string) error { return write(dir + "/new") }, "DIR is immutable"},
		{"append-only file", flag("/file", unix.STATX_ATTR_APPEND), func(dir string) error { return f.Remove(dir + "/file") }, "DIR/file is append-only"},
		{"append-only directory", flag("", unix.STATX_ATTR_APPEND), func(dir string) error { return f.Remove(dir + "/file") }, "DIR is append-only"},
		{"owner", flag("/file", unix.STATX_ATTR_IMMUTABLE), func(dir string) error { return f.SetAttr(dir+"/file", attr) }, "DIR/file is immutable"},
		{"tree", flag("/sub", unix.STATX_ATTR_IMMUTABLE), func(dir string) error { return f.RemoveAll(dir) }, "DIR/sub is immutable"},
		{"link", flag("", unix.STATX_ATTR_IMMUTABLE), func(dir string) error { return f.Link("x", dir+"/link", attr) }, "DIR is immutable"},
		{"directory", flag("", unix.STATX_ATTR_IMMUTABLE), func(dir string) error { return f.Mkdir(dir+"/more", attr) }, "DIR is immutable"},
		{"append", flag("/file", unix.STATX_ATTR_IMMUTABLE), func(dir string) error { return f.Append(dir+"/file", []byte("x"), attr) }, "DIR/file is immutable"},
		{"read-only mount", readOnly, func(dir string) error { return write(dir + "/file") }, "lies on DIR, which is mounted read-only"},
		{"owner on a read-only mount", readOnly, func(dir string) error { return f.SetAttr(dir+"/file", attr) }, "DIR/file lies on DIR, which is mounted read-only"},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := filepath.Join(base, strings.ReplaceAll(c.name, " ", "-"))
			if err := errors.Join(os.MkdirAll(dir+"/sub", 0o755), os.WriteFile(dir+"/file", []byte("old"), 0o600), os.WriteFile(dir+"/sub/x", nil, 0o600)); err != nil {
				t.Fatal(err)
			}
			c.spoil(t, dir)
			err := c.change(dir)
			if !errors.Is(err, errs.State) {
				t.Fatalf("the change returned %v, want an error of the machine's state", err)
			}
			if want := strings.ReplaceAll(c.want, "DIR", dir); !strings.Contains(err.Error(), want) {
				t.Errorf("%v\ndoes not say %q", err, want)
			}
		})
	}
}

// flag sets a flag of the file at name, until the test ends.
func flag(name string, bit int) func(*testing.T, string) {
	return func(t *testing.T, dir string) {
		set := func(change func(int) int) error {
			at, err := os.Open(dir + name)
			if err != nil {
				return err
			}
			defer at.Close()
			now, err := unix.IoctlGetInt(int(at.Fd()), unix.FS_IOC_GETFLAGS)
			if err != nil {
				return err
			}
			return unix.IoctlSetPointerInt(int(at.Fd()), unix.FS_IOC_SETFLAGS, change(now))
		}
		t.Cleanup(func() {
			if err := set(func(flags int) int { return flags &^ bit }); err != nil {
				t.Error(err)
			}
		})
		if err := set(func(flags int) int { return flags | bit }); err != nil {
			t.Fatalf("the file system has no flags: %v", err)
		}
	}
}

// readOnly mounts a directory on itself read-only, until the test ends.
func readOnly(t *testing.T, dir string) {
	if err := unix.Mount(dir, dir, "", unix.MS_BIND, ""); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	if err := unix.Mount("", dir, "", unix.MS_REMOUNT|unix.MS_BIND|unix.MS_RDONLY, ""); err != nil {
		t.Fatal(err)
	}
}
