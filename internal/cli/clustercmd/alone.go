package clustercmd

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berthrun/berth/internal/cluster/plan"
	"github.com/berthrun/berth/internal/cluster/provider"
	"github.com/berthrun/berth/internal/errs"
)

// alone makes sure that no other berth of this user makes or changes the cluster meanwhile: each
// would take what the other has made so far for something that is left.
func alone(engine provider.Provider, name string) (release func(), err error) {
	return lockOf(engine, name, unix.LOCK_EX)
}

// beside is alone, for what others may do at the same time, too.
func beside(engine provider.Provider, name string) (release func(), err error) {
	return lockOf(engine, name, unix.LOCK_SH)
}

// lockTime is how long a cluster that is made waits for a registry that another one starts.
const lockTime = 2 * time.Minute

// registryAlone waits until nobody else changes the registry.
func registryAlone(ctx context.Context, engine provider.Provider) (release func(), err error) {
	ctx, cancel := context.WithTimeout(ctx, lockTime)
	defer cancel()
	for {
		release, err := alone(engine, plan.RegistryGroup)
		if !errors.Is(err, errs.State) {
			return release, err
		}
		select {
		case <-ctx.Done():
			return nil, err
		case <-time.After(100 * time.Millisecond):
		}
	}
}

func lockOf(engine provider.Provider, name string, how int) (release func(), err error) {
	// Engines of one name may be several: by their roots, and by what tells their tools
	// where they are.
	which := sha256.Sum256([]byte(engine.Name() + "\x00" + engine.Facts().Root + "\x00" + os.Getenv("DOCKER_HOST") + "\x00" + os.Getenv("CONTAINER_HOST") + "\x00" + name))
	what := "the cluster " + name
	if name == plan.RegistryGroup {
		what = "the registry"
	}
	file := ""
	dir, err := lockDir(os.Getuid(), "/run", os.Getenv("HOME"))
	if err == nil {
		file = filepath.Join(dir, fmt.Sprintf("%x", which))
		release, err = lockFile(file, how)
	}
	switch {
	case err == nil:
		return release, nil
	case errors.Is(err, unix.EWOULDBLOCK):
		return nil, fmt.Errorf("another berth makes or changes %s at this moment; wait until it has ended: %w", what, errs.State)
	}
	return nil, fmt.Errorf("cannot lock %s: %w", what, err)
}

// lockDir is the directory of a user's locks, which nobody else can write to: who may put a file there
// could keep every command from running. It is made where it is not there.
func lockDir(uid int, run, home string) (string, error) {
	dir := filepath.Join(run, "berth-cluster")
	if uid != 0 {
		own := filepath.Join(run, "user", strconv.Itoa(uid))
		switch info, err := os.Lstat(own); {
		case err == nil && ours(info, uid):
			dir = filepath.Join(own, "berth-cluster")
		case home != "":
			dir = filepath.Join(home, ".cache", "berth", "clusters")
		default:
			return "", fmt.Errorf("there is neither %s nor HOME, where locks are kept: %w", own, errs.State)
		}
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", err
	}
	info, err := os.Lstat(dir)
	if err != nil {
		return "", err
	}
	if !ours(info, uid) {
		return "", fmt.Errorf("%s is no directory that only its owner, user %d, can write to; remove it: %w", dir, uid, errs.State)
	}
	return dir, nil
}

// ours reports whether a file is a directory of a user that nobody else can write to.
func ours(info fs.FileInfo, uid int) bool {
	stat, ok := info.Sys().(*syscall.Stat_t)
	return ok && info.IsDir() && int(stat.Uid) == uid && info.Mode().Perm()&0o022 == 0
}

// lockFile locks a file, which goes with its last holder. The lock goes with the process, however that
// ends. It is EWOULDBLOCK that somebody else has it.
func lockFile(name string, how int) (release func(), err error) {
	for {
		file, err := os.OpenFile(name, os.O_CREATE|os.O_RDWR|unix.O_NOFOLLOW, 0o600)
		if err != nil {
			return nil, err
		}
		err = unix.Flock(int(file.Fd()), how|unix.LOCK_NB)
		if err == nil && isAt(file, name) {
			return func() {
				// Whoever has it with others leaves it to them.
				if unix.Flock(int(file.Fd()), unix.LOCK_EX|unix.LOCK_NB) == nil && isAt(file, name) {
					_ = os.Remove(name)
				}
				_ = file.Close()
			}, nil
		}
		file.Close()
		if err != nil && !errors.Is(err, unix.EINTR) {
			return nil, err
		}
	}
}

// isAt reports whether a file still has its name.
func isAt(file *os.File, name string) bool {
	held, err := file.Stat()
	if err != nil {
		return false
	}
	now, err := os.Lstat(name)
	return err == nil && os.SameFile(held, now)
}
