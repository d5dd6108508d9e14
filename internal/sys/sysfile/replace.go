package sysfile

import (
	"errors"
	"os"
	"path/filepath"

	"github.com/berthrun/berth/internal/errs"
)

// TempPrefix begins the names of files that Replace is writing.
const TempPrefix = ".tmp-"

// Replace makes or replaces a file, mode 0600, by writing beside it and renaming: after a
// crash of the process the file is the old one or the new one. Writers of one file come one
// at a time.
func Replace(path string, data []byte) error {
	dir, base := filepath.Split(path)
	temp := dir + TempPrefix + base
	err := os.WriteFile(temp, data, 0o600)
	if err == nil {
		err = os.Rename(temp, path)
	}
	if err != nil {
		return errors.Join(err, errs.IgnoreNotExist(os.Remove(temp)))
	}
	return nil
}

// ReplaceWhole is Replace that also holds for a loss of power, except that the name of a new file may be lost with it:
// the content is on the disk before the file has its name, so the file is never empty or cut off. SyncDir makes the
// names of all files of a directory durable.
func ReplaceWhole(path string, data []byte) error {
	temp := filepath.Join(filepath.Dir(path), TempPrefix+filepath.Base(path))
	err := errs.IgnoreNotExist(os.Remove(temp))
	if err == nil {
		err = writeWhole(temp, data)
	}
	if err == nil {
		err = os.Rename(temp, path)
	}
	if err != nil {
		return errors.Join(err, errs.IgnoreNotExist(os.Remove(temp)))
	}
	return nil
}

// ReplaceSynced replaces a file, mode 0600, so that a loss of power after it leaves the new one, and a loss of power
// during it the old or the new one. What is written to the disk afterwards is never there without the new one.
func ReplaceSynced(path string, data []byte) error {
	if err := ReplaceWhole(path, data); err != nil {
		return err
	}
	return SyncDir(filepath.Dir(path))
}

// WriteSynced makes a file, mode 0600, that a loss of power does not take.
func WriteSynced(path string, data []byte) error {
	if err := writeWhole(path, data); err != nil {
		return err
	}
	return SyncDir(filepath.Dir(path))
}

// writeWhole makes a file, mode 0600, and syncs its content.
func writeWhole(path string, data []byte) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	return errors.Join(err, f.Sync(), f.Close())
}

// SyncDir returns once the names of the files in a directory would survive a loss of power.
func SyncDir(path string) error {
	dir, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}
