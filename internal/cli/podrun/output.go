package podrun

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"sync"

	"github.com/berthrun/berth/internal/criclient/podlog"
	"github.com/berthrun/berth/internal/errs"
)

// multiplexer prints what several containers write, line by line, so that their
// lines do not mix, and each with its container's name when there are several.
type multiplexer struct {
	named    bool
	prefix   string
	out, err io.Writer
	mu       sync.Mutex // serialises lines
}

func newMultiplexer(named bool, prefix string, out, errOut io.Writer) *multiplexer {
	return &multiplexer{named: named, prefix: prefix, out: out, err: errOut}
}

// follow prints an attempt's log until it has ended and all of it is printed.
func (m *multiplexer) follow(ctx context.Context, a *attempt, path string) {
	out := &lineWriter{m: m, to: m.out, name: a.spec.Name}
	errOut := &lineWriter{m: m, to: m.err, name: a.spec.Name}
	err := podlog.Copy(ctx, path, podlog.Options{Tail: -1, Ended: a.ended}, out, errOut)
	out.flush()
	errOut.flush()
	if err != nil {
		m.say(m.err, a.spec.Name+": "+errs.Message(err))
	}
}

func (m *multiplexer) say(to io.Writer, text string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	fmt.Fprintf(to, "berth: %s%s\n", m.prefix, text)
}

// lineWriter passes whole lines on.
type lineWriter struct {
	m    *multiplexer
	to   io.Writer
	name string
	part []byte
}

// Write implements io.Writer.
func (w *lineWriter) Write(p []byte) (int, error) {
	w.part = append(w.part, p...)
	for {
		i := bytes.IndexByte(w.part, '\n')
		if i < 0 {
			return len(p), nil
		}
		if err := w.line(w.part[:i+1]); err != nil {
			return 0, err
		}
		w.part = w.part[i+1:]
	}
}

// flush ends a line that the container did not end.
func (w *lineWriter) flush() {
	if len(w.part) > 0 {
		//nolint:errcheck // the last words, to a terminal that may be gone
		w.line(append(w.part, '\n'))
		w.part = nil
	}
}

func (w *lineWriter) line(line []byte) error {
	w.m.mu.Lock()
	defer w.m.mu.Unlock()
	if w.m.named {
		line = append([]byte(w.m.prefix+w.name+" | "), line...)
	}
	_, err := w.to.Write(line)
	return err
}
