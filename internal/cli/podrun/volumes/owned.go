package volumes

import (
	"fmt"
	"os"
	"path/filepath"
	"syscall"
)

// mark is the file by which a directory is known as one that `berth pod run` made. A pod cannot write
// to the directory itself.
const mark = ".berth-pod-run"

// MakeOwned makes a directory that IsOwned recognizes.
func MakeOwned(dir string, mode os.FileMode) error {
	if err := os.MkdirAll(dir, mode); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, mark), nil, 0o600)
}

// IsOwned reports whether MakeOwned has made a directory, as the user that runs this.
func IsOwned(dir string) (bool, error) {
	info, err := os.Lstat(dir)
	if err == nil && info.IsDir() {
		info, err = os.Lstat(filepath.Join(dir, mark))
	}
	if os.IsNotExist(err) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("cannot check the pod's directory: %w", err)
	}
	stat, ok := info.Sys().(*syscall.Stat_t)
	return ok && info.Mode().IsRegular() && int(stat.Uid) == os.Geteuid(), nil
}
