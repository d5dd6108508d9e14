package podrun

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/berthrun/berth/internal/cli/podyaml"
)

// makeClaim makes the directory of a claim where there is none, and gives it to the
// pod's group. What is in it stays when the pod goes.
func makeClaim(v *podyaml.Volume) error {
	if err := os.MkdirAll(filepath.Dir(v.Path), 0o755); err != nil {
		return err
	}
	err := os.Mkdir(v.Path, 0o777)
	switch {
	case err == nil:
		err = os.Chmod(v.Path, 0o777) // whatever the umask says
	case errors.Is(err, os.ErrExist):
		err = nil
	}
	if err != nil || v.GID == nil {
		return err
	}
	root, err := os.OpenRoot(v.Path)
	if err != nil {
		return err
	}
	defer root.Close()
	if v.OnlyOnMismatch {
		info, err := root.Stat(".")
		if err != nil || belongsTo(info, *v.GID) {
			return err
		}
	}
	return giveToGroup(root, int(*v.GID))
}

func belongsTo(info fs.FileInfo, gid int64) bool {
	stat, ok := info.Sys().(*unixStat)
	return ok && int64(stat.Gid) == gid && info.Mode()&os.ModeSetgid != 0 && info.Mode()&0o070 == 0o070
}

// giveToGroup lets a group read and write all of a tree. No link leads out of it.
func giveToGroup(root *os.Root, gid int) error {
	return fs.WalkDir(root.FS(), ".", func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if err := root.Lchown(path, -1, gid); err != nil {
			return err
		}
		info, err := entry.Info()
		if err != nil || info.Mode()&os.ModeSymlink != 0 {
			return err
		}
		mode := info.Mode()&(os.ModePerm|os.ModeSetuid|os.ModeSetgid|os.ModeSticky) | 0o060
		if info.IsDir() {
			mode |= os.ModeSetgid | 0o010
		}
		return root.Chmod(path, mode)
	})
}

// bindSubPath finds a part of a volume that containers can change, makes it where it is
// missing, and binds it to its target. Links are followed as long as they stay in the
// volume.
func bindSubPath(sub *podyaml.SubPath) error {
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
