package imagecmd

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/berthrun/berth/internal/errs"
)

// outputFile is a file that a command writes. It gets its name when it is complete.
type outputFile struct {
	*os.File
	// name is the file that a link leads to, part the name until Commit. part is "" for a device or a pipe, which is
	// written in place.
	name, part string
}

// createOutput creates the file of a name. It takes the place of an earlier file, whose mode it gets.
func createOutput(name string) (*outputFile, error) {
	if target, err := filepath.EvalSymlinks(name); err == nil {
		name = target
	}
	fi, err := os.Stat(name)
	switch {
	case errors.Is(err, fs.ErrNotExist):
	case err != nil:
		return nil, err
	case fi.IsDir():
		return nil, fmt.Errorf("%s is a directory; name a file: %w", name, errs.Invalid)
	case !fi.Mode().IsRegular():
		file, err := os.OpenFile(name, os.O_WRONLY, 0)
		return &outputFile{File: file, name: name}, err
	}
	o := &outputFile{name: name, part: name + ".part"}
	if o.File, err = os.OpenFile(o.part, os.O_RDWR|os.O_CREATE|os.O_TRUNC, 0o666); err != nil { //nolint:gosec // the umask decides
		return nil, err
	}
	if fi == nil {
		return o, nil
	}
	if err := o.Chmod(fi.Mode().Perm()); err != nil {
		return nil, errors.Join(err, o.Discard())
	}
	return o, nil
}

// Commit gives a complete file its name.
func (o *outputFile) Commit() error {
	if err := o.Close(); err != nil {
		return errors.Join(err, o.Discard())
	}
	if o.part == "" {
		return nil
	}
	if err := os.Rename(o.part, o.name); err != nil {
		return errors.Join(err, o.Discard())
	}
	return nil
}

// Discard removes an incomplete file. The earlier one stays.
func (o *outputFile) Discard() error {
	o.Close() // which fails if it is closed already
	if o.part == "" {
		return nil
	}
	return errs.IgnoreNotExist(os.Remove(o.part))
}
