package job

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/berthrun/berth/internal/errs"
)

// Update is a job at one moment: when a watch began, when it reached a stage, or when it ended.
type Update struct {
	Info
	// Ended says that the job has ended, with Result, one of the results of jobs, and Err.
	Ended  bool
	Result string
	Err    error
}

// maxUpdates is how many updates may wait for one watch.
const maxUpdates = 4096

// watches are those who follow the jobs of a table. The zero value is ready.
type watches struct {
	// any is 0 while there are none, so that a job pays nothing.
	any atomic.Int32

	mu     sync.Mutex
	closed bool
	all    map[*Watch]struct{}
}

// Watch is one reader of updates.
type Watch struct {
	of   *watches
	news chan struct{}
	// queue and err are guarded by watches.mu.
	queue []Update
	err   error
}

// Watch follows all jobs, beginning with those that run. The caller calls Cancel. Unavailable after CloseWatches.
func (t *Table) Watch() (*Watch, error) {
	t.mu.Lock() // before that of the watches, as jobs that begin take both
	defer t.mu.Unlock()
	t.watches.mu.Lock()
	defer t.watches.mu.Unlock()
	if t.watches.closed {
		return nil, ErrShutdown
	}
	w := &Watch{of: &t.watches, news: make(chan struct{}, 1)}
	for _, info := range t.list() {
		w.queue = append(w.queue, Update{Info: info})
	}
	if t.watches.all == nil {
		t.watches.all = map[*Watch]struct{}{}
	}
	t.watches.all[w] = struct{}{}
	t.watches.any.Add(1)
	w.wake()
	return w, nil
}

// CloseWatches ends all watches.
func (t *Table) CloseWatches() {
	t.watches.mu.Lock()
	defer t.watches.mu.Unlock()
	t.watches.closed = true
	for w := range t.watches.all {
		t.watches.end(w, ErrShutdown)
	}
}

// publish queues an update for each watch.
func (w *watches) publish(update Update) {
	if w.any.Load() == 0 {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	for watch := range w.all {
		if len(watch.queue) >= maxUpdates {
			watch.queue = nil
			w.end(watch, fmt.Errorf("the client reads the changes of jobs too slowly; watch again: %w", errs.Exhausted))
			continue
		}
		watch.queue = append(watch.queue, update)
		watch.wake()
	}
}

// end ends a watch. w.mu is held.
func (w *watches) end(watch *Watch, err error) {
	if _, there := w.all[watch]; !there {
		return
	}
	delete(w.all, watch)
	w.any.Add(-1)
	watch.err = err
	watch.wake()
}

func (w *Watch) wake() {
	select {
	case w.news <- struct{}{}:
	default: // it has been woken
	}
}

// Next waits for updates and returns all that wait, in order. It fails when ctx ends, after CloseWatches, and for a
// reader that was too slow.
func (w *Watch) Next(ctx context.Context) ([]Update, error) {
	for {
		w.of.mu.Lock()
		queue, err := w.queue, w.err
		w.queue = nil
		w.of.mu.Unlock()
		if len(queue) > 0 {
			return queue, nil
		}
		if err != nil {
			return nil, err
		}
		select {
		case <-w.news:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}

// Cancel ends the watch.
func (w *Watch) Cancel() {
	w.of.mu.Lock()
	defer w.of.mu.Unlock()
	w.of.end(w, context.Canceled)
}
