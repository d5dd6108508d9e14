package top

import (
	"context"
	"fmt"
	"strings"
	"sync"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berthrun/berth/internal/cli/top/screen"
	"github.com/berthrun/berth/internal/criclient"
	"github.com/berthrun/berth/internal/criclient/podlog"
	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/printable"
)

// The log on the screen is bounded: by lines, and by the bytes of each.
const (
	logLines     = 2000
	logLineBytes = 4096
	// logTail is how many lines before now are read.
	logTail = 1000
)

// logShown is the log of one container on the screen.
type logShown struct {
	title  string
	buffer *logBuffer
	// first is the number of the first line on the screen, from the begin of what was read. With follow the last lines
	// are on it.
	first  int
	follow bool
	// column is the first column on the screen.
	column int
	// stop ends the reading.
	stop func()
}

// logBuffer takes what is written to it as lines, and keeps the last ones. It is safe for concurrent use.
type logBuffer struct {
	mu sync.Mutex
	// dropped is how many lines were before those of lines. partial is the begin of the next one.
	dropped int
	lines   []string
	partial []byte
	// ended is true when the log grows no more, failure is why it cannot be read.
	ended   bool
	failure string
	// changed has one value after a change.
	changed chan struct{}
}

func newLogBuffer() *logBuffer { return &logBuffer{changed: make(chan struct{}, 1)} }

// Write implements io.Writer.
func (b *logBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for rest := p; len(rest) > 0; {
		piece, after, whole := cutLine(rest)
		if room := logLineBytes - len(b.partial); room > 0 {
			b.partial = append(b.partial, piece[:min(len(piece), room)]...)
		}
		if whole {
			b.lines = append(b.lines, printable.Text(strings.TrimSuffix(string(b.partial), "\r")))
			b.partial = b.partial[:0]
		}
		rest = after
	}
	if excess := len(b.lines) - logLines; excess > logLines/4 {
		b.dropped += excess
		b.lines = append([]string(nil), b.lines[excess:]...)
	}
	b.notify()
	return len(p), nil
}

func cutLine(p []byte) (piece, after []byte, whole bool) {
	for i, c := range p {
		if c == '\n' {
			return p[:i], p[i+1:], true
		}
	}
	return p, nil, false
}

func (b *logBuffer) end(err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.ended = true
	if err != nil {
		b.failure = printable.Text(errs.Message(err))
	}
	b.notify()
}

// notify is called with b.mu held.
func (b *logBuffer) notify() {
	select {
	case b.changed <- struct{}{}:
	default:
	}
}

// window returns n lines from the line of a number on, and the numbers of the first and behind the last that there
// are.
func (b *logBuffer) window(from, n int) (shown []string, first, behind int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	first, behind = b.dropped, b.dropped+len(b.lines)
	from = max(min(from, behind), first)
	return append(shown, b.lines[from-first:min(from-first+n, len(b.lines))]...), first, behind
}

func (b *logBuffer) state() (ended bool, failure string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.ended, b.failure
}

// readLog reads the log of a container into a buffer until ctx ends, or the container has ended.
func readLog(ctx context.Context, conn *criclient.Conn, id string, to *logBuffer) error {
	status, err := conn.Runtime.ContainerStatus(ctx, &runtimeapi.ContainerStatusRequest{ContainerId: id})
	if err != nil {
		return err
	}
	path := status.GetStatus().GetLogPath()
	if path == "" {
		return fmt.Errorf("the container has no log file: %w", errs.State)
	}
	opts := podlog.Options{Tail: logTail, Ended: podlog.AwaitEnd(ctx, conn.Runtime, id)}
	return podlog.Copy(ctx, path, opts, to, to)
}

// renderLog shows the log without the head of the other views: lines are what the user wants.
func (m *model) renderLog() []screen.Line {
	l := m.log
	room := m.height - 2
	_, first, behind := l.buffer.window(0, 0)
	if l.follow {
		l.first = behind - room
	}
	l.first = max(min(l.first, behind-room), first)
	shown, _, _ := l.buffer.window(l.first, room)
	state := "follows"
	ended, failure := l.buffer.state()
	switch {
	case failure != "":
		state = failure
	case ended:
		state = "the container has ended"
	case !l.follow:
		state = fmt.Sprintf("%d more below", max(behind-l.first-room, 0))
	}
	title := screen.Left("log of "+l.title, m.width-screen.Width(state)-1)
	lines := []screen.Line{screen.Text(title, screen.Bold).Add(" "+state, screen.Plain)}
	for _, s := range shown {
		lines = append(lines, screen.Text(screen.From(s, l.column), screen.Plain))
	}
	if len(shown) == 0 && failure == "" {
		lines = append(lines, screen.Text("no line so far", screen.Dim))
	}
	return append(screen.Fill(lines, m.height-1), m.foot("q back  arrows PgUp PgDn scroll  Home begin  End f follow"))
}
