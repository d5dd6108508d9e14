package logpump

import (
	"sync"
	"time"

	"github.com/berthrun/berth/internal/crilog"
)

const (
	// smallRaw is enough for a container that writes a line now and then. When many
	// such containers write at once, their buffers dominate the memory in use.
	smallRaw = 8 << 10
	// batchMax is how much output a large buffer takes at once.
	batchMax = 256 << 10
	// outLimit is how many bytes of lines are written at once, but for the last
	// line that crosses the limit. Empty lines grow by a factor of 41.
	outLimit = 384 << 10
	// smallSlots and largeSlots are how many workers may have a small and a large buffer
	// at the same time. They bound the memory of all pumps together, whatever the number
	// of containers is.
	smallSlots = 64
	largeSlots = 8
	// lendAfter is how long a turn keeps its slots. A turn takes a few milliseconds, but for
	// a file system that hangs. Then the containers of other pods need the slots: the gate
	// bounds how many buffers wait for one log directory.
	lendAfter = slowAfter
)

// buffer is the memory of a worker while it works.
type buffer struct {
	// raw holds a piece of a stage, out the lines made of it.
	raw, out []byte
	// limit is outLimit, or less in a small buffer.
	limit int
}

// workspace is a buffer that starts small and becomes large when it must. It belongs to one
// turn of a worker.
type workspace struct {
	*buffer
	loop    *Loop
	maxText int

	lend *time.Timer
	mu   sync.Mutex
	held []slots
}

// workspace waits for a slot, and returns a small buffer; an error when done is closed. The
// caller is behind the gate of its log directory.
func (l *Loop) workspace(maxText int, done <-chan struct{}) (*workspace, error) {
	if err := l.smallSlots.take(done, "a buffer"); err != nil {
		return nil, err
	}
	buf, _ := l.small.Get().(*buffer)
	if buf == nil {
		buf = &buffer{
			raw:   make([]byte, smallRaw),
			out:   make([]byte, 0, 2*smallRaw+2*crilog.Overhead),
			limit: smallRaw,
		}
	}
	w := &workspace{buffer: buf, loop: l, maxText: maxText, held: []slots{l.smallSlots}}
	w.lend = time.AfterFunc(lendAfter, w.freeSlots)
	return w, nil
}

// freeSlots lets other workers have the workspace's slots.
func (w *workspace) freeSlots() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, s := range w.held {
		s.free()
	}
	w.held = nil
}

// window is the largest part of a stage that a pump with such lines reads at once.
func window(maxText int) int { return maxText + 1 + batchMax }

func (w *workspace) isSmall() bool { return w.limit < outLimit }

// enlarge makes room for at least n bytes of a stage, and for the largest piece if that
// is more. It drops the content of the buffer. An error means that done was closed while
// it waited for a slot.
func (w *workspace) enlarge(n int, done <-chan struct{}) error {
	if w.isSmall() {
		if err := w.loop.largeSlots.take(done, "a large buffer"); err != nil {
			return err
		}
		w.mu.Lock()
		w.held = append(w.held, w.loop.largeSlots)
		w.mu.Unlock()
		w.lend.Reset(lendAfter)
		w.loop.small.Put(w.buffer)
		if w.buffer, _ = w.loop.large.Get().(*buffer); w.buffer == nil {
			w.buffer = &buffer{out: make([]byte, 0, outLimit+crilog.DefaultMaxText+crilog.Overhead), limit: outLimit}
		}
	}
	if n = max(n, window(w.maxText)); len(w.raw) < n {
		w.raw = make([]byte, n)
	}
	return nil
}

// release gives the buffer and the slots to the next worker.
func (w *workspace) release() {
	w.lend.Stop()
	if w.isSmall() {
		w.loop.small.Put(w.buffer)
	} else {
		w.loop.large.Put(w.buffer)
	}
	w.buffer = nil
	w.freeSlots()
}
