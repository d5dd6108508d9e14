package exits

import "sync"

// waiters lets goroutines wait for the exit of containers.
type waiters struct {
	mu      sync.Mutex
	waiting map[string]chan struct{}
}

func newWaiters() *waiters { return &waiters{waiting: map[string]chan struct{}{}} }

// next returns a channel that is closed by the next notify of the id.
func (w *waiters) next(id string) <-chan struct{} {
	w.mu.Lock()
	defer w.mu.Unlock()
	ch := w.waiting[id]
	if ch == nil {
		ch = make(chan struct{})
		w.waiting[id] = ch
	}
	return ch
}

// notify wakes the goroutines that wait for the id: its record says now that it has ended,
// or there is no record any more.
func (w *waiters) notify(id string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if ch := w.waiting[id]; ch != nil {
		close(ch)
		delete(w.waiting, id)
	}
}
