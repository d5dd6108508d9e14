package keyed

import (
	"context"
	"fmt"
	"time"

	"github.com/berthrun/berth/internal/errs"
)

// Calls runs one call per key at a time. A caller whose context has ended can leave its
// call: the call goes on, and the key stays busy until it returns.
type Calls struct {
	grace time.Duration
	keys  Mutex
}

// NewCalls returns Calls whose callers leave a call that has not returned grace after
// their context has ended.
func NewCalls(grace time.Duration) *Calls { return &Calls{grace: grace} }

// BusyError is the error of a call that was not made: its context ended while an earlier
// call for the key ran. Its kind is Unavailable.
type BusyError struct {
	// Earlier is what the earlier call does, and Age how long it has run.
	Earlier string
	Age     time.Duration
}

func (e *BusyError) Error() string {
	return fmt.Sprintf("%v: an earlier call (%s) does not return since %s", errs.Unavailable, e.Earlier, e.Age.Round(time.Second))
}

func (e *BusyError) Unwrap() error { return errs.Unavailable }

// LeftError is the error of a caller that has left its call, which continues. Its kind is
// Deadline.
type LeftError struct {
	// Grace is how long the caller waited after its context had ended.
	Grace time.Duration
	// Cause is why the context ended.
	Cause error
}

func (e *LeftError) Error() string {
	return fmt.Sprintf("%v: it does not return, %s after it was cancelled: %v", errs.Deadline, e.Grace, e.Cause)
}

func (e *LeftError) Unwrap() []error { return []error{errs.Deadline, e.Cause} }

// Call calls fn once no other call for the key runs, and returns what fn returns. what
// says what fn does, for errors and the log: "start container". When ctx ends first,
// Call returns a *BusyError if fn was not called, and a *LeftError if fn does not return
// within the grace. The end of ctx ends the waits only: fn looks at ctx by itself.
func Call[T any](ctx context.Context, c *Calls, key, what string, fn func(context.Context) (T, error)) (T, error) {
	type outcome struct {
		value T
		err   error
	}
	var none T
	unlock, other := c.keys.lock(ctx, key, what)
	if other != nil {
		return none, &BusyError{Earlier: other.what, Age: time.Since(other.since)}
	}
	returned := make(chan outcome, 1)
	go func() {
		var o outcome
		o.err = errs.Guard(what+" "+key, func() (err error) {
			o.value, err = fn(ctx)
			return err
		})
		unlock()
		returned <- o
	}()
	select {
	case o := <-returned:
		return o.value, o.err
	case <-ctx.Done():
	}
	// A call that ends with ctx has more to say than ctx.
	grace := time.NewTimer(c.grace)
	defer grace.Stop()
	select {
	case o := <-returned:
		return o.value, o.err
	case <-grace.C:
		return none, &LeftError{Grace: c.grace, Cause: context.Cause(ctx)}
	}
}
