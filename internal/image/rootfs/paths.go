package rootfs

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
)

// Paths are the directories of root filesystems.
type Paths struct {
	// Root is the directory of the image store on disk, State its directory on tmpfs.
	Root, State string
}

// ContainersDir has a directory for each root filesystem.
func (p Paths) ContainersDir() string { return filepath.Join(p.Root, "containers") }

// PoolDir has directories that are prepared for root filesystems.
func (p Paths) PoolDir() string { return filepath.Join(p.Root, "pool") }

// CopiesDir has copies of images that root filesystems share; see copy.go.
func (p Paths) CopiesDir() string { return filepath.Join(p.Root, "copies") }

// MountsDir has the mounts, but for those that user namespaces reach.
func (p Paths) MountsDir() string { return filepath.Join(p.State, "rootfs") }

// MappedDir has the mounts that user namespaces reach.
func (p Paths) MappedDir() string { return filepath.Join(p.State, "mapped") }

func (p Paths) containerDir(key string) string { return filepath.Join(p.ContainersDir(), key) }
func (p Paths) sharedDir(name string) string   { return filepath.Join(p.CopiesDir(), name) }
func (p Paths) mountPath(key string) string    { return filepath.Join(p.MountsDir(), key) }
func (p Paths) mappedPath(key string) string   { return filepath.Join(p.MappedDir(), key, mappedRootfs) }

// Keys returns the keys of all root filesystems, and of those of which a part is left, sorted.
func (p Paths) Keys() ([]string, error) {
	var keys []string
	for _, dir := range []string{p.ContainersDir(), p.MountsDir(), p.MappedDir()} {
		entries, err := os.ReadDir(dir)
		if err != nil {
			return nil, fmt.Errorf("cannot list root filesystems: %w", err)
		}
		for _, entry := range entries {
			keys = append(keys, entry.Name())
		}
	}
	slices.Sort(keys)
	return slices.Compact(keys), nil
}

// MakeDirs makes the directories, whatever the umask. Nobody but root may enter those on disk:
// a set-user-ID program of an image must be out of reach of users.
func (p Paths) MakeDirs() error {
	for _, dir := range []string{p.ContainersDir(), p.PoolDir(), p.CopiesDir(), p.MountsDir()} {
		if err := makeDir(dir, 0o700); err != nil {
			return err
		}
	}
	// The root of a user namespace passes through these.
	for _, dir := range []string{p.State, p.MappedDir()} {
		if err := makeDir(dir, 0o711); err != nil {
			return err
		}
	}
	return nil
}

func makeDir(dir string, mode os.FileMode) error {
	if err := os.MkdirAll(dir, mode); err != nil {
		return err
	}
	return os.Chmod(dir, mode)
}
