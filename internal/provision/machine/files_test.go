package machine

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"testing"

	"github.com/containernetworking/cni/libcni"
	"golang.org/x/sync/errgroup"

	"github.com/berthrun/berth/internal/provision"
)

// during calls f once, when the first byte is read.
type during struct{ f func() }

func (d *during) Read([]byte) (int, error) {
	if d.f != nil {
		d.f()
	}
	d.f = nil
	return 0, io.EOF
}

// TestTemporaryFileIsNoConfiguration: programs that read a directory do not read the file that a killed Write leaves there.
func TestTemporaryFileIsNoConfiguration(t *testing.T) {
	root := t.TempDir()
	f := newFiles(root, nil, "")
	for p, read := range map[string]func(dir string) ([]string, error){
		"/etc/cni/net.d/10-berth-kubenet.conflist": func(dir string) ([]string, error) {
			return libcni.ConfFiles(dir, []string{".conf", ".conflist", ".json"})
		},
		"/etc/containers/registries.conf.d/50-berth-node.conf": func(dir string) ([]string, error) { return filepath.Glob(dir + "/.*.conf") },
		"/etc/crio/crio.conf.d/10-berth-node.conf":             func(dir string) ([]string, error) { return filepath.Glob(dir + "/.*") },
	} {
		dir := filepath.Join(root, filepath.Dir(p))
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		written := false
		err := f.Write(p, &during{func() {
			written = true
			if names, err := read(dir); err != nil || len(names) > 0 {
				t.Errorf("%s: %v would be read, %v", p, names, err)
			}
		}}, provision.Attr{Mode: 0o644, UID: os.Getuid(), GID: os.Getgid()})
		if err != nil || !written {
			t.Errorf("%s: %v", p, err)
		}
		left := temp(filepath.Join(root, p), p)
		if _, err := os.Lstat(left); !os.IsNotExist(err) {
			t.Errorf("%s is there after the write: %v", left, err)
		}
		for _, left := range []string{left, filepath.Join(dir, ".berth-node."+filepath.Base(p))} { // the second is an earlier version's
			if err := os.WriteFile(left, nil, 0o600); err != nil {
				t.Fatal(err)
			}
			if err := f.Tidy(p); err != nil {
				t.Error(err)
			}
			if _, err := os.Lstat(left); !os.IsNotExist(err) {
				t.Errorf("%s stays: %v", left, err)
			}
		}
	}
}

// TestDirectoryIsComplete: a process that is killed while it creates a directory leaves none with another mode.
func TestDirectoryIsComplete(t *testing.T) {
	root := t.TempDir()
	f := newFiles(root, nil, "")
	attr := provision.Attr{Mode: 0o755, UID: os.Getuid(), GID: os.Getgid()}
	if err := os.Mkdir(temp(root+"/dir", "/dir"), 0o700); err != nil { // by the one that was killed
		t.Fatal(err)
	}
	if err := f.Mkdir("/dir", attr); err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(root + "/dir"); err != nil || info.Mode().Perm() != attr.Mode {
		t.Errorf("it is %v, %v", info, err)
	}
	if names, err := f.ReadDir("/"); err != nil || len(names) != 1 {
		t.Errorf("there are %v, %v", names, err)
	}
}

// TestDirectoryFromMany: assets are fetched beside each other, and each fetch creates the directory of all of them.
func TestDirectoryFromMany(t *testing.T) {
	root := t.TempDir()
	f := newFiles(root, nil, "")
	attr := provision.Attr{Mode: 0o755, UID: os.Getuid(), GID: os.Getgid()}
	for i := range 200 {
		var group errgroup.Group
		for range 4 {
			group.Go(func() error { return f.Mkdir(fmt.Sprintf("/dir-%d", i), attr) })
		}
		if err := group.Wait(); err != nil {
			t.Fatal(err)
		}
	}
}

// TestTidyBesideMkdir: an apply tidies the path of a directory that it holds while another task creates that directory for a
// file of its own.
func TestTidyBesideMkdir(t *testing.T) {
	root := t.TempDir()
	f := newFiles(root, nil, "")
	attr := provision.Attr{Mode: 0o755, UID: os.Getuid(), GID: os.Getgid()}
	for i := range 50 {
		dir := fmt.Sprintf("/dir-%d", i)
		var group errgroup.Group
		made := make(chan struct{})
		group.Go(func() error {
			for {
				select {
				case <-made:
					return nil
				default:
				}
				if err := f.Tidy(dir); err != nil {
					return err
				}
			}
		})
		group.Go(func() error {
			defer close(made)
			return f.Mkdir(dir, attr)
		})
		if err := group.Wait(); err != nil {
			t.Fatal(err)
		}
	}
}
