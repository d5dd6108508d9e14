package store

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/sys/sysfile"
)

// Disk writes and removes the files of records.
type Disk interface {
	// Write makes or replaces a file, mode 0600: after a crash of the process
	// the file is the old one or the new one.
	Write(path string, data []byte) error
	// Remove removes a file. Nil when there is none.
	Remove(path string) error
	// Sync returns once the file would survive a loss of power. Nil when there
	// is no file.
	Sync(path string) error
}

// FileSystem is the Disk of a real file system. A directory of records that is opened with it
// keeps a reserve: when other programs have filled the file system, recorded objects can still
// be stopped and removed.
type FileSystem struct {
	reserve *sysfile.Reserve
}

// reserveSuffix follows the path of the directory, which holds records only.
const reserveSuffix = ".reserve"

// Write writes beside the file and renames over it.
func (fs FileSystem) Write(path string, data []byte) error {
	err := fs.reserve.Replace(path, data)
	if errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) || errors.Is(err, syscall.EMFILE) || errors.Is(err, syscall.ENFILE) {
		err = fmt.Errorf("%w: %w", errs.Exhausted, err)
	}
	return err
}

// Remove removes the file.
func (FileSystem) Remove(path string) error { return errs.IgnoreNotExist(os.Remove(path)) }

// Sync syncs the file and the directory that it is in.
func (FileSystem) Sync(path string) error {
	return errors.Join(syncOne(path), syncOne(filepath.Dir(path)))
}

func syncOne(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return errs.IgnoreNotExist(err)
	}
	return errors.Join(f.Sync(), f.Close())
}
