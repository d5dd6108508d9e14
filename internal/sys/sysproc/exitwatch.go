package sysproc

import (
	"context"
	"fmt"
	"os"
	"sync"

	"github.com/berthrun/berth/internal/sys/sysfd"
)

// ExitWatch waits for the ends of many processes with one thread and no goroutine for each.
type ExitWatch struct {
	poller *sysfd.Poller

	mu      sync.Mutex
	last    uint64
	waiting map[uint64]awaited
}

// awaited is a process that has not ended.
type awaited struct {
	pidfd *os.File
	ended func()
}

// NewExitWatch makes a watch without processes. Run must be called for it to notice ends.
func NewExitWatch() (*ExitWatch, error) {
	poller, err := sysfd.NewPoller()
	if err != nil {
		return nil, fmt.Errorf("cannot watch processes: %w", err)
	}
	return &ExitWatch{poller: poller, waiting: make(map[uint64]awaited)}, nil
}

// Add has ended called once, on a goroutine of its own, when the process of pidfd has ended: it may be a
// zombie. pidfd stays open until then. The process may have ended already.
func (w *ExitWatch) Add(pidfd *os.File, ended func()) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.last++
	if err := w.poller.Add(pidfd, w.last); err != nil {
		return fmt.Errorf("cannot watch a process: %w", err)
	}
	w.waiting[w.last] = awaited{pidfd, ended}
	return nil
}

// Run notices ends until ctx ends, and then returns nil.
func (w *ExitWatch) Run(ctx context.Context) error {
	stop := context.AfterFunc(ctx, func() {
		// It can only fail when the poller is closed, and then no call waits.
		_ = w.poller.Wake()
	})
	defer stop()
	tokens := make([]uint64, 0, 64)
	for ctx.Err() == nil {
		var err error
		if tokens, err = w.poller.Wait(tokens); err != nil {
			return fmt.Errorf("cannot watch processes: %w", err)
		}
		if ctx.Err() != nil {
			return nil
		}
		for _, token := range tokens {
			if one, known := w.take(token); known {
				go one.ended()
			}
		}
	}
	return nil
}

// take ends the watch of one process.
func (w *ExitWatch) take(token uint64) (awaited, bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	one, known := w.waiting[token]
	delete(w.waiting, token)
	if known {
		// Others may hold duplicates, with which the kernel would keep it. It fails only if pidfd is closed.
		_ = w.poller.Remove(one.pidfd)
	}
	return one, known
}

// Close frees the watch. Run must have returned.
func (w *ExitWatch) Close() error { return w.poller.Close() }
