package call

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/keyed"
)

// TestErrorsNameTheFailedOperation: the errors of calls, as jobs return them.
func TestErrorsNameTheFailedOperation(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		calls := keyed.NewCalls(10 * time.Second)
		stuck := make(chan struct{})
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		_, err := Get(ctx, calls, "id", "mount", func(context.Context) (int, error) { <-stuck; return 1, nil })
		want := "cannot mount: deadline exceeded: it does not return, 10s after it was cancelled: context deadline exceeded"
		if !errors.Is(err, errs.Deadline) || err.Error() != want {
			t.Errorf("a call that does not return: %v\nwant %s", err, want)
		}
		again, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		_, err = Get(again, calls, "id", "unmount", func(context.Context) (int, error) { return 2, nil })
		want = "cannot unmount: unavailable: an earlier call (mount) does not return since 2m10s"
		if !errors.Is(err, errs.Unavailable) || errors.Is(err, context.DeadlineExceeded) || err.Error() != want {
			t.Errorf("the call after it: %v\nwant %s", err, want)
		}
		close(stuck)
		_, err = Get(t.Context(), calls, "id", "unmount", func(context.Context) (int, error) { return 2, errs.State })
		if want = "cannot unmount: wrong state"; !errors.Is(err, errs.State) || err.Error() != want {
			t.Errorf("a call that fails: %v\nwant %s", err, want)
		}
		ended, end := context.WithCancelCause(t.Context())
		end(errs.Exhausted)
		_, err = Get(ended, calls, "id", "unmount", func(context.Context) (int, error) { t.Error("called"); return 2, nil })
		if !errors.Is(err, errs.Exhausted) {
			t.Errorf("a job that was cancelled before: %v", err)
		}
	})
}
