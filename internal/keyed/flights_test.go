package keyed

import (
	"context"
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/berthrun/berth/internal/errs"
)

// fly is what a caller does: it joins, waits and leaves.
func fly[S, V any](ctx context.Context, f *Flights[S, V], key string, fn func(context.Context, *S) (V, error)) (V, error) {
	flight, err := f.Join(ctx, key, fn)
	if err != nil {
		var none V
		return none, err
	}
	defer flight.Leave()
	select {
	case <-flight.Done():
		return flight.Result()
	case <-ctx.Done():
		var none V
		return none, context.Cause(ctx)
	}
}

func TestCallersShareOneRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var f Flights[atomic.Int32, int]
		land := make(chan struct{})
		runs := 0
		fn := func(_ context.Context, shared *atomic.Int32) (int, error) {
			runs++
			shared.Store(5)
			<-land
			return 7, nil
		}
		var wg sync.WaitGroup
		for range 5 {
			wg.Go(func() {
				if got, err := fly(t.Context(), &f, "k", fn); got != 7 || err != nil {
					t.Errorf("got %d, %v", got, err)
				}
			})
		}
		if got, err := fly(t.Context(), &f, "other", func(context.Context, *atomic.Int32) (int, error) { return 8, nil }); got != 8 || err != nil {
			t.Errorf("another key: %d, %v", got, err)
		}
		synctest.Wait()
		flight, err := f.Join(t.Context(), "k", fn)
		if err != nil || flight.Shared.Load() != 5 {
			t.Errorf("shared %d, %v", flight.Shared.Load(), err)
		}
		flight.Leave()
		close(land)
		wg.Wait()
		if runs != 1 || len(f.all) != 0 {
			t.Errorf("%d runs, %d are left", runs, len(f.all))
		}
	})
}

func TestRunEndsWithItsLastCallerOnly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var f Flights[struct{}, int]
		over := false
		fn := func(ctx context.Context, _ *struct{}) (int, error) {
			<-ctx.Done()
			over = true
			return 0, ctx.Err()
		}
		one, err := f.Join(t.Context(), "k", fn)
		if err != nil {
			t.Fatal(err)
		}
		two, err := f.Join(t.Context(), "k", fn)
		if err != nil || two != one {
			t.Fatalf("a flight of its own: %v", err)
		}
		if one.Leave() {
			t.Error("the first to leave was the last")
		}
		synctest.Wait()
		if over {
			t.Error("the run ended while a caller waited")
		}
		if !two.Leave() {
			t.Error("the last to leave was not the last")
		}
		synctest.Wait()
		if !over || len(f.all) != 0 {
			t.Errorf("over is %v, %d are left", over, len(f.all))
		}
	})
}

// TestRunOutlivesTheContextThatStartedIt: other callers may have joined the run. The context's
// values stay.
func TestRunOutlivesTheContextThatStartedIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		type name struct{}
		var f Flights[struct{}, any]
		ctx, cancel := context.WithCancel(context.WithValue(t.Context(), name{}, "value"))
		land := make(chan struct{})
		flight, err := f.Join(ctx, "k", func(ctx context.Context, _ *struct{}) (any, error) {
			<-land
			return ctx.Value(name{}), ctx.Err()
		})
		if err != nil {
			t.Fatal(err)
		}
		defer flight.Leave()
		cancel()
		close(land)
		<-flight.Done()
		if value, err := flight.Result(); value != "value" || err != nil {
			t.Errorf("%v, %v", value, err)
		}
	})
}

// TestAbandonedRunIsNotJoined: there is one run per key at any time, even if the previous one
// ignores its context.
func TestAbandonedRunIsNotJoined(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var f Flights[struct{}, int]
		hang := make(chan struct{})
		left, err := f.Join(t.Context(), "k", func(context.Context, *struct{}) (int, error) { <-hang; return 1, nil })
		if err != nil {
			t.Fatal(err)
		}
		left.Leave()
		next := func(context.Context, *struct{}) (int, error) {
			select {
			case <-hang:
			default:
				t.Error("it runs beside the one before")
			}
			return 2, nil
		}
		ctx, cancel := context.WithCancelCause(t.Context())
		reason := errors.New("reason")
		cancel(reason)
		if _, err := f.Join(ctx, "k", next); !errors.Is(err, reason) {
			t.Errorf("a caller that gives up: %v", err)
		}
		var wg sync.WaitGroup
		for range 3 {
			wg.Go(func() {
				if got, err := fly(t.Context(), &f, "k", next); got != 2 || err != nil {
					t.Errorf("the next run: %d, %v", got, err)
				}
			})
		}
		synctest.Wait()
		close(hang)
		wg.Wait()
	})
}

func TestPanicOfARunIsItsErrorAndLeavesTheKeyFree(t *testing.T) {
	var f Flights[struct{}, int]
	for range 2 {
		_, err := fly(t.Context(), &f, "pull of a", func(context.Context, *struct{}) (int, error) { panic("oh no") })
		if err == nil || !strings.Contains(err.Error(), "pull of a") || errs.Kind(err) != nil {
			t.Errorf("a run that panicked: %v", err)
		}
	}
}

func TestCallersJoinAndLeave(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var f Flights[struct{}, int]
		var running atomic.Int32
		for i := range 200 {
			go func() {
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				if i%3 == 0 {
					cancel()
				}
				_, err := fly(ctx, &f, "k", func(ctx context.Context, _ *struct{}) (int, error) {
					if running.Add(1) > 1 {
						t.Error("two runs at a time")
					}
					defer running.Add(-1)
					return 1, ctx.Err()
				})
				if err != nil && ctx.Err() == nil {
					t.Error(err)
				}
			}()
		}
		synctest.Wait()
		if len(f.all) != 0 {
			t.Errorf("%d are left", len(f.all))
		}
	})
}
