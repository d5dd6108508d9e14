package child

import (
	"fmt"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berthrun/berth/internal/errs"
)

// A few bytes of a layer can name paths through links and directories whose lookup takes the kernel minutes. What a layer
// may take of a processor is bounded by what it has: a slow machine takes a tenth of it for usual layers. Time in which the
// helper waits does not count.
const (
	cpuBase  = 20 * time.Second
	cpuEntry = 2 * time.Millisecond
	cpuByte  = 250 * time.Nanosecond
	// cpuInterval is how often the time is read.
	cpuInterval = 200 * time.Millisecond
)

// progress is how far a layer has come.
type progress struct {
	entries atomic.Int64
	// bytes are those of the archive, and those of files, which are more where files are sparse.
	bytes atomic.Int64
	// at is the current entry, nil before the first one.
	at atomic.Pointer[string]
}

// allowed is the processor time of a layer that has come so far.
func (p *progress) allowed() time.Duration {
	return cpuBase + time.Duration(p.entries.Load())*cpuEntry + time.Duration(p.bytes.Load())*cpuByte
}

// where says in messages how far the layer has come.
func (p *progress) where() string {
	if at := p.at.Load(); at != nil {
		return fmt.Sprintf("in or after entry %.200q", *at)
	}
	return "before its first entry"
}

// within runs fn, and returns Invalid once this process has taken more time than allowed. fn may still run then: the process
// has to end.
func (p *progress) within(cpu func() time.Duration, fn func() (Result, error)) (Result, error) {
	type outcome struct {
		result Result
		err    error
	}
	done := make(chan outcome, 1)
	go func() {
		result, err := fn()
		done <- outcome{result, err}
	}()
	ticker := time.NewTicker(cpuInterval)
	defer ticker.Stop()
	for {
		select {
		case o := <-done:
			return o.result, o.err
		case <-ticker.C:
			if taken, allowed := cpu(), p.allowed(); taken > allowed {
				return Result{}, fmt.Errorf("cannot apply the layer, %s: its %d entries with %d bytes have taken %s of processor time, at most %s are allowed: %w",
					p.where(), p.entries.Load(), p.bytes.Load(), taken.Round(time.Second), allowed.Round(time.Second), errs.Invalid)
			}
		}
	}
}

// ownCPU is the processor time of this process.
func ownCPU() time.Duration {
	var usage unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &usage); err != nil {
		return 0
	}
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}
