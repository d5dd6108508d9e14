package errs

import (
	"fmt"
	"log/slog"
	"runtime/debug"
)

// Guard calls fn and turns a panic into an error without a kind: berth is at fault. It
// logs the stack with what, which names the operation and its object. Use it for the work
// on one object where no caller recovers: a fault there must not end the work on others.
func Guard(what string, fn func() error) (err error) {
	defer func() {
		if p := recover(); p != nil {
			slog.Error("a fault in berth: "+what+" panicked", "panic", fmt.Sprint(p), "stack", string(debug.Stack()))
			err = fmt.Errorf("%s failed because of a fault in berth; its log has the stack: %v", what, p)
		}
	}()
	return fn()
}

// Protect is Guard for a function without an error.
func Protect(what string, fn func()) {
	_ = Guard(what, func() error {
		fn()
		return nil
	})
}
