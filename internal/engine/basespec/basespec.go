// Package basespec reads the OCI specs on which those of a handler's containers are based.
package basespec

import (
	"fmt"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/ocispec"
	"github.com/berthrun/berth/internal/sys/sysfile"
)

// maxFile is how many bytes of a file are read.
const maxFile = 4 << 20

// Error is the error of a file that cannot be used. Its kind is Unavailable, whatever the file's fault is: the request
// has none.
type Error struct{ err error }

func (e *Error) Error() string { return e.err.Error() }

// Unwrap returns the error's kind.
func (e *Error) Unwrap() error { return errs.Unavailable }

// Read reads the base spec of a handler, nil for none (path ""). The error is an *Error, with handler and file.
func Read(handler, path string) (*specs.Spec, error) {
	base, err := read(path)
	if err != nil {
		return nil, &Error{fmt.Errorf("handler %q: base_runtime_spec %s: %w", handler, path, err)}
	}
	return base, nil
}

// CheckFile returns what is wrong with a file, nil for none (path ""). Kind NotFound when it does not exist.
func CheckFile(path string) error {
	_, err := read(path)
	return err
}

func read(path string) (*specs.Spec, error) {
	if path == "" {
		return nil, nil //nolint:nilnil // no base is no failure
	}
	data, err := sysfile.ReadRegular(path, maxFile+1)
	if err == nil && len(data) > maxFile {
		err = fmt.Errorf("it is longer than %d bytes", maxFile)
	}
	if err != nil {
		return nil, err
	}
	return ocispec.ParseBase(data)
}
