// Package progress counts what pulls and imports of images have done, and reports it. It ends
// those that no longer move. It knows no store.
package progress

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/image"
)

// reportInterval is the shortest time between two reports of one stage.
const reportInterval = 50 * time.Millisecond

// The stages of image.Progress, in their order. Waiting is reported in the place of Fetching while no layer is
// fetched because all wait for other downloads of the node.
const (
	Resolving = "resolving"
	Fetching  = "fetching"
	Waiting   = "waiting"
	Unpacking = "unpacking"
	Done      = "done"
)

// shownWait is how long a wait for other downloads lasts before it is reported: a pull at a limited rate has many
// short ones.
const shownWait = time.Second

// Meter counts what a pull or an import has done and reports it. Its methods are safe for
// concurrent use.
type Meter struct {
	report func(image.Progress)

	mu       sync.Mutex
	progress image.Progress
	reported time.Time
	// unpacked counts bytes of layers that are unpacked while others are fetched.
	unpacked int64
	// fetched counts the bytes of the stage Fetching. What gets a report may ask for it.
	fetched atomic.Int64
	// active transfers, and when the last byte of any came. waiting of them wait for other downloads of the node,
	// long of these longer than shownWait.
	active, waiting, long int
	last                  time.Time
}

// NewMeter returns a Meter that calls report, which may be nil.
func NewMeter(report func(image.Progress)) *Meter { return &Meter{report: report} }

// Again returns a Meter that reports to the same function and has counted nothing.
func (m *Meter) Again() *Meter { return NewMeter(m.report) }

// Stage begins a stage with total bytes to do.
func (m *Meter) Stage(name string, total int64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.progress = image.Progress{Stage: name, Total: total}
	if name == Unpacking {
		m.progress.Done = m.unpacked
	}
	m.send()
}

// Add counts n more bytes of the current stage.
func (m *Meter) Add(n int64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.last = time.Now()
	m.progress.Done += n
	if m.progress.Stage == Fetching {
		m.fetched.Add(n)
	}
	if m.last.Sub(m.reported) >= reportInterval {
		m.send()
	}
}

// Set replaces all that was counted, where something else counts.
func (m *Meter) Set(p image.Progress) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.last = time.Now()
	begins := p.Stage != m.progress.Stage
	m.progress = p
	if p.Stage == Fetching {
		m.fetched.Store(max(m.fetched.Load(), p.Done))
	}
	if begins || m.last.Sub(m.reported) >= reportInterval {
		m.send()
	}
}

// Fetched returns how many bytes of layers have come so far.
func (m *Meter) Fetched() int64 {
	return m.fetched.Load()
}

// Unpack counts n more bytes of layers as unpacked. They show in the stage
// Unpacking, which begins when all are fetched.
func (m *Meter) Unpack(n int64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.unpacked += n
	if m.progress.Stage != Unpacking {
		return
	}
	m.progress.Done = m.unpacked
	if time.Since(m.reported) >= reportInterval {
		m.send()
	}
}

func (m *Meter) send() {
	if m.report == nil {
		return
	}
	m.reported = time.Now()
	p := m.progress
	if p.Stage == Fetching && m.long > 0 && m.long >= m.active {
		p.Stage = Waiting
	}
	m.report(p)
}

// Transfer counts a transfer from elsewhere until end is called.
func (m *Meter) Transfer() (end func()) {
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

// Wait notes that a running transfer waits for other downloads of the node, until the caller calls end. The time of the
// wait does not count as time without progress.
func (m *Meter) Wait() (end func()) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.waiting++
	shown, over := false, false
	timer := time.AfterFunc(shownWait, func() {
		m.mu.Lock()
		defer m.mu.Unlock()
		if over {
			return
		}
		shown = true
		m.long++
		m.send()
	})
	return func() {
		m.mu.Lock()
		defer m.mu.Unlock()
		timer.Stop()
		over = true
		m.waiting--
		m.last = time.Now()
		if shown {
			m.long--
			m.send()
		}
	}
}

// Touch notes that a byte came that is part of no stage.
func (m *Meter) Touch() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.last = time.Now()
}

// idle is how long the running transfers have brought nothing, without those that wait for other downloads.
func (m *Meter) idle() time.Duration {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.active <= m.waiting {
		return 0
	}
	return time.Since(m.last)
}

// ErrNoProgress is in the cause of a context that Guard has ended.
var ErrNoProgress = errors.New("no progress")

// Guard ends the returned context when transfers bring nothing for timeout. Its cause says so,
// and has kind Unavailable.
func (m *Meter) Guard(ctx context.Context, timeout time.Duration) (context.Context, func()) {
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
					cancel(fmt.Errorf("the registry sent nothing for %s: %w: %w", timeout, ErrNoProgress, errs.Unavailable))
					return
				}
			}
		}
	}()
	return ctx, func() { cancel(nil) }
}
