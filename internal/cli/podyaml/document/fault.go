package document

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/berthrun/berth/internal/errs"
)

// Fault is one thing that is wrong with a file. It has kind Invalid.
type Fault struct {
	// Line of the file where the field stands, or the nearest one above it that does; 0
	// when the file has no such place.
	Line int
	// Field is its path in the document.
	Field, Why string
}

// Error implements error.
func (f *Fault) Error() string {
	text := f.Why
	if f.Field != "" {
		text = f.Field + ": " + text
	}
	if f.Line > 0 {
		text = "line " + strconv.Itoa(f.Line) + ": " + text
	}
	return text
}

// Unwrap says that the file's author is to blame.
func (*Fault) Unwrap() error { return errs.Invalid }

// Faults collects the faults of a document, to report all at once.
type Faults struct {
	Place Place
	list  []error
	// secret: no message has a value of the document.
	secret bool
}

// Add adds a fault of a field, by its path in what Place stands for.
func (f *Faults) Add(field, format string, args ...any) {
	f.list = append(f.list, &Fault{
		Line: f.Place.Line(field), Field: strings.TrimSuffix(f.Place.Path(field), "."), Why: fmt.Sprintf(format, args...),
	})
}

// AddError adds an error about a field; what it wraps does not matter, its text does.
func (f *Faults) AddError(field string, err error) {
	var at *FieldError
	if errors.As(err, &at) {
		f.Add(field+at.Field, "%v", at.Err)
		return
	}
	f.Add(field, "%v", err)
}

// Err returns all faults joined, nil for none.
func (f *Faults) Err() error { return errors.Join(f.list...) }

// FieldError is an error about a field below the one that its reader knows of.
type FieldError struct {
	Field string
	Err   error
}

// Error implements error.
func (e *FieldError) Error() string { return e.Err.Error() }

// Unwrap returns the error without its field.
func (e *FieldError) Unwrap() error { return e.Err }
