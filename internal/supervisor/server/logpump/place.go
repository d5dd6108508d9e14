package logpump

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"syscall"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/sys/sysfile"
)

// place is where a container's log lies. Its calls may block for as long as the
// file system does.
type place interface {
	// open opens the log file. When it is absent, open creates it; if create is false,
	// open returns an error for which gone is true.
	open(create bool) (logFile, error)
	// find opens the file with the given id under any name in the log file's
	// directory. NotFound if it has none.
	find(id sysfile.FileID) (logFile, error)
}

// logFile is an open log.
type logFile interface {
	io.WriterAt
	io.Closer
	state() (sysfile.FileState, error)
}

// gone reports whether an error of a place means that the log, or a directory of its path,
// no longer exists. Then there is no log to keep complete, and the container continues
// without one. Any other error means that the log cannot be written now.
func gone(err error) bool {
	return errors.Is(err, os.ErrNotExist) || errors.Is(err, syscall.ENOTDIR) || errors.Is(err, errs.Invalid)
}

// directory is a place beneath the log directory of a sandbox.
type directory struct {
	dir, path string
}

// checkPath refuses a log's path without looking at the file system. The daemon has checked
// it. The supervisor checks again: it opens files as root for any client of its protocol, and
// reads the path from records on disk.
func checkPath(dir, path string) error {
	if !filepath.IsAbs(dir) {
		return fmt.Errorf("log directory %q is not absolute: %w", dir, errs.Invalid)
	}
	if !filepath.IsLocal(path) || filepath.Clean(path) == "." {
		return fmt.Errorf("log path %q is not a path beneath log directory %q: %w", path, dir, errs.Invalid)
	}
	return nil
}

func (d directory) open(create bool) (logFile, error) {
	dir, err := os.Open(d.dir)
	if err != nil {
		return nil, d.explain(err)
	}
	defer dir.Close()
	for {
		f, err := openPlain(dir, d.path)
		if err == nil || !create || !errors.Is(err, os.ErrNotExist) {
			return f, d.explain(err)
		}
		err = createDetached(dir, d.path, logMode)
		if err != nil && !errors.Is(err, os.ErrExist) {
			return nil, d.explain(err)
		}
	}
}

func (d directory) find(id sysfile.FileID) (logFile, error) {
	dir, err := os.Open(d.dir)
	if err != nil {
		return nil, d.explain(err)
	}
	defer dir.Close()
	sub, err := sysfile.OpenBeneath(dir, filepath.Dir(d.path), os.O_RDONLY|syscall.O_DIRECTORY, 0)
	if err != nil {
		return nil, d.explain(err)
	}
	defer sub.Close()
	name, err := sysfile.FindFile(sub, id)
	if err != nil {
		return nil, err
	}
	f, err := openPlain(sub, name)
	if err != nil {
		return nil, d.explain(err)
	}
	if st, err := f.state(); err != nil || st.ID != id {
		f.Close()
		return nil, errors.Join(err, fmt.Errorf("log file %s was replaced: %w", name, errs.NotFound))
	}
	return f, nil
}

// explain adds the missing directory to an error when the log's directory is missing. The
// caller has to make that directory.
func (d directory) explain(err error) error {
	if err != nil && errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("log directory %s is missing: %w (%w)", filepath.Dir(filepath.Join(d.dir, d.path)), err, errs.Unavailable)
	}
	return err
}

// logMode lets the group read: collectors run in it.
const logMode = 0o640

// plainFile is a regular file, held by an O_PATH descriptor.
type plainFile struct{ path *os.File }

func (f plainFile) state() (sysfile.FileState, error) { return sysfile.StatFile(f.path) }

func (f plainFile) WriteAt(p []byte, offset int64) (int, error) {
	return writeDetached(f.path, p, offset)
}

func (f plainFile) Close() error { return f.path.Close() }

// openPlain opens a regular file beneath dir. Any other file is Invalid: a FIFO or a
// device would block, or do worse.
func openPlain(dir *os.File, path string) (logFile, error) {
	f, err := sysfile.OpenBeneath(dir, path, sysfile.OpenPath, 0)
	if err != nil {
		return nil, err
	}
	st, err := sysfile.StatFile(f)
	if err == nil && !st.Regular {
		err = fmt.Errorf("log file %s is not a regular file: %w", f.Name(), errs.Invalid)
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return plainFile{f}, nil
}
