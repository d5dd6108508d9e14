package network_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/network"
)

func TestCallsOfOneSandboxComeOneAtATime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		calls := network.NewSandboxCalls()
		running, most := 0, 0
		done := make(chan error)
		for range 5 {
			go func() {
				done <- calls.Do(t.Context(), "one", "work", func() error {
					running++
					most = max(most, running)
					time.Sleep(time.Second)
					running--
					return nil
				})
			}()
		}
		for range 5 {
			if err := <-done; err != nil {
				t.Error(err)
			}
		}
		if most != 1 {
			t.Errorf("%d pieces of work for one sandbox ran at once", most)
		}
	})
}

// TestCallOutlivesItsCaller: a call continues after its caller has returned. The next caller waits
// for it.
func TestCallOutlivesItsCaller(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		calls := network.NewSandboxCalls()
		release := make(chan struct{})
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := calls.Do(ctx, "one", "work", func() error { <-release; return nil }); !errors.Is(err, errs.Deadline) {
			t.Errorf("the first caller got %v, want kind Deadline", err)
		}
		late, cancelLate := context.WithTimeout(t.Context(), time.Second)
		defer cancelLate()
		if err := calls.Do(late, "one", "work", func() error { t.Error("ran beside earlier work"); return nil }); !errors.Is(err, errs.Deadline) {
			t.Errorf("the second caller got %v, want kind Deadline", err)
		}
		if err := calls.Do(t.Context(), "other", "work", func() error { return nil }); err != nil {
			t.Errorf("another sandbox: %v", err)
		}
		close(release)
		if err := calls.Do(t.Context(), "one", "work", func() error { return errs.State }); !errors.Is(err, errs.State) {
			t.Errorf("after the earlier work: %v", err)
		}
	})
}

// TestCallReturnsItsOwnError: a call that ends because of its deadline returns its own reason.
func TestCallReturnsItsOwnError(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		calls := network.NewSandboxCalls()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		why := errors.New("plugin killed")
		err := calls.Do(ctx, "one", "work", func() error {
			<-ctx.Done()
			time.Sleep(time.Second)
			return why
		})
		if !errors.Is(err, why) {
			t.Errorf("got %v, want the work's own error", err)
		}
	})
}

// TestPanicEndsOneCall: a panic in one call ends neither the daemon nor the next call for the
// sandbox.
func TestPanicEndsOneCall(t *testing.T) {
	calls := network.NewSandboxCalls()
	err := calls.Do(t.Context(), "one", "work", func() error { panic("oh no") })
	if err == nil || !strings.Contains(err.Error(), "oh no") || !strings.Contains(err.Error(), "one") {
		t.Errorf("error %v does not name the fault and the sandbox", err)
	}
	if err := calls.Do(t.Context(), "one", "work", func() error { return nil }); err != nil {
		t.Errorf("the next call: %v", err)
	}
}
