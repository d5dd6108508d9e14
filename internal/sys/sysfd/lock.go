package sysfd

import (
	"errors"
	"fmt"
	"io"
	"os"

	"golang.org/x/sys/unix"
)

// Lock is a POSIX record lock on a whole file. It belongs to the process: it ends
// with it, survives execve when the descriptor does, and is not inherited by
// children. The kernel also drops it when the process closes ANY descriptor of
// that file, so open a lock file once, through TryLock, and never elsewhere in the
// process (LockHolder included).
type Lock struct{ file *os.File }

// TryLock takes the lock at path, which it creates, without waiting. When another
// process holds it, lock is nil and holder its pid (-1 when it is in another pid
// namespace and has no number here).
func TryLock(path string) (lock *Lock, holder int, err error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return nil, 0, fmt.Errorf("cannot open a lock file: %w", err)
	}
	lock, holder, err = LockFile(f)
	if lock == nil {
		f.Close()
	}
	return lock, holder, err
}

// TryLockTransient is TryLock for a lock file that is removed with its lock: release it by
// Remove. A file that another process removed between open and lock locks nothing;
// TryLockTransient opens it again.
func TryLockTransient(path string) (lock *Lock, holder int, err error) {
	for {
		lock, holder, err = TryLock(path)
		if lock == nil {
			return nil, holder, err
		}
		locked, err := lock.file.Stat()
		if err == nil {
			var there os.FileInfo
			if there, err = os.Stat(path); err == nil && os.SameFile(locked, there) {
				return lock, 0, nil
			}
		}
		lock.Close()
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			return nil, 0, fmt.Errorf("cannot lock %s: %w", path, err)
		}
	}
}

// Remove removes the lock's file and releases the lock. It is for files that all processes
// lock by TryLockTransient.
func (l *Lock) Remove() error { return errors.Join(os.Remove(l.file.Name()), l.file.Close()) }

// LockFile is TryLock on an open file, which the lock takes over when it is
// got. On a file that came through execve with its lock it only confirms it.
func LockFile(f *os.File) (lock *Lock, holder int, err error) {
	for {
		err := setLock(f)
		if err == nil {
			return &Lock{f}, 0, nil
		}
		if !errors.Is(err, unix.EAGAIN) && !errors.Is(err, unix.EACCES) {
			return nil, 0, fmt.Errorf("cannot lock %s: %w", f.Name(), err)
		}
		// The holder may end between the two calls: then try again.
		if holder, err = getLock(f); err != nil || holder != 0 {
			return nil, holder, err
		}
	}
}

// LockHolder returns the pid of the process that holds the lock at path, -1 when
// it has no number here, and 0 when no process does.
func LockHolder(path string) (int, error) {
	f, err := os.OpenFile(path, os.O_RDWR|unix.O_CLOEXEC, 0)
	if errors.Is(err, os.ErrNotExist) {
		return 0, nil
	}
	if err != nil {
		return 0, fmt.Errorf("cannot open a lock file: %w", err)
	}
	defer f.Close()
	return getLock(f)
}

// File is the locked file, to be kept open over an execve.
func (l *Lock) File() *os.File { return l.file }

// Close releases the lock.
func (l *Lock) Close() error { return l.file.Close() }

func setLock(f *os.File) error {
	return With(f, func(fd int) error {
		lk := unix.Flock_t{Type: unix.F_WRLCK, Whence: io.SeekStart}
		return unix.FcntlFlock(uintptr(fd), unix.F_SETLK, &lk)
	})
}

func getLock(f *os.File) (int, error) {
	lk := unix.Flock_t{Type: unix.F_WRLCK, Whence: io.SeekStart}
	err := With(f, func(fd int) error {
		return unix.FcntlFlock(uintptr(fd), unix.F_GETLK, &lk)
	})
	if err != nil {
		return 0, fmt.Errorf("cannot ask who locks %s: %w", f.Name(), err)
	}
	switch {
	case lk.Type == unix.F_UNLCK:
		return 0, nil
	case lk.Pid <= 0:
		return -1, nil
	}
	return int(lk.Pid), nil
}
