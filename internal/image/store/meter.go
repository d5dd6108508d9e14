package store

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/image"
)

// reportInterval is the shortest time between two reports of progress.
const reportInterval = 50 * time.Millisecond

// The stages of Progress.
const (
	stageResolving = "resolving"
	stageFetching  = "fetching"
	stageUnpacking = "unpacking"
	stageDone      = "done"
)

// meter counts what a pull or an import has done and reports it.
type meter struct {
	report func(image.Progress)

	mu       sync.Mutex
	progress image.Progress
	reported time.Time
	// unpacked counts bytes of layers that are unpacked while others are fetched.
	unpacked int64
	// active transfers, and when the last byte of any came.
	active int
	last   time.Time
}

func newMeter(report func(image.Progress)) *meter { return &meter{report: report} }

// stage begins a stage with total bytes to do.
func (m *meter) stage(name string, total int64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.progress = image.Progress{Stage: name, Total: total}
	if name == stageUnpacking {
		m.progress.Done = m.unpacked
	}
	m.send()
}

// add counts n more bytes of the current stage.
func (m *meter) add(n int64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.last = time.Now()
	m.progress.Done += n
	if m.last.Sub(m.reported) >= reportInterval {
		m.send()
	}
}

// unpack counts n more bytes of layers as unpacked. They show in the stage
// "unpacking", which begins when all are fetched.
func (m *meter) unpack(n int64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.unpacked += n
	if m.progress.Stage != stageUnpacking {
		return
	}
	m.progress.Done = m.unpacked
	if time.Since(m.reported) >= reportInterval {
		m.send()
	}
}

func (m *meter) send() {
	if m.report == nil {
		return
	}
	m.reported = time.Now()
	m.report(m.progress)
}

// transfer counts a transfer from elsewhere until end is called.
func (m *meter) transfer() (end func()) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.active++
	m.last = time.Now()
	return func() {
		m.mu.Lock()
		defer m.mu.Unlock()
		m.active--
	}
}

// touch notes that a byte came that is part of no stage.
func (m *meter) touch() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.last = time.Now()
}

// idle is how long the running transfers have brought nothing.
func (m *meter) idle() time.Duration {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.active == 0 {
		return 0
	}
	return time.Since(m.last)
}

var errNoProgress = errors.New("no progress")

// guard ends the returned context when transfers bring nothing for timeout.
func (m *meter) guard(ctx context.Context, timeout time.Duration) (context.Context, func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	go func() {
		ticker := time.NewTicker(max(timeout/20, time.Millisecond))
		defer ticker.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-ticker.C:
				if m.idle() >= timeout {
					cancel(fmt.Errorf("the registry sent nothing for %s: %w: %w", timeout, errNoProgress, errs.Unavailable))
					return
				}
			}
		}
	}()
	return ctx, func() { cancel(nil) }
}
