package logpump

import (
	"bytes"
	"log/slog"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/berthrun/berth/internal/crilog"
)

func TestThrottle(t *testing.T) {
	at := time.Unix(1000, 0)
	second := func(n float64) time.Time { return at.Add(time.Duration(n * float64(time.Second))) }
	const unit = turnCost // so that a turn without output counts as one
	th := newThrottle(100 * unit)
	for _, step := range []struct {
		total int64
		now   float64
		want  time.Duration
	}{
		{999, 0, 0},                       // the burst
		{1048, 0, 500 * time.Millisecond}, // half a second more
		{1048, 0.51, 0},                   // after the wait
		{1247, 1.51, time.Second},
		{1247, 100, 0}, // a long pause gives one burst only
		{2245, 100, 0},
		{2254, 100, 100 * time.Millisecond},
		{2254, 100, 110 * time.Millisecond}, // a turn without output counts, too
		{2254, 50, 120 * time.Millisecond},  // a clock that goes back gives nothing
	} {
		if got := th.wait(step.total*unit, second(step.now)).Round(time.Microsecond); got != step.want {
			t.Errorf("%d units after %v s: wait %v, want %v", step.total, step.now, got, step.want)
		}
	}
	none := newThrottle(0)
	if got := none.wait(1<<60, at); got != 0 {
		t.Errorf("without a rate: wait %v", got)
	}
}

// Empty lines grow by a factor of 41 on their way to the log. A flood of them is limited to the
// rate. Each line is in the log all the same, and the container's exit does not wait.
func TestFloodIsHeldToItsRate(t *testing.T) {
	b := newBench(t)
	b.cfg.Rate = 1 << 20
	warnings := &lockedBuffer{}
	b.cfg.Log = slog.New(slog.NewTextHandler(warnings, nil))
	began := time.Now()
	p := b.open()
	var stop atomic.Bool
	var lines int64
	ended := make(chan error, 1)
	go func() {
		flood := bytes.Repeat([]byte("\n"), 4096)
		for !stop.Load() {
			n, err := b.stdout.Write(flood)
			lines += int64(n)
			if err != nil {
				ended <- err
				return
			}
		}
		ended <- nil
	}()
	waitFor(t, func() bool { return p.Stats().Written > burst*b.cfg.Rate })
	// The burst is used up. One turn may write more than the rate.
	const turn = int64(spliceMax * crilog.Overhead)
	for range 20 {
		written := p.Stats().Written
		if most := burst*b.cfg.Rate + int64(time.Since(began).Seconds()*float64(b.cfg.Rate)) + 2*turn; written > most {
			t.Fatalf("%d bytes are in the log after %v, want at most %d", written, time.Since(began), most)
		}
		time.Sleep(50 * time.Millisecond)
	}
	// Nearly all of this time it has waited. The figures count it, and the one warning names the log.
	waited, since := p.Stats().Throttled, time.Since(began)
	if waited < 400*time.Millisecond || waited > since {
		t.Errorf("the container has waited %v in %v", waited, since)
	}
	if got := b.loop.Figures().Throttled; got < waited || got > time.Since(began) {
		t.Errorf("the figures have %v, the pump %v", got, waited)
	}
	if said := warnings.String(); strings.Count(said, "level=WARN") != 1 || !strings.Contains(said, "log="+b.path("0.log")+" ") {
		t.Errorf("the log has %s", said)
	}
	stop.Store(true)
	b.drain(p)
	if err := <-ended; err != nil {
		t.Fatal(err)
	}
	b.drain(p)
	// What a closed pump has waited stays in the figures.
	p.Close()
	if got := b.loop.Figures().Throttled; got < waited {
		t.Errorf("the figures go back from %v to %v", waited, got)
	}
	log, err := os.ReadFile(b.path("0.log"))
	if err != nil {
		t.Fatal(err)
	}
	if got := int64(bytes.Count(log, []byte("\n"))); got != lines {
		t.Errorf("%d lines are in the log, the container wrote %d", got, lines)
	}
}

// Single bytes cost the supervisor as much as large pieces, but add almost nothing to the log. So
// the rate limits how often the pump reads them.
func TestFloodOfSingleBytesIsHeldToItsRate(t *testing.T) {
	b := newBench(t)
	b.cfg.Rate = 1 << 20
	began := time.Now()
	p := b.open()
	turns := func() int64 {
		p.mu.Lock()
		defer p.mu.Unlock()
		return p.throttle.turns
	}
	var stop atomic.Bool
	ended := make(chan error, 1)
	go func() {
		var err error
		for !stop.Load() && err == nil {
			_, err = b.stdout.Write([]byte("x"))
		}
		ended <- err
	}()
	burstTurns := int64(burst) * b.cfg.Rate / turnCost
	waitFor(t, func() bool { return turns() >= burstTurns })
	time.Sleep(time.Second)
	got := turns()
	if most := burstTurns + int64(time.Since(began).Seconds()*float64(b.cfg.Rate/turnCost)) + 2; got > most {
		t.Errorf("the pump looked %d times at the output in %v, want at most %d", got, time.Since(began), most)
	}
	stop.Store(true)
	b.drain(p)
	if err := <-ended; err != nil {
		t.Fatal(err)
	}
	b.drain(p)
}

// The pump rests after the output of a container came in many small turns, for as long as there is more
// after each rest.
func TestPace(t *testing.T) {
	at := time.Unix(1000, 0)
	var c pace
	turn := func(took int, floods bool, after, want time.Duration) {
		t.Helper()
		at = at.Add(after)
		if got := c.wait(took, floods, at); got != want {
			t.Fatalf("rest after a turn of %d bytes: %v, want %v", took, got, want)
		}
	}
	const soon = 100 * time.Microsecond
	busy := func() {
		t.Helper()
		for range paceTurns - 1 {
			turn(100, false, soon, 0)
		}
	}
	busy()
	turn(100, false, soon, paceRest)
	turn(100, false, paceRest, paceRest)
	turn(0, false, paceRest, 0) // the container has paused
	busy()
	turn(0, false, soon, 0) // the pipe was empty, but the pump had not rested
	turn(100, false, soon, paceRest)
	turn(enough, false, paceRest, 0)
	// Slowly written lines do not wait.
	for range 3 * paceTurns {
		turn(100, false, paceWindow, 0)
	}
	busy()
	turn(100, true, soon, 0)
}

// A nap becomes longer while little comes, shorter while a lot does, and ends at its bounds.
func TestNap(t *testing.T) {
	var c pace
	for _, step := range []struct {
		took int
		want time.Duration
	}{
		{enough, napMin},
		{0, 2 * napMin},
		{enough, 2 * napMin},
		{wideRoom / 2, napMin},
		{wideRoom, napMin},
		{turnMax, 0},
		{0, 2 * napMin},
		{0, 4 * napMin},
		{0, 8 * napMin},
		{0, napMax},
		{0, napMax},
	} {
		if got := c.nap(step.took); got != step.want {
			t.Errorf("nap after a turn of %d bytes: %v, want %v", step.took, got, step.want)
		}
	}
}
