// Package output prints what several containers write.
package output

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"sync"

	"github.com/berthrun/berth/internal/criclient/podlog"
	"github.com/berthrun/berth/internal/errs"
)

// Multiplexer prints what several containers write, line by line, so that their
// lines do not mix, and each with its container's name when there are several.
type Multiplexer struct {
	named    bool
	prefix   string
	out, err io.Writer
	mu       sync.Mutex // serialises lines
}

// New returns a multiplexer. named puts the name of a container before its lines, prefix what names
// the pod.
func New(named bool, prefix string, out, errOut io.Writer) *Multiplexer {
	return &Multiplexer{named: named, prefix: prefix, out: out, err: errOut}
}

// Follow prints a container's log until ended is closed and all of it is printed.
func (m *Multiplexer) Follow(ctx context.Context, name string, ended <-chan struct{}, path string) {
	out := &lineWriter{m: m, to: m.out, name: name}
	errOut := &lineWriter{m: m, to: m.err, name: name}
	err := podlog.Copy(ctx, path, podlog.Options{Tail: -1, Ended: ended}, out, errOut)
	out.flush()
	errOut.flush()
	if err != nil {
		m.Say(m.err, name+": "+errs.Message(err))
	}
}

// Say prints a line of berth itself.
func (m *Multiplexer) Say(to io.Writer, text string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	fmt.Fprintf(to, "berth: %s%s\n", m.prefix, text)
}

// lineWriter passes whole lines on.
type lineWriter struct {
	m    *Multiplexer
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
		//nolint:errcheck // the last line, to a terminal that may be gone
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
