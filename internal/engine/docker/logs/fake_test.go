package logs

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"strconv"
	"sync"
	"time"

	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/client"

	"github.com/berthrun/berth/internal/crilog"
	"github.com/berthrun/berth/internal/errs"
)

// fakeEngine is an engine with one container.
type fakeEngine struct {
	mu      sync.Mutex
	changed chan struct{}
	logged  []message
	status  container.ContainerState
	tty     bool
	// filters is true for an engine that filters each message by its time, as 20.10 does.
	filters bool
	// dropsEnd is true for an engine that ends a stream before it has delivered the last
	// messages of a container that ends, as 20.10 does.
	dropsEnd bool
	// cut is after how many bytes a stream breaks, 0 for never; it is taken by one stream.
	cut int
	// down is the error of all calls, damaged is the index of a message that cannot be read.
	down    error
	damaged int
	streams int
	// driver is the logging driver. late are messages that it stores after the end, one before
	// each stream that begins then, and begun are the times from which those streams began.
	driver string
	late   []message
	begun  []string
}

func newFakeEngine() *fakeEngine {
	return &fakeEngine{changed: make(chan struct{}), status: container.StateRunning, damaged: -1}
}

// change changes the engine and wakes the streams.
func (e *fakeEngine) change(do func()) {
	e.mu.Lock()
	defer e.mu.Unlock()
	do()
	close(e.changed)
	e.changed = make(chan struct{})
}

func (e *fakeEngine) print(stream crilog.Stream, at int64, raw string) {
	e.change(func() { e.logged = append(e.logged, message{at: at, stream: stream, raw: []byte(raw)}) })
}

func (e *fakeEngine) end() { e.change(func() { e.status = container.StateExited }) }

func (e *fakeEngine) ContainerInspect(ctx context.Context, _ string, _ client.ContainerInspectOptions) (client.ContainerInspectResult, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.down != nil {
		return client.ContainerInspectResult{}, e.down
	}
	return client.ContainerInspectResult{Container: container.InspectResponse{
		State:      &container.State{Status: e.status, Running: e.status == container.StateRunning},
		HostConfig: &container.HostConfig{LogConfig: container.LogConfig{Type: e.driver}},
	}}, ctx.Err()
}

func (e *fakeEngine) ContainerLogs(ctx context.Context, _ string, opts client.ContainerLogsOptions) (client.ContainerLogsResult, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.down != nil {
		return nil, e.down
	}
	if !opts.ShowStdout || !opts.ShowStderr || !opts.Timestamps {
		return nil, fmt.Errorf("%+v: %w", opts, errs.Invalid)
	}
	e.streams++
	if e.status == container.StateExited && opts.Tail == "all" {
		if e.begun = append(e.begun, opts.Since); len(e.begun) > 1 && len(e.late) > 0 {
			e.logged, e.late = append(e.logged, e.late[0]), e.late[1:]
		}
	}
	from, to := io.Pipe()
	out := &cutWriter{to: to, left: -1}
	if e.cut > 0 && opts.Tail == "all" {
		out.left, e.cut = e.cut, 0
	}
	since := int64(0)
	if opts.Since != "" {
		seconds, err := strconv.ParseFloat(opts.Since, 64)
		if err != nil {
			return nil, err
		}
		// A float has no nanoseconds; a little too early is allowed.
		since = int64((seconds - 1e-3) * 1e9)
	}
	next := 0
	if n, err := strconv.Atoi(opts.Tail); err == nil {
		next = max(len(e.logged)-n, 0)
	}
	stop := context.AfterFunc(ctx, func() { to.CloseWithError(ctx.Err()) })
	go func() {
		defer stop()
		to.CloseWithError(e.stream(ctx, out, next, since, opts.Follow && e.isRunning()))
	}()
	return from, nil
}

func (e *fakeEngine) isRunning() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.status == container.StateRunning
}

func (e *fakeEngine) stream(ctx context.Context, out io.Writer, next int, since int64, follow bool) error {
	passed := since == 0
	for {
		e.mu.Lock()
		logged, changed, down := e.logged, e.changed, e.down
		over := !follow || e.status != container.StateRunning
		if follow && over && e.dropsEnd {
			next = len(logged)
		}
		e.mu.Unlock()
		if down != nil {
			return io.ErrUnexpectedEOF
		}
		for ; next < len(logged); next++ {
			m := logged[next]
			if next == e.damaged {
				return e.send(out, 3, []byte("Error grabbing logs: invalid character\n"))
			}
			if !passed && m.at < since {
				continue
			}
			passed = !e.filters
			stamp := time.Unix(0, m.at).UTC().Format("2006-01-02T15:04:05.000000000Z07:00") + " "
			if err := e.send(out, byte(m.stream)+1, append([]byte(stamp), m.raw...)); err != nil {
				return err
			}
		}
		if over {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func (e *fakeEngine) send(out io.Writer, kind byte, payload []byte) error {
	if !e.tty {
		header := make([]byte, frameHeader, frameHeader+len(payload))
		header[0] = kind
		binary.BigEndian.PutUint32(header[4:], uint32(len(payload)))
		payload = append(header, payload...)
	}
	_, err := out.Write(payload)
	return err
}

// cutWriter breaks after some bytes.
type cutWriter struct {
	to   io.Writer
	left int
}

func (w *cutWriter) Write(p []byte) (int, error) {
	if w.left < 0 {
		return w.to.Write(p)
	}
	n := min(len(p), w.left)
	w.left -= n
	if _, err := w.to.Write(p[:n]); err != nil {
		return n, err
	}
	if n < len(p) {
		return n, io.ErrUnexpectedEOF
	}
	return n, nil
}

var errSick = errors.New("the disk is sick")

// unreadable is an engine whose logging driver has no reads.
type unreadable struct{ *fakeEngine }

func (unreadable) ContainerLogs(context.Context, string, client.ContainerLogsOptions) (client.ContainerLogsResult, error) {
	return nil, fmt.Errorf("configured logging driver does not support reading: %w", errs.Unsupported)
}
