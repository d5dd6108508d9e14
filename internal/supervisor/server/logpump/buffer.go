package logpump

import "github.com/berthrun/berth/internal/crilog"

const (
	// smallRaw is enough for a container that says something now and then. When
	// many of them do at once, their buffers are the memory that it takes.
	smallRaw = 8 << 10
	// outLimit is how many bytes of lines are written at once, but for the last
	// line that crosses the limit. Empty lines grow by a factor of 41.
	outLimit = 128 << 10
)

// buffer is what a worker needs while it works.
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

// window is how much of a stage a pump with such lines ever looks at.
func window(maxText int) int { return maxText + 1 + spliceMax }

func (w *workspace) isSmall() bool { return w.limit < outLimit }

// enlarge gives room for at least n bytes of a stage, and as much as is ever
// needed if that is more. What was in the buffer is gone.
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
