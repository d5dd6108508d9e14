// Package podlog reads containers' log files: their end, from a time on, and as
// they grow and are rotated.
package podlog

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/berthrun/berth/internal/crilog"
	"github.com/berthrun/berth/internal/errs"
)

// poll is the interval at which a growing log is read. (Logs may be on any file system; not all
// report changes.)
const poll = 100 * time.Millisecond

// Options are the part of a log to read.
type Options struct {
	// Tail is the number of lines at the end, negative for all.
	Tail int
	// Since leaves out earlier lines, if set.
	Since time.Time
	// Timestamps go before each line.
	Timestamps bool
	// Ended, if not nil, makes Copy follow the log until it is closed. Copy still reads what
	// was written before.
	Ended <-chan struct{}
}

// Copy writes the lines of the log at path to stdout and stderr. With Ended it
// follows the log into the file that takes its place after a rotation.
func Copy(ctx context.Context, path string, opts Options, stdout, stderr io.Writer) error {
	file, err := open(ctx, path, opts.Ended)
	if err != nil {
		return err
	}
	defer func() { file.Close() }()
	if opts.Tail >= 0 {
		if err := seekTail(file, opts.Tail); err != nil {
			return err
		}
	}
	p := printer{opts: &opts, stdout: stdout, stderr: stderr}
	lines := crilog.NewReader(file)
	for {
		// Checked before reading: a log that has ended does not grow any more.
		last := ended(opts.Ended)
		if err := p.print(lines); err != nil {
			return err
		}
		if last {
			return nil
		}
		next, err := successor(file, path)
		if err != nil {
			return err
		}
		if next != nil {
			// The old file may have grown since it was read.
			if err := p.print(lines); err != nil {
				next.Close()
				return err
			}
			file.Close()
			file, lines = next, crilog.NewReader(next)
			continue
		}
		if err := wait(ctx, opts.Ended); err != nil {
			return err
		}
	}
}

// open waits for the file of a log that is followed to appear.
func open(ctx context.Context, path string, end <-chan struct{}) (*os.File, error) {
	for {
		last := ended(end)
		file, err := os.Open(path)
		if err == nil {
			return file, nil
		}
		if !errors.Is(err, os.ErrNotExist) {
			return nil, fmt.Errorf("cannot open log: %w", err)
		}
		if last {
			return nil, fmt.Errorf("cannot open log: %w: %w", errs.NotFound, err)
		}
		if err := wait(ctx, end); err != nil {
			return nil, err
		}
	}
}

func seekTail(file *os.File, lines int) error {
	info, err := file.Stat()
	if err != nil {
		return fmt.Errorf("cannot find the end of log %s: %w", file.Name(), err)
	}
	at, err := crilog.TailOffset(file, info.Size(), lines)
	if err != nil {
		return err
	}
	if _, err := file.Seek(at, io.SeekStart); err != nil {
		return fmt.Errorf("cannot go to the end of log %s: %w", file.Name(), err)
	}
	return nil
}

// successor opens the file that took the old one's place, nil if none did.
func successor(old *os.File, path string) (*os.File, error) {
	now, err := os.Stat(path)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("cannot follow log: %w", err)
	}
	before, err := old.Stat()
	if err != nil {
		return nil, fmt.Errorf("cannot follow log: %w", err)
	}
	if os.SameFile(before, now) {
		return nil, nil
	}
	next, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("cannot follow log: %w", err)
	}
	return next, nil
}

func ended(end <-chan struct{}) bool {
	if end == nil {
		return true
	}
	select {
	case <-end:
		return true
	default:
		return false
	}
}

func wait(ctx context.Context, end <-chan struct{}) error {
	timer := time.NewTimer(poll)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-end:
	case <-ctx.Done():
		return ctx.Err()
	}
	return nil
}

type printer struct {
	opts           *Options
	stdout, stderr io.Writer
	// midLine reports whether a stream's last piece was partial; then the next piece gets no
	// timestamp.
	midLine map[crilog.Stream]bool
}

// print writes every whole line that is there now.
func (p *printer) print(lines *crilog.Reader) error {
	for {
		line, err := lines.Next()
		switch {
		case errors.Is(err, io.EOF):
			return nil
		case errors.Is(err, crilog.ErrMalformed):
			continue
		case err != nil:
			return fmt.Errorf("cannot read log: %w", err)
		}
		if line.Time.Before(p.opts.Since) {
			continue
		}
		if err := p.line(&line); err != nil {
			return err
		}
	}
}

func (p *printer) line(line *crilog.Line) error {
	out := p.stdout
	if line.Stream == crilog.Stderr {
		out = p.stderr
	}
	text := line.Text
	if p.opts.Timestamps && !p.midLine[line.Stream] {
		text = append([]byte(line.Time.Format(time.RFC3339Nano)+" "), text...)
	}
	if p.midLine == nil {
		p.midLine = map[crilog.Stream]bool{}
	}
	p.midLine[line.Stream] = line.Partial
	if !line.Partial {
		text = append(text[:len(text):len(text)], '\n')
	}
	if _, err := out.Write(text); err != nil {
		return fmt.Errorf("cannot print log: %w", err)
	}
	return nil
}
