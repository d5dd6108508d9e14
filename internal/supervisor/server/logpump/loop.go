package logpump

import (
	"context"
	"fmt"
	"maps"
	"sync"

	"github.com/berthrun/berth/internal/crilog"
	"github.com/berthrun/berth/internal/figures"
	"github.com/berthrun/berth/internal/sys/sysfd"
)

// Loop watches the pipes of all pumps with one thread. That thread makes no call
// but epoll's; a pipe with something in it gets a worker for as long as it has.
type Loop struct {
	poller *sysfd.Poller
	gates  gates
	small  sync.Pool // of *buffer
	large  sync.Pool
	// smallSlots and largeSlots bound the buffers in use.
	smallSlots, largeSlots slots
	// ringSlots bounds the rings.
	ringSlots slots
	// locate finds the place of a container's log; tests put faults in it.
	locate func(dir, path string) place

	mu      sync.Mutex
	last    uint64
	watched map[uint64]watch
	// open are the pumps that are registered, retired is what those have done that no longer are.
	open    map[*Pump]struct{}
	retired figures.Logs
}

// watch is one pipe of one pump.
type watch struct {
	pump   *Pump
	stream crilog.Stream
}

// NewLoop makes a loop without pumps. Run must be called for it to copy output.
func NewLoop() (*Loop, error) {
	poller, err := sysfd.NewPoller()
	if err != nil {
		return nil, fmt.Errorf("cannot make a log loop: %w", err)
	}
	return &Loop{
		poller:     poller,
		gates:      gates{byDir: map[string]*gate{}},
		smallSlots: make(slots, smallSlots),
		largeSlots: make(slots, largeSlots),
		ringSlots:  make(slots, ringSlots),
		watched:    map[uint64]watch{},
		open:       map[*Pump]struct{}{},
		locate:     func(dir, path string) place { return directory{dir, path} },
	}, nil
}

// Run copies output until ctx ends, and then returns nil. Pumps whose work is
// under way finish it. Drain does not need Run.
func (l *Loop) Run(ctx context.Context) error {
	stop := context.AfterFunc(ctx, func() {
		// It can only fail when the poller is closed, and then no call waits.
		_ = l.poller.Wake()
	})
	defer stop()
	tokens := make([]uint64, 0, 64)
	for ctx.Err() == nil {
		var err error
		tokens, err = l.poller.Wait(tokens)
		if err != nil {
			return fmt.Errorf("cannot run the log loop: %w", err)
		}
		for _, token := range tokens {
			l.mu.Lock()
			w := l.watched[token]
			l.mu.Unlock()
			if w.pump != nil {
				w.pump.notify(w.stream)
			}
		}
	}
	return nil
}

// Close frees the loop. Run must have returned and all pumps must be closed.
func (l *Loop) Close() error { return l.poller.Close() }

// register gives the pump's pipes their tokens, without watching them yet.
func (l *Loop) register(p *Pump) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.open[p] = struct{}{}
	for i := range p.streams {
		if p.streams[i].pipe != nil {
			l.last++
			p.streams[i].token = l.last
			l.watched[l.last] = watch{p, p.streams[i].id}
		}
	}
}

// unregister undoes register, and ends the watch of the pipes. What the pump has done stays in the figures, in the
// same moment, because they never go back. Nothing changes it any more.
func (l *Loop) unregister(p *Pump) {
	l.mu.Lock()
	if _, open := l.open[p]; open {
		delete(l.open, p)
		addStats(&l.retired, p.Stats())
	}
	for i := range p.streams {
		delete(l.watched, p.streams[i].token)
	}
	l.mu.Unlock()
	for i := range p.streams {
		if s := &p.streams[i]; s.pipe != nil {
			// It fails only if Add did not run.
			_ = l.poller.Remove(s.pipe)
		}
	}
}

// addStats adds what a pump counts up.
func addStats(to *figures.Logs, stats Stats) {
	to.ReadBytes += uint64(stats.Read[crilog.Stdout] + stats.Read[crilog.Stderr]) //nolint:gosec // counts
	to.WrittenBytes += uint64(stats.Written)                                      //nolint:gosec // as above
	to.WrittenLines += uint64(stats.Lines)                                        //nolint:gosec // as above
	to.DiscardedBytes += uint64(stats.Discarded)                                  //nolint:gosec // as above
	to.Throttled += stats.Throttled
}

// Figures adds up all pumps of this process, those that are closed included.
func (l *Loop) Figures() figures.Logs {
	l.mu.Lock()
	sum, open := l.retired, maps.Clone(l.open)
	l.mu.Unlock() // LogError takes the locks of pumps, which register takes first
	for p := range open {
		stats := p.Stats()
		addStats(&sum, stats)
		sum.PendingBytes += uint64(max(stats.Pending, 0)) //nolint:gosec // not negative
		if p.LogError() != nil {
			sum.Faults++
		}
	}
	return sum
}
