package store

import (
	"errors"
	"fmt"
	"os"
	"syscall"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/sys/sysfile"
)

// Disk writes and removes the files of records.
type Disk interface {
	// Write makes or replaces a file, mode 0600: after a crash of the process
	// the file is the old one or the new one.
	Write(path string, data []byte) error
	// WriteWhole is Write that holds for a loss of power, too: it leaves the old file or the new one, or
	// none if there was none, and never an empty one.
	WriteWhole(path string, data []byte) error
	// Remove removes a file. Nil when there is none.
	Remove(path string) error
	// Sync returns once the files of a directory that WriteWhole has made would survive a loss of power.
	Sync(dir string) error
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
	return exhausted(fs.reserve.Replace(path, data))
}

// WriteWhole is Write that syncs the content before it renames.
func (fs FileSystem) WriteWhole(path string, data []byte) error {
	return exhausted(fs.reserve.ReplaceWhole(path, data))
}

// exhausted adds the kind of an error of a disk, or of a process, that is full.
func exhausted(err error) error {
	if errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) || errors.Is(err, syscall.EMFILE) || errors.Is(err, syscall.ENFILE) {
		return fmt.Errorf("%w: %w", errs.Exhausted, err)
	}
	return err
}

// Remove removes the file.
func (FileSystem) Remove(path string) error { return errs.IgnoreNotExist(os.Remove(path)) }

// Sync syncs the directory.
func (FileSystem) Sync(dir string) error { return sysfile.SyncDir(dir) }
