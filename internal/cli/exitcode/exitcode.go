// Package exitcode lets a command end the process with a code of its choice.
package exitcode

import "fmt"

// Error makes the process end with Code. A nil Err prints nothing: the command has
// printed its error, or Code is that of a program that it ran.
type Error struct {
	Code int
	Err  error
}

func (e *Error) Error() string { return fmt.Sprintf("exit %d: %v", e.Code, e.Err) }

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }

// Of returns nil for code 0, and an Error without a message for any other.
func Of(code int) error {
	if code == 0 {
		return nil
	}
	return &Error{Code: code}
}
