package docker

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/moby/moby/client"

	"github.com/berthrun/berth/internal/engine"
	"github.com/berthrun/berth/internal/engine/docker/killtree"
	"github.com/berthrun/berth/internal/engine/docker/stream"
	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/sys/sysproc"
)

// outputGrace is how long Exec waits for the end of the output after the command has ended. A
// child of the command may hold the output open for as long as it lives.
const outputGrace = 250 * time.Millisecond

// Exec runs a command as the container's own process would run: same user, environment,
// directory and capabilities.
func (e *Engine) Exec(ctx context.Context, spec *engine.ExecSpec) (code int32, err error) {
	if len(spec.Command) == 0 || spec.Command[0] == "" {
		return 0, fmt.Errorf("cannot exec in container %s: no command specified: %w", spec.ContainerID, errs.Invalid)
	}
	obj, err := e.running(ctx, spec.ContainerID)
	if err != nil {
		return 0, err
	}
	mark := "BERTH_EXEC=" + rand.Text()
	made, err := e.client.ExecCreate(ctx, obj.engineID, client.ExecCreateOptions{
		Cmd: spec.Command, TTY: spec.TTY, DetachKeys: stream.DetachKeys,
		AttachStdin: spec.Stdin != nil, AttachStdout: true, AttachStderr: !spec.TTY,
		Env: []string{mark},
	})
	if err != nil {
		return 0, execFault(err)
	}
	conn, err := e.client.ExecAttach(ctx, made.ID, client.ExecAttachOptions{TTY: spec.TTY})
	if err != nil {
		return 0, execFault(err)
	}
	x := &execution{engine: e, id: made.ID, container: obj, mark: mark, output: &beginning{to: spec.Stdout}}
	return x.run(ctx, spec, conn.HijackedResponse)
}

// running returns a container that runs, with its process.
func (e *Engine) running(ctx context.Context, id string) (object, error) {
	got, err := e.objects.inspect(ctx, id)
	if err != nil {
		return object{}, err
	}
	switch {
	case got.State.Paused:
		return object{}, fmt.Errorf("container %s is paused: %w", id, errs.State)
	case !got.State.Running:
		return object{}, fmt.Errorf("container %s does not run: it is %s: %w", id, got.State.Status, errs.State)
	}
	return e.objects.started(id, got), nil
}

// execFault gives the error of a command that cannot be executed its kind.
func execFault(err error) error {
	if errors.Is(err, errs.Exists) { // a conflict
		return fmt.Errorf("the container does not run: %w", errs.State)
	}
	return err
}

// execution is one command that the Docker Engine has started.
type execution struct {
	engine    *Engine
	id        string
	container object
	// mark is a variable that the command's environment has and no other: whatever the
	// command starts inherits it, also what leaves its session.
	mark string
	// output has the beginning of the command's output.
	output *beginning
}

// run copies the streams until the command has ended and its output is delivered.
func (x *execution) run(ctx context.Context, spec *engine.ExecSpec, conn client.HijackedResponse) (code int32, err error) {
	streamsCtx, stop := context.WithCancel(ctx)
	defer stop()
	copied := make(chan error, 1)
	go func() {
		copied <- stream.Copy(streamsCtx, conn, stream.Streams{Stdin: spec.Stdin, Stdout: x.output, Stderr: spec.Stderr, TTY: spec.TTY})
	}()
	go stream.ForwardSizes(streamsCtx, spec.Resize, func(ctx context.Context, size engine.TerminalSize) error {
		_, err := x.engine.client.ExecResize(ctx, x.id, client.ExecResizeOptions{Height: uint(size.Height), Width: uint(size.Width)})
		return err
	})
	ended := make(chan error, 1)
	go func() { ended <- x.awaitEnd(streamsCtx) }()
	select {
	case <-ctx.Done():
		x.killAll()
		stop()
		<-copied //nolint:errcheck // ctx says why
		return 0, ctx.Err()
	case err = <-copied:
		if err == nil {
			err = <-ended
		}
	case err = <-ended:
		select {
		case <-copied: //nolint:errcheck // the command has ended
		case <-time.After(outputGrace):
		}
	}
	if ctx.Err() != nil {
		x.killAll()
		return 0, ctx.Err()
	}
	if err != nil {
		return 0, err
	}
	return x.exitCode(ctx)
}

