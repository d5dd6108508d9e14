package once

import (
	"context"
	"sync"
)

// Keys are locks by name that can be waited for with a context. The zero
// value is ready.
type Keys struct {
	mu   sync.Mutex
	held map[string]chan struct{}
}

// Lock takes key, or ends with the context's cause.
func (l *Keys) Lock(ctx context.Context, key string) (unlock func(), err error) {
	for {
		l.mu.Lock()
		if l.held == nil {
			l.held = map[string]chan struct{}{}
		}
		free, taken := l.held[key]
		if !taken {
			free = make(chan struct{})
			l.held[key] = free
			l.mu.Unlock()
			return func() {
				l.mu.Lock()
				delete(l.held, key)
				l.mu.Unlock()
				close(free)
			}, nil
		}
		l.mu.Unlock()
		select {
		case <-free:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}
