package keyed

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/berthrun/berth/internal/errs"
)

func TestCallsOfOneKeyComeOneAtATime(t *testing.T) {
	c := NewCalls(time.Second)
	var mu sync.Mutex
	running := map[string]int{}
	var wg sync.WaitGroup
	for i := range 20 {
		id := fmt.Sprint("id", i%2)
		wg.Go(func() {
			_, err := Call(t.Context(), c, id, "work", func(context.Context) (int, error) {
				mu.Lock()
				running[id]++
				if running[id] > 1 {
					t.Error("two calls at a time")
				}
				mu.Unlock()
				time.Sleep(time.Millisecond)
				mu.Lock()
				running[id]--
				mu.Unlock()
				return 0, nil
			})
			if err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
}

func TestCallThatDoesNotReturnIsAbandoned(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := NewCalls(10 * time.Second)
		stuck := make(chan struct{})
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		begin := time.Now()
		_, err := Call(ctx, c, "id", "mount", func(context.Context) (int, error) { <-stuck; return 1, nil })
		if took := time.Since(begin); took != 70*time.Second || !errors.Is(err, errs.Deadline) || !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("left after %s: %v", took, err)
		}
		var left *LeftError
		if !errors.As(err, &left) || left.Grace != 10*time.Second {
			t.Errorf("no LeftError: %v", err)
		}
		again, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		_, err = Call(again, c, "id", "unmount", func(context.Context) (int, error) { return 2, nil })
		if !errors.Is(err, errs.Unavailable) || !strings.Contains(err.Error(), "an earlier call (mount)") {
			t.Errorf("the key is busy: %v", err)
		}
		var busy *BusyError
		if !errors.As(err, &busy) || busy.Earlier != "mount" || busy.Age != 130*time.Second {
			t.Errorf("no BusyError: %v", err)
		}
		if got, err := Call(t.Context(), c, "other", "mount", func(context.Context) (int, error) { return 3, nil }); got != 3 || err != nil {
			t.Errorf("another key: %d, %v", got, err)
		}
		close(stuck)
		if got, err := Call(t.Context(), c, "id", "unmount", func(context.Context) (int, error) { return 2, nil }); got != 2 || err != nil {
			t.Errorf("after it returned: %d, %v", got, err)
		}
	})
}

func TestPanicOfACallLeavesTheIDFree(t *testing.T) {
	calls := NewCalls(time.Second)
	for range 2 {
		_, err := Call(t.Context(), calls, "id", "remove", func(context.Context) (int, error) { panic("oh no") })
		if err == nil || !strings.Contains(err.Error(), "remove id") || errs.Kind(err) != nil {
			t.Errorf("a call that panicked: %v", err)
		}
	}
}

// TestCallReturnsItsOwnError: a call that ends because of its deadline returns its own reason.
func TestCallReturnsItsOwnError(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := NewCalls(time.Second)
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		why := errors.New("plugin killed")
		_, err := Call(ctx, c, "id", "attach", func(ctx context.Context) (int, error) {
			<-ctx.Done()
			time.Sleep(time.Second / 2)
			return 0, why
		})
		if err != why { //nolint:errorlint // as it is
			t.Errorf("got %v, want the call's own error", err)
		}
	})
}
