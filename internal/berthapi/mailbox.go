package berthapi

import (
	"sync"

	"github.com/berthrun/berth/internal/image"
)

// mailbox holds one letter: a newer one takes the place of one that nobody has
// taken yet, so that put never waits.
type mailbox struct {
	mu     sync.Mutex
	newest chan image.Progress
	closed bool
}

func (m *mailbox) put(p image.Progress) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed {
		return
	}
	select {
	case <-m.newest:
	default:
	}
	m.newest <- p
}

func (m *mailbox) close() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.closed = true
	close(m.newest)
}
