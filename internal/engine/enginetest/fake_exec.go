package enginetest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/berthrun/berth/internal/engine"
	"github.com/berthrun/berth/internal/errs"
)

// Exec implements engine.Engine.
func (f *Fake) Exec(ctx context.Context, spec *engine.ExecSpec) (int32, error) {
	c, err := f.running(spec.ContainerID)
	if err != nil {
		return 0, err
	}
	switch program(spec.Command) {
	case "exit":
		return exitCode(spec.Command), nil
	case "echo":
		if spec.Stdout == nil {
			return 0, nil
		}
		_, err := io.WriteString(spec.Stdout, strings.Join(spec.Command[1:], " ")+"\n")
		return 0, err
	case "cat":
		return f.pipe(ctx, c, spec.Stdin, spec.Stdout)
	case "sleep", "stubborn":
		select {
		case <-ctx.Done():
			return 0, ctx.Err()
		case <-c.ended:
			return 137, nil
		}
	default:
		return 0, fmt.Errorf("cannot exec: there is no program %q: %w", spec.Command[0], errs.Invalid)
	}
}

// Attach implements engine.Engine: the fake's containers copy what they read.
func (f *Fake) Attach(ctx context.Context, spec *engine.AttachSpec) error {
	c, err := f.running(spec.ContainerID)
	if err != nil {
		return err
	}
	_, err = f.pipe(ctx, c, spec.Stdin, spec.Stdout)
	return err
}

// pipe copies until the input, the container or ctx ends.
func (f *Fake) pipe(ctx context.Context, c *fakeContainer, in io.Reader, out io.Writer) (int32, error) {
	if in == nil {
		return 0, nil
	}
	if out == nil {
		out = io.Discard
	}
	copied := make(chan error, 1)
	go func() {
		_, err := io.Copy(out, in)
		copied <- err
	}()
	select {
	case err := <-copied:
		return 0, err
	case <-c.ended:
		return 137, nil
	case <-ctx.Done():
		return 0, ctx.Err()
	}
}

func (f *Fake) running(id string) (*fakeContainer, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	c := f.containers[id]
	switch {
	case c == nil:
		return nil, fmt.Errorf("container %q: %w", id, errs.NotFound)
	case c.state != engine.StateRunning:
		return nil, fmt.Errorf("container %q is %s: %w", id, c.state, errs.State)
	}
	return c, nil
}

// fakeLog is a container's log file, nil for none.
type fakeLog struct {
	path string
	file *os.File
}

func openFakeLog(path string) (*fakeLog, error) {
	if path == "" {
		return nil, nil //nolint:nilnil // no log is a log that swallows
	}
	l := &fakeLog{path: path}
	return l, l.open()
}

func (l *fakeLog) open() (err error) {
	l.file, err = os.OpenFile(l.path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o640)
	return err
}

func (l *fakeLog) write(text string) error {
	if l == nil {
		return nil
	}
	_, err := fmt.Fprintf(l.file, "%s stdout F %s\n", time.Now().UTC().Format(time.RFC3339Nano), text)
	return err
}

func (l *fakeLog) reopen() error {
	if l == nil {
		return nil
	}
	return errors.Join(l.file.Close(), l.open())
}

func (l *fakeLog) close() error {
	if l == nil {
		return nil
	}
	return l.file.Close()
}
