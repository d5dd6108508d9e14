package provider

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"regexp"
	"strings"
	"sync"
	"time"

	"github.com/berthrun/berth/internal/cluster/provider/command"
	"github.com/berthrun/berth/internal/errs"
)

// upPattern matches the line in a node's log when systemd is up, or when kind's entrypoint has
// found that there is nothing to wait for. An earlier command may end up in the node's first
// cgroup, which systemd needs empty.
const upPattern = `Reached target .*Multi-User System.*|detected cgroup v1`

var errUp = errors.New("systemd is up")

// ready waits until systemd of a node is up. since is the time of the node's start; "" if its log
// has no other run.
func (e *CLI) ready(ctx context.Context, name, since string, wait time.Duration) error {
	deadline, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	deadline, up := context.WithCancelCause(deadline)
	defer up(nil)
	w := NewBootLog(func() { up(errUp) })
	args := []string{"logs", "-f"}
	if since != "" {
		args = append(args, "--since", since)
	}
	err := e.run.Run(deadline, command.Call{Args: append(args, name), Stdout: w, Stderr: w, Guest: true})
	switch {
	case w.Up():
		return nil
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case err == nil, deadline.Err() != nil:
		return e.notUp(ctx, name, w, wait, deadline.Err() != nil)
	}
	return fmt.Errorf("cannot read the log of %s: %w", name, err)
}

// notUp says what happened instead of systemd's start.
func (e *CLI) notUp(ctx context.Context, name string, w *BootLog, wait time.Duration, late bool) error {
	state := "nothing is known of its state"
	if found, err := e.inspect(ctx, name); err == nil && len(found) == 1 {
		state = "it is " + found[0].State
		if !found[0].Running {
			state = fmt.Sprintf("it is %s, status %d", found[0].State, found[0].ExitCode)
		}
	}
	return w.NotUp(wait, late, state)
}

// BootLog looks for systemd's start in a node's output.
type BootLog struct {
	pattern *regexp.Regexp
	found   func()

	mu    sync.Mutex
	open  []byte // the incomplete last line
	lines []string
	up    bool
}

// NewBootLog calls found, once, when systemd is up.
func NewBootLog(found func()) *BootLog {
	return &BootLog{pattern: regexp.MustCompile(upPattern), found: found}
}

// NotUp is the error for a node that ended, or took longer than it may, without systemd. state
// is that of its container, in words.
func (w *BootLog) NotUp(wait time.Duration, late bool, state string) error {
	kind, why := errs.State, "the container ended"
	if late {
		kind, why = errs.Deadline, fmt.Sprintf("%s passed", wait)
	}
	lines := "its log is empty; is the image one of a node?"
	if last := w.last(); len(last) > 0 {
		lines = "its log ends with:\n  " + strings.Join(last, "\n  ")
	}
	return fmt.Errorf("%w: could not find a log line that matches %q: %s, %s; %s", kind, upPattern, why, state, lines)
}

// Write implements io.Writer.
func (w *BootLog) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.open = append(w.open, p...)
	for {
		line, rest, ended := bytes.Cut(w.open, []byte("\n"))
		if !ended {
			return len(p), nil
		}
		w.open = rest
		w.see(plain(string(line)))
	}
}

func (w *BootLog) see(line string) {
	if line == "" || w.up {
		return
	}
	const kept = 10
	w.lines = append(w.lines, line)
	w.lines = w.lines[max(0, len(w.lines)-kept):]
	if w.pattern.MatchString(line) {
		w.up = true
		w.found()
	}
}

// Up reports whether systemd is.
func (w *BootLog) Up() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.up
}

// last are the last lines, including an incomplete one.
func (w *BootLog) last() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	if line := plain(string(w.open)); line != "" {
		return append(w.lines, line)
	}
	return w.lines
}

// plain is a line without colour codes.
func plain(line string) string {
	return strings.TrimSpace(regexp.MustCompile("\x1b\\[[0-9;?]*[A-Za-z]").ReplaceAllString(line, ""))
}

// shared lets two streams write to one writer.
type shared struct {
	mu sync.Mutex
	to io.Writer
}

func (s *shared) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.to.Write(p)
}
