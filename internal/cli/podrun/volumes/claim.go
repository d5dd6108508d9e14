package volumes

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"

	"github.com/berthrun/berth/internal/cli/podyaml"
)

// unixStat is what the kernel says of a file.
type unixStat = syscall.Stat_t

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
	return chownTree(root, int(*v.GID))
}

func belongsTo(info fs.FileInfo, gid int64) bool {
	stat, ok := info.Sys().(*unixStat)
	return ok && int64(stat.Gid) == gid && info.Mode()&os.ModeSetgid != 0 && info.Mode()&0o070 == 0o070
}

// chownTree lets a group read and write all of a tree. No link leads out of it.
func chownTree(root *os.Root, gid int) error {
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
