// Package progress counts what pulls and imports of images have done, and reports it. It ends
// those that no longer move. It knows no store.
package progress

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/image"
)

// reportInterval is the shortest time between two reports of one stage.
const reportInterval = 50 * time.Millisecond

// The stages of image.Progress, in their order. Waiting is reported in the place of Fetching while no layer is
// fetched because all wait for other downloads of the node: for those of the same layers, or for those that have all places.
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
	// fetched counts the bytes of the stage Fetching, size is how many that stage has. What gets a report may ask for these
	// and for now, which is progress.
	fetched, size atomic.Int64
	now           atomic.Pointer[image.Progress]
	// active transfers, and when the last byte of any came. waiting of them wait for other downloads of the node,
	// long of these longer than shownWait.
	active, waiting, long int
	last                  time.Time
	// behind counts layers that another pull fetches, and has fetched for longer than shownWait.
	behind int
	// from names those that are asked, and asked counts the requests that run, by whom they ask.
	from  string
	asked map[string]int
	// shown is the last stage that was reported.
	shown string
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
	switch name {
	case Unpacking:
		m.progress.Done = m.unpacked
	case Fetching:
		m.size.Store(total)
	}
	m.note()
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
	m.note()
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
		m.size.Store(p.Total)
	}
	m.note()
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
	m.note()
	if time.Since(m.reported) >= reportInterval {
		m.send()
	}
}

// note publishes the progress. m.mu is held.
func (m *Meter) note() {
	p := m.progress
	m.now.Store(&p)
}

// live is what has been counted. A report may call it.
func (m *Meter) live() image.Live {
	live := image.Live{Fetched: m.fetched.Load(), Size: m.size.Load()}
	if p := m.now.Load(); p != nil {
		live.Done, live.Total = p.Done, p.Total
	}
	return live
}

// stage is the stage that a report has. m.mu is held.
func (m *Meter) stage() string {
	if m.progress.Stage == Fetching && m.long+m.behind > 0 && m.long >= m.active {
		return Waiting
	}
	return m.progress.Stage
}

func (m *Meter) send() {
	if m.report == nil {
		return
	}
	m.reported = time.Now()
	p := m.progress
	p.From = m.from
	m.shown = m.stage()
	if p.Stage = m.shown; p.Stage == Waiting {
		p.Behind, p.Limited = m.behind, m.long > 0
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
		if m.stage() != m.shown && m.shown == Fetching {
			// Another layer may begin at once.
			time.AfterFunc(shownWait, func() {
				m.mu.Lock()
				defer m.mu.Unlock()
				if m.stage() != m.shown {
					m.send()
				}
			})
		}
	}
}

// Wait notes that a running transfer waits for other downloads of the node, until the caller calls end. The time of the
// wait does not count as time without progress.
func (m *Meter) Wait() (end func()) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.waiting++
	shown := m.showWait(&m.long)
	return func() {
		m.mu.Lock()
		defer m.mu.Unlock()
		m.waiting--
		m.last = time.Now()
		shown()
	}
}

// Behind notes that another pull fetches a layer. This pull waits for it until the caller calls end. The wait does not count as a transfer.
func (m *Meter) Behind() (end func()) {
	m.mu.Lock()
	defer m.mu.Unlock()
	shown := m.showWait(&m.behind)
	return func() {
		m.mu.Lock()
		defer m.mu.Unlock()
		shown()
	}
}

// showWait counts a wait in count, once it has lasted for shownWait, until end is called. m.mu is held for both calls.
func (m *Meter) showWait(count *int) (end func()) {
	shown, over := false, false
	timer := time.AfterFunc(shownWait, func() {
		m.mu.Lock()
		defer m.mu.Unlock()
		if over {
			return
		}
		shown = true
		*count++
		m.send()
	})
	return func() {
		timer.Stop()
		over = true
		if shown {
			*count--
			m.send()
		}
	}
}

// Touch notes that a byte came that is part of no stage.
func (m *Meter) Touch() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.last = time.Now()
	if m.progress.Stage != "" && m.last.Sub(m.reported) >= reportInterval {
		m.send()
	}
}

// Ask notes that a request asks who, such as "the mirror m.example", until the caller calls end.
func (m *Meter) Ask(who string) (end func()) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.asked == nil {
		m.asked = map[string]int{}
	}
	m.asked[who]++
	m.showAsked()
	return sync.OnceFunc(func() {
		m.mu.Lock()
		defer m.mu.Unlock()
		if m.asked[who]--; m.asked[who] == 0 {
			delete(m.asked, who)
		}
		m.showAsked()
	})
}

// showAsked reports who is asked if that has changed. Between two requests it is who was asked last. m.mu is held.
func (m *Meter) showAsked() {
	if len(m.asked) == 0 {
		return
	}
	from := strings.Join(slices.Sorted(maps.Keys(m.asked)), " and ")
	if from == m.from {
		return
	}
	m.from = from
	if m.progress.Stage != "" {
		m.send()
	}
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
