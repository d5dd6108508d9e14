package once

import (
	"context"
	"errors"
	"runtime"
	"sync"
	"testing"
)

func TestFlightsRunOnceAndTellAll(t *testing.T) {
	var f Flights[int, string]
	start := make(chan struct{})
	runs := 0
	var wg sync.WaitGroup
	told := make(chan string, 100)
	const callers = 5
	for range callers {
		wg.Go(func() {
			got, err := f.Do(context.Background(), "k", func(p string) { told <- p }, func(_ context.Context, report func(string)) (int, error) {
				runs++
				<-start
				report("half")
				return 7, nil
			})
			if got != 7 || err != nil {
				t.Errorf("got %d, %v", got, err)
			}
		})
	}
	for f.Callers() < callers {
		runtime.Gosched()
	}
	close(start)
	wg.Wait()
	if runs != 1 || len(told) != callers {
		t.Errorf("%d runs, %d told", runs, len(told))
	}
	if f.Callers() != 0 {
		t.Error("callers are left")
	}
}

func TestFlightEndsWithItsLastCallerOnly(t *testing.T) {
	var f Flights[int, int]
	ended := make(chan error, 1)
	fn := func(ctx context.Context, _ func(int)) (int, error) {
		<-ctx.Done()
		ended <- ctx.Err()
		return 0, ctx.Err()
	}
	one, leaveOne := context.WithCancel(context.Background())
	two, leaveTwo := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	for _, ctx := range []context.Context{one, two} {
		wg.Go(func() {
			if _, err := f.Do(ctx, "k", nil, fn); !errors.Is(err, context.Canceled) {
				t.Errorf("error %v", err)
			}
		})
	}
	for f.Callers() < 2 {
		runtime.Gosched()
	}
	leaveOne()
	for f.Callers() > 1 {
		runtime.Gosched()
	}
	select {
	case <-ended:
		t.Error("the run ended while a caller waited")
	default:
	}
	leaveTwo()
	wg.Wait()
	if err := <-ended; err == nil {
		t.Error("the run was not cancelled")
	}
}

func TestKeysAreTakenInTurnAndCanBeGivenUp(t *testing.T) {
	var k Keys
	unlock, err := k.Lock(context.Background(), "a")
	if err != nil {
		t.Fatal(err)
	}
	if unlockB, err := k.Lock(context.Background(), "b"); err != nil {
		t.Fatal(err)
	} else {
		unlockB()
	}
	ctx, cancel := context.WithCancelCause(context.Background())
	reason := errors.New("reason")
	cancel(reason)
	if _, err := k.Lock(ctx, "a"); !errors.Is(err, reason) {
		t.Errorf("error %v", err)
	}
	got := make(chan func())
	go func() {
		next, err := k.Lock(context.Background(), "a")
		if err != nil {
			t.Error(err)
		}
		got <- next
	}()
	unlock()
	(<-got)()
	if len(k.held) != 0 {
		t.Errorf("%d locks are left", len(k.held))
	}
}
