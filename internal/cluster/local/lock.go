package local

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

// Lock locks a cluster against other processes of this user that create or change it: each would
// take the other's unfinished objects for leftovers. The error is errs.State when the cluster is
// locked.
func Lock(engine provider.Provider, name string) (release func(), err error) {
	return lockOf(engine, name, unix.LOCK_EX)
}

// LockShared is Lock for an operation that several processes may do at the same time.
func LockShared(engine provider.Provider, name string) (release func(), err error) {
	return lockOf(engine, name, unix.LOCK_SH)
}

// lockTimeout is how long a new cluster waits for the registry that another one starts, and for what
// another one removes.
const lockTimeout = 2 * time.Minute

// creation is the name of the lock that says whether clusters are being created. No cluster can have
// this name.
const creation = "_creation"

// lockRegistry locks the registry, and waits while another process has the lock.
func lockRegistry(ctx context.Context, engine provider.Provider) (release func(), err error) {
	return await(ctx, func() (func(), error) { return Lock(engine, plan.RegistryGroup) })
}

// shareCreation is for a process that creates a cluster, at the same time as others do. It waits
// while another process has the lock of ownCreation.
func shareCreation(ctx context.Context, engine provider.Provider) (release func(), err error) {
	return await(ctx, func() (func(), error) { return LockShared(engine, creation) })
}

// ownCreation locks out processes that create a cluster. The error is errs.State when there are any.
func ownCreation(engine provider.Provider) (release func(), err error) {
	return Lock(engine, creation)
}

// await takes a lock when no other process has it any more.
func await(ctx context.Context, lock func() (release func(), err error)) (release func(), err error) {
	ctx, cancel := context.WithTimeout(ctx, lockTimeout)
	defer cancel()
	for {
		release, err := lock()
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
	// There may be several providers of one name, with different roots or addresses.
	which := sha256.Sum256([]byte(engine.Name() + "\x00" + engine.Facts().Root + "\x00" + os.Getenv("DOCKER_HOST") + "\x00" + os.Getenv("CONTAINER_HOST") + "\x00" + name))
	what := "the cluster " + name
	switch name {
	case plan.RegistryGroup:
		what = "the registry"
	case creation:
		what = "what clusters share"
	}
	release, err = lockUser(os.Getuid(), "/run", os.Getenv("HOME"), fmt.Sprintf("%x", which), how)
	switch {
	case err == nil:
		return release, nil
	case errors.Is(err, unix.EWOULDBLOCK):
		return nil, fmt.Errorf("another berth command is changing %s; wait until it has ended: %w", what, errs.State)
	}
	return nil, fmt.Errorf("cannot lock %s: %w", what, err)
}

// lockTries bounds how often a lock is tried while others remove the directory.
const lockTries = 100

// lockUser locks a file in the directory of a user's locks. The directory goes with the last lock in it.
func lockUser(uid int, run, home, file string, how int) (release func(), err error) {
	for range lockTries {
		var dir string
		var unlock func()
		if dir, err = lockDir(uid, run, home); err == nil {
			unlock, err = lockFile(filepath.Join(dir, file), how)
		}
		if err == nil {
			return func() {
				unlock()
				_ = os.Remove(dir) // other locks keep it
			}, nil
		}
		if !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, fs.ErrExist) {
			break
		}
	}
	return nil, err
}

// lockDir creates and returns the directory of a user's locks. No other user may write to it: a
// file there could block every command.
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
			return "", fmt.Errorf("cannot find a directory for locks: neither %s nor $HOME exists: %w", own, errs.State)
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
		return "", fmt.Errorf("%s must be a directory that only user %d can write to; remove it: %w", dir, uid, errs.State)
	}
	return dir, nil
}

// ours reports whether a file is a directory of a user that no other user can write to.
func ours(info fs.FileInfo, uid int) bool {
	stat, ok := info.Sys().(*syscall.Stat_t)
	return ok && info.IsDir() && int(stat.Uid) == uid && info.Mode().Perm()&0o022 == 0
}

// lockFile locks a file, which its last holder removes. The kernel releases the lock when the
// process ends. The error is EWOULDBLOCK if another process has the lock.
func lockFile(name string, how int) (release func(), err error) {
	for {
		file, err := os.OpenFile(name, os.O_CREATE|os.O_RDWR|unix.O_NOFOLLOW, 0o600)
		if err != nil {
			return nil, err
		}
		err = unix.Flock(int(file.Fd()), how|unix.LOCK_NB)
		if err == nil && isAt(file, name) {
			return func() {
				// Other holders of a shared lock keep the file.
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
