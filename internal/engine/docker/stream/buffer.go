package stream

import (
	"io"
	"sync"
)

// Limits of what is read from the engine and not yet delivered to a slow client, in bytes. While
// the program runs, the engine holds back the program. Once it has ended, the engine waits for two
// seconds and then drops what was not read, which is at most what its own buffers hold: about a
// megabyte. So what is read beyond the last limit is of a child that writes on.
const (
	heldWhileRunning = 256 << 10
	heldAfterEnd     = 4 << 20
)

// buffer passes bytes from the engine to a client. One goroutine writes, one reads.
type buffer struct {
	mu      sync.Mutex
	changed sync.Cond
	chunks  [][]byte
	held    int
	limit   int
	// drops is true if the output ends at the limit. Otherwise it waits for the reader.
	drops bool
	// end is what the reader gets after the last byte, nil while more may come.
	end error
	// abandoned is true when nothing is read any more.
	abandoned bool
}

// newBuffer returns a buffer whose reader may be that many bytes behind and is dropped then. With 0 the
// writer waits for it.
func newBuffer(behind int) *buffer {
	b := &buffer{limit: heldWhileRunning}
	if behind > 0 {
		b.limit, b.drops = behind, true
	}
	b.changed.L = &b.mu
	return b
}

// Write keeps a copy of p. It waits while too much is held. io.ErrClosedPipe when nothing is read
// any more, errBehind when the reader is dropped, errFull when the program has ended and the last limit is reached.
func (b *buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for b.held >= b.limit && !b.abandoned {
		if b.drops {
			return 0, errBehind
		}
		if b.limit == heldAfterEnd {
			return 0, errFull
		}
		b.changed.Wait()
	}
	if b.abandoned {
		return 0, io.ErrClosedPipe
	}
	b.chunks = append(b.chunks, append([]byte(nil), p...))
	b.held += len(p)
	b.changed.Broadcast()
	return len(p), nil
}

// Read waits for bytes, or for the end.
func (b *buffer) Read(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for len(b.chunks) == 0 {
		if b.end != nil {
			return 0, b.end
		}
		b.changed.Wait()
	}
	n := copy(p, b.chunks[0])
	if b.chunks[0] = b.chunks[0][n:]; len(b.chunks[0]) == 0 {
		b.chunks = b.chunks[1:]
	}
	b.held -= n
	b.changed.Broadcast()
	return n, nil
}

// finish says that the engine delivers no more.
func (b *buffer) finish(err error) {
	b.update(func() { b.end = err })
}

// programEnded raises the limit, so that all that the engine holds is read at once.
func (b *buffer) programEnded() {
	b.update(func() { b.limit = max(b.limit, heldAfterEnd) })
}

// abandon says that nothing is read any more.
func (b *buffer) abandon() {
	b.update(func() { b.abandoned, b.chunks, b.held = true, nil, 0 })
}

func (b *buffer) update(change func()) {
	b.mu.Lock()
	defer b.mu.Unlock()
	change()
	b.changed.Broadcast()
}
