package volumes

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/berthrun/berth/internal/cli/podyaml"
	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/sys/sysmount"
)

// BindSubPath finds a part of a volume that containers can change, makes it where it is
// missing, and binds it to its target. Links are followed as long as they stay in the
// volume.
func BindSubPath(sub *podyaml.SubPath) error {
	fail := func(err error) error {
		return fmt.Errorf("cannot mount sub path %q of %s: %w", sub.Path, sub.Volume, err)
	}
	root, err := os.OpenRoot(sub.Volume)
	if err != nil {
		return fail(err)
	}
	defer root.Close()
	// Not O_PATH: that would open a link itself. Not blocking, for named pipes.
	f, err := root.OpenFile(sub.Path, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if errors.Is(err, os.ErrNotExist) {
		if err = makeSubPath(root, sub.Path); err == nil {
			f, err = root.OpenFile(sub.Path, os.O_RDONLY|unix.O_NONBLOCK, 0)
		}
	}
	if err != nil {
		return fail(err)
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return fail(err)
	}
	if err := bindTo(f, info.IsDir(), sub.Target); err != nil {
		return fail(err)
	}
	return nil
}

// makeSubPath makes the directories of a path, as open as the volume's own.
func makeSubPath(root *os.Root, path string) error {
	info, err := root.Stat(".")
	if err != nil {
		return err
	}
	if err := root.MkdirAll(path, info.Mode().Perm()); err != nil {
		return err
	}
	stat, ok := info.Sys().(*unixStat)
	for at := filepath.Clean(path); at != "."; at = filepath.Dir(at) {
		if ok {
			if err := root.Chown(at, -1, int(stat.Gid)); err != nil {
				return err
			}
		}
		if err := root.Chmod(at, info.Mode()&(os.ModePerm|os.ModeSetgid)); err != nil {
			return err
		}
	}
	return nil
}

// bindTo makes a target of the right kind and binds an open file to it.
func bindTo(f *os.File, isDir bool, target string) error {
	parent := target
	if !isDir {
		parent = filepath.Dir(target)
	}
	if err := os.MkdirAll(parent, 0o755); err != nil {
		return err
	}
	if !isDir {
		if err := errs.IgnoreNotExist(os.Remove(target)); err != nil {
			return err
		}
		if err := os.WriteFile(target, nil, 0o600); err != nil {
			return err
		}
	}
	return sysmount.BindFile(f, target)
}