// awaitEnd waits until the command's process has ended.
func (x *execution) awaitEnd(ctx context.Context) error {
	got, err := x.inspect(ctx)
	if err != nil || !got.Running {
		return err
	}
	if got.PID > 0 {
		pidfd, err := sysproc.OpenPidfd(got.PID)
		switch {
		case errors.Is(err, errs.NotFound):
			return nil
		case err == nil:
			defer pidfd.Close()
			return sysproc.AwaitExit(ctx, pidfd)
		}
	}
	_, err = x.awaitCode(ctx)
	return err
}

// notExecuted is the error of a command that was never executed. The engine's runtime has written
// why in the place of the command's output.
func (x *execution) notExecuted(ctx context.Context) error {
	got, err := x.engine.client.ContainerInspect(ctx, x.container.engineID, client.ContainerInspectOptions{})
	if err == nil && got.Container.State != nil && !got.Container.State.Running {
		return fmt.Errorf("the container does not run: %w", errs.State)
	}
	return fmt.Errorf("%s: %w", strings.TrimSpace(x.output.String()), errs.Invalid)
}

// beginning keeps the first bytes of what is written to it, and passes all on.
type beginning struct {
	bytes.Buffer
	to io.Writer
}

// maxBeginning is how many bytes of an output are kept.
const maxBeginning = 1 << 10

func (b *beginning) Write(p []byte) (int, error) {
	b.Buffer.Write(p[:min(len(p), max(0, maxBeginning-b.Len()))])
	if b.to == nil {
		return len(p), nil
	}
	return b.to.Write(p)
}

// cannotExecute and the codes above it are those of a command that was never executed, if it has
// no process.
const cannotExecute = 126

// exitCode reads the exit code once the Docker Engine has noticed the end of the process.
func (x *execution) exitCode(ctx context.Context) (int32, error) {
	got, err := x.awaitCode(ctx)
	if err != nil {
		return 0, err
	}
	if got.PID == 0 && got.ExitCode >= cannotExecute {
		return 0, x.notExecuted(ctx)
	}
	return int32(got.ExitCode), nil //nolint:gosec // 0 to 255
}

func (x *execution) awaitCode(ctx context.Context) (client.ExecInspectResult, error) {
	for pause := time.Millisecond; ; pause = min(2*pause, 100*time.Millisecond) {
		got, err := x.inspect(ctx)
		if err != nil || !got.Running {
			return got, err
		}
		select {
		case <-ctx.Done():
			return got, ctx.Err()
		case <-time.After(pause):
		}
	}
}

func (x *execution) inspect(ctx context.Context) (client.ExecInspectResult, error) {
	got, err := x.engine.client.ExecInspect(ctx, x.id, client.ExecInspectOptions{})
	if errors.Is(err, errs.NotFound) {
		// The engine forgets the commands of a container that has ended.
		return got, fmt.Errorf("the container ended with the command: %w", errs.State)
	}
	return got, err
}

// killTimeout bounds the kill of a command whose caller is gone.
const killTimeout = 10 * time.Second

// killAll kills everything that the command has started.
func (x *execution) killAll() {
	ctx, stop := context.WithTimeout(context.Background(), killTimeout)
	defer stop()
	got, err := x.inspect(ctx)
	if err != nil || !got.Running || got.PID <= 0 {
		return
	}
	if err := killtree.Kill(ctx, x.mark, got.PID, x.container.cgroups); err != nil && !errors.Is(err, os.ErrProcessDone) {
		x.engine.log.Warn("cannot kill all processes of a command", "exec", x.id, "pid", got.PID, "error", err)
	}
}

// Attach connects streams to a running container.
func (e *Engine) Attach(ctx context.Context, spec *engine.AttachSpec) error {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	obj, err := e.running(ctx, spec.ContainerID)
	if err != nil {
		return err
	}
	conn, err := e.client.ContainerAttach(ctx, obj.engineID, client.ContainerAttachOptions{
		Stream: true, Stdin: spec.Stdin != nil, Stdout: spec.Stdout != nil, Stderr: spec.Stderr != nil && !obj.tty,
		DetachKeys: stream.DetachKeys,
	})
	if err != nil {
		return err
	}
	go stream.ForwardSizes(ctx, spec.Resize, func(ctx context.Context, size engine.TerminalSize) error {
		_, err := e.client.ContainerResize(ctx, obj.engineID, client.ContainerResizeOptions{Height: uint(size.Height), Width: uint(size.Width)})
		return err
	})
	return stream.Copy(ctx, conn.HijackedResponse, stream.Streams{Stdin: spec.Stdin, Stdout: spec.Stdout, Stderr: spec.Stderr, TTY: obj.tty})
}
