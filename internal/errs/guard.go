package errs

import (
	"fmt"
	"log/slog"
	"runtime/debug"
)

// Guard calls fn and turns a panic into an error without a kind, which is a fault of
// berth's. The stack goes to the log under what: it says what was done, and with which
// object. Work that serves one object runs under it where nothing above recovers: the
// fault of one must not end what serves the others.
func Guard(what string, fn func() error) (err error) {
	defer func() {
		if p := recover(); p != nil {
			slog.Error("a fault in berth: "+what+" panicked", "panic", fmt.Sprint(p), "stack", string(debug.Stack()))
			err = fmt.Errorf("%s failed because of a fault in berth, its log has the stack: %v", what, p)
		}
	}()
	return fn()
}

// Protect is Guard for what has no error to return.
func Protect(what string, fn func()) {
	_ = Guard(what, func() error {
		fn()
		return nil
	})
}
