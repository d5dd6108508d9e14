package logpump

import (
	"bytes"
	"os"
	"sync/atomic"
	"testing"
	"time"

	"github.com/berthrun/berth/internal/crilog"
)

func TestThrottle(t *testing.T) {
	at := time.Unix(1000, 0)
	second := func(n float64) time.Time { return at.Add(time.Duration(n * float64(time.Second))) }
	th := newThrottle(100)
	for _, step := range []struct {
		total int64
		now   float64
		want  time.Duration
	}{
		{1000, 0, 0},                      // the burst
		{1050, 0, 500 * time.Millisecond}, // half a second's worth more
		{1050, 0.5, 0},                    // it was waited for
		{1250, 1.5, time.Second},
		{1250, 100, 0}, // a long rest earns a burst and no more
		{2250, 100, 0},
		{2260, 100, 100 * time.Millisecond},
		{2260, 50, 100 * time.Millisecond}, // a clock that goes back earns nothing
	} {
		if got := th.wait(step.total, second(step.now)); got != step.want {
			t.Errorf("%d bytes after %v s: wait %v, want %v", step.total, step.now, got, step.want)
		}
	}
	none := newThrottle(0)
	if got := none.wait(1<<60, at); got != 0 {
		t.Errorf("without a rate: wait %v", got)
	}
}

// A flood of empty lines, which grow by a factor of 41 on their way to the log, is
// held to the rate. Each line is in the log nevertheless, and the end of the
// container does not wait.
func TestFloodIsHeldToItsRate(t *testing.T) {
	b := newBench(t)
	b.cfg.Rate = 1 << 20
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
	// The burst is gone. What one turn writes may be on top of it.
	const turn = int64(spliceMax * crilog.Overhead)
	for range 20 {
		written := p.Stats().Written
		if most := burst*b.cfg.Rate + int64(time.Since(began).Seconds()*float64(b.cfg.Rate)) + 2*turn; written > most {
			t.Fatalf("%d bytes are in the log after %v, want at most %d", written, time.Since(began), most)
		}
		time.Sleep(50 * time.Millisecond)
	}
	stop.Store(true)
	b.drain(p)
	if err := <-ended; err != nil {
		t.Fatal(err)
	}
	b.drain(p)
	log, err := os.ReadFile(b.path("0.log"))
	if err != nil {
		t.Fatal(err)
	}
	if got := int64(bytes.Count(log, []byte("\n"))); got != lines {
		t.Errorf("%d lines are in the log, the container wrote %d", got, lines)
	}
}
