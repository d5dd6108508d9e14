package sysfile

import (
	"errors"
	"os"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/berthrun/berth/internal/errs"
)

// reserveSize is room for a dozen of records that are replaced at one time.
const reserveSize = 64 << 10

// Reserve is room on a file system for the case that other programs have filled it. Then existing
// files can still be changed, so that the objects that they describe can be stopped and removed,
// and no new ones are created. Its methods are safe for concurrent use; a nil one has no room.
type Reserve struct {
	mu   sync.Mutex
	path string
	// held is true when the file at path has its size.
	held bool
}

// KeepReserve holds room in the file at path, whose directory exists. Where there is none
// it is tried again at each write.
func KeepReserve(path string) *Reserve {
	r := &Reserve{path: path}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.hold()
	return r
}

// Replace is Replace that takes what it needs from the reserve when the file system is full
// and the file is there already.
func (r *Reserve) Replace(path string, data []byte) error { return r.replace(path, data, Replace) }

// ReplaceWhole is ReplaceWhole that takes what it needs from the reserve as Replace does.
func (r *Reserve) ReplaceWhole(path string, data []byte) error {
	return r.replace(path, data, ReplaceWhole)
}

func (r *Reserve) replace(path string, data []byte, with func(string, []byte) error) error {
	if _, err := os.Lstat(path); err != nil {
		return with(path, data)
	}
	return r.write(path, data, with)
}

// Write is Replace that takes what it needs from the reserve whether the file is there or not.
func (r *Reserve) Write(path string, data []byte) error { return r.write(path, data, Replace) }

func (r *Reserve) write(path string, data []byte, with func(string, []byte) error) error {
	err := with(path, data)
	if r == nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if full(err) {
		if r.held = false; errs.IgnoreNotExist(os.Remove(r.path)) == nil {
			err = with(path, data)
		}
	}
	if !r.held {
		r.hold() // what was replaced has gone, so that there may be room again
	}
	return err
}

// hold makes the file. On a file system that cannot allocate room there is no reserve.
func (r *Reserve) hold() {
	f, err := os.OpenFile(r.path, os.O_WRONLY|os.O_CREATE, 0o600)
	if err != nil {
		return
	}
	defer f.Close()
	if err := unix.Fallocate(int(f.Fd()), 0, 0, reserveSize); err != nil {
		_ = os.Remove(r.path)
		r.held = !full(err)
		return
	}
	r.held = true
}

func full(err error) bool {
	return errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT)
}
