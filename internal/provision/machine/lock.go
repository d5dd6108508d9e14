package machine

import (
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/opencontainers/go-digest"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/sys/sysfd"
)

// Lock keeps others from changing the machine below root at the same time. When
// somebody does, the error wraps errs.Unavailable and says who. Remove the lock.
func Lock(root string) (*sysfd.Lock, error) {
	path, err := lockFile(root)
	if err != nil {
		return nil, err
	}
	lock, holder, err := sysfd.TryLockTransient(path)
	if err != nil {
		return nil, err
	}
	if lock == nil {
		return nil, fmt.Errorf("%s: %w", changedBy(path, holder), errs.Unavailable)
	}
	return lock, nil
}

// Busy names the process that changes the machine below root now; it is empty when there is none.
func Busy(root string) (string, error) {
	path, err := lockFile(root)
	if err != nil {
		return "", err
	}
	holder, err := sysfd.LockHolder(path)
	if err != nil || holder == 0 {
		return "", err
	}
	return changedBy(path, holder), nil
}

// changedBy says who, and since when: the file is made with the lock.
func changedBy(path string, pid int) string {
	who := "the node is being changed by " + processName(pid)
	if info, err := os.Stat(path); err == nil {
		who += " since " + info.ModTime().Local().Format(time.DateTime)
	}
	return who
}

// lockFile is on this machine, not below root: images are made from root.
func lockFile(root string) (string, error) {
	if root == "/" {
		return "/run/berth-node.lock", nil
	}
	real, err := filepath.EvalSymlinks(root)
	if err != nil {
		return "", fmt.Errorf("cannot lock %s: %w", root, err)
	}
	return filepath.Join("/run", "berth-node-"+digest.FromString(real).Encoded()[:12]+".lock"), nil
}
