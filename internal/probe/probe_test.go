package probe

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/berthrun/berth/internal/errs"
)

func TestHungProbeIsNamedAndRunsOnce(t *testing.T) {
	synctest.Test(t, testHungProbe)
}

func testHungProbe(t *testing.T) {
	pool := &Pool{Timeout: 5 * time.Millisecond, Limit: 2}
	hang := make(chan struct{})
	defer close(hang)
	var asked atomic.Int32
	ask := func() (int, error) {
		asked.Add(1)
		<-hang
		return 0, nil
	}
	for range 5 {
		_, err := Ask(context.Background(), pool, "look at /dead", ask)
		if !errors.Is(err, errs.Unavailable) || !strings.Contains(err.Error(), "/dead") {
			t.Fatalf("a hung question: %v, want kind Unavailable and the path", err)
		}
	}
	if n := asked.Load(); n != 1 {
		t.Errorf("asked %d times, want once while it hangs", n)
	}
	// Other requests are answered meanwhile.
	if v, err := Ask(context.Background(), pool, "look at /alive", func() (int, error) { return 7, nil }); v != 7 || err != nil {
		t.Errorf("another question: %d, %v", v, err)
	}
}

func TestTooManyHungProbes(t *testing.T) {
	pool := &Pool{Timeout: time.Millisecond, Limit: 1}
	hang := make(chan struct{})
	defer close(hang)
	_, _ = Ask(context.Background(), pool, "a", func() (int, error) { <-hang; return 0, nil })
	if _, err := Ask(context.Background(), pool, "b", func() (int, error) { return 0, nil }); !errors.Is(err, errs.Exhausted) {
		t.Errorf("one question over the limit: %v, want kind Exhausted", err)
	}
}

func TestResultIsNotCached(t *testing.T) {
	pool := &Pool{Timeout: time.Minute, Limit: 1}
	n := 0
	for want := 1; want <= 3; want++ {
		got, err := Ask(context.Background(), pool, "count", func() (int, error) { n++; return n, nil })
		if got != want || err != nil {
			t.Fatalf("question %d: %d, %v", want, got, err)
		}
	}
}

// TestAnswersOfOtherTypes: questions in the same words that want answers of other types are not the same question.
func TestAnswersOfOtherTypes(t *testing.T) {
	pool, release := &Pool{Timeout: time.Minute}, make(chan struct{})
	first := make(chan error, 1)
	started := make(chan struct{})
	go func() {
		_, err := Ask(context.Background(), pool, "look", func() (int, error) { close(started); <-release; return 1, nil })
		first <- err
	}()
	<-started
	if got, err := Ask(context.Background(), pool, "look", func() (string, error) { return "there", nil }); got != "there" || err != nil {
		t.Errorf("%q, %v", got, err)
	}
	close(release)
	if err := <-first; err != nil {
		t.Error(err)
	}
}

func TestCallerMayLeave(t *testing.T) {
	pool := &Pool{Timeout: time.Minute, Limit: 1}
	hang := make(chan struct{})
	defer close(hang)
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := Ask(ctx, pool, "wait", func() (int, error) { <-hang; return 0, nil }); !errors.Is(err, context.Canceled) {
		t.Errorf("%v, want the caller's own error", err)
	}
}

func TestPanicOfAProbeIsItsError(t *testing.T) {
	pool := &Pool{Timeout: time.Minute, Limit: 1}
	for range 2 {
		_, err := Ask(context.Background(), pool, "look at /odd", func() (int, error) { panic("oh no") })
		if err == nil || !strings.Contains(err.Error(), "look at /odd") || errs.Kind(err) != nil {
			t.Errorf("a question that panicked: %v", err)
		}
	}
}

// Only the first callers of a run that hangs wait for it, and later ones have the result of another run.
func TestLaterCallersDoNotWait(t *testing.T) {
	synctest.Test(t, testLaterCallers)
}

func testLaterCallers(t *testing.T) {
	var pool Pool
	var asked atomic.Int32
	hang := make(chan struct{})
	ask := func() (int, error) {
		if asked.Add(1) == 1 {
			<-hang
		}
		return 7, nil
	}
	const wait = 20 * time.Millisecond
	began := time.Now()
	for range 100 {
		if n, err := AskWithin(context.Background(), &pool, wait, "look at /dead", ask); !errors.Is(err, errs.Unavailable) {
			t.Errorf("a run that hangs: %d, %v", n, err)
		}
	}
	if took := time.Since(began); took != wait || asked.Load() != 1 {
		t.Errorf("100 callers waited %s for %d runs", took, asked.Load())
	}
	close(hang)
	if n, err := AskWithin(context.Background(), &pool, time.Minute, "look at /dead", ask); n != 7 || err != nil {
		t.Errorf("after it has answered: %d %v", n, err)
	}
}
