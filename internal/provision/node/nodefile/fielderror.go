package nodefile

import (
	"errors"
	"fmt"
)

// FieldError says that a valid field of a node file does not fit the machine, or does not fit
// another field on this machine.
type FieldError struct {
	// Path is as in "runtime.assets[0]".
	Path string
	err  error
}

// NewFieldError returns an error of a kind of package errs. Its message is the path, the formatted
// text and the kind.
func NewFieldError(kind error, path, format string, args ...any) *FieldError {
	return &FieldError{Path: path, err: fmt.Errorf("%s: %s: %w", path, fmt.Sprintf(format, args...), kind)}
}

// WrapFieldError returns an error about a field whose message is that of err.
func WrapFieldError(path string, err error) *FieldError { return &FieldError{Path: path, err: err} }

// Error names the field.
func (e *FieldError) Error() string { return e.err.Error() }

// Unwrap gives the error its kind.
func (e *FieldError) Unwrap() error { return e.err }

// FieldErrors is every reason why a node file does not fit a machine.
type FieldErrors []*FieldError

// Error has a line for each.
func (e FieldErrors) Error() string { return errors.Join(e.Unwrap()...).Error() }

// Unwrap returns them one by one.
func (e FieldErrors) Unwrap() []error {
	list := make([]error, len(e))
	for i, fieldError := range e {
		list[i] = fieldError
	}
	return list
}

// Join returns err together with e, if err is nil or consists of FieldErrors. It returns any other
// err alone.
func (e FieldErrors) Join(err error) error {
	var more FieldErrors
	switch {
	case errors.As(err, &more):
		return append(more, e...)
	case err == nil && len(e) > 0:
		return e
	}
	return err
}

// Locate puts file, line and column before each of the FieldErrors of err. text is the content of
// the node file. It returns any other err as it is.
func Locate(err error, file string, text []byte) error {
	var list FieldErrors
	if !errors.As(err, &list) {
		return err
	}
	located := make([]error, len(list))
	for i, fieldError := range list {
		line, column := Place(text, fieldError.Path)
		located[i] = fmt.Errorf("%s:%d:%d: %w", file, line, column, fieldError)
	}
	return errors.Join(located...)
}
