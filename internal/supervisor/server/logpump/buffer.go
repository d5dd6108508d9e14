package logpump

import "github.com/berthrun/berth/internal/crilog"

const (
	// smallRaw is enough for a container that writes a line now and then. When many
	// such containers write at once, their buffers dominate the memory in use.
	smallRaw = 8 << 10
	// outLimit is how many bytes of lines are written at once, but for the last
	// line that crosses the limit. Empty lines grow by a factor of 41.
	outLimit = 128 << 10
)

// buffer is the memory of a worker while it works.
type buffer struct {
	// raw holds a piece of a stage, out the lines made of it.
	raw, out []byte
	// limit is outLimit, or less in a small buffer.
	limit int
}

// workspace is a buffer that starts small and becomes large when it must.
type workspace struct {
	*buffer
	loop    *Loop
	maxText int
}

func (l *Loop) workspace(maxText int) *workspace {
	buf, _ := l.small.Get().(*buffer)
	if buf == nil {
		buf = &buffer{
			raw:   make([]byte, smallRaw),
			out:   make([]byte, 0, 2*smallRaw+2*crilog.Overhead),
			limit: smallRaw,
		}
	}
	return &workspace{buf, l, maxText}
}

// window is the largest part of a stage that a pump with such lines reads at once.
func window(maxText int) int { return maxText + 1 + spliceMax }

func (w *workspace) isSmall() bool { return w.limit < outLimit }

// enlarge makes room for at least n bytes of a stage, and for the largest piece if that
// is more. It drops the content of the buffer.
func (w *workspace) enlarge(n int) {
	if w.isSmall() {
		w.loop.small.Put(w.buffer)
		w.buffer, _ = w.loop.large.Get().(*buffer)
	}
	if w.buffer == nil {
		w.buffer = &buffer{out: make([]byte, 0, outLimit+crilog.DefaultMaxText+crilog.Overhead), limit: outLimit}
	}
	if n = max(n, window(w.maxText)); len(w.raw) < n {
		w.raw = make([]byte, n)
	}
}

// release gives the buffer to the next worker.
func (w *workspace) release() {
	if w.isSmall() {
		w.loop.small.Put(w.buffer)
	} else {
		w.loop.large.Put(w.buffer)
	}
	w.buffer = nil
}
