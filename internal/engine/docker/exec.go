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

// outputGrace is how long the engine may deliver no output after the command has ended before Exec
// takes it for whole. A child of the command may hold the output open for as long as it lives.
const outputGrace = 500 * time.Millisecond

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
	x := &execution{
		engine: e, id: made.ID, container: obj, mark: mark,
		output: &beginning{to: spec.Stdout}, ended: make(chan struct{}), copied: make(chan struct{}),
	}
	conn, err := e.client.ExecAttach(ctx, made.ID, client.ExecAttachOptions{TTY: spec.TTY})
	if err != nil {
		if ctx.Err() != nil || errors.Is(err, errs.Unavailable) || errors.Is(err, errs.Deadline) { // the engine may have got the request
			x.killAll()
		}
		return 0, execFault(err)
	}
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
	// ended is closed when the command's process has ended, copied when its output is delivered.
	ended, copied chan struct{}
}

// run copies the streams until the command has ended and its output is delivered.
func (x *execution) run(ctx context.Context, spec *engine.ExecSpec, conn client.HijackedResponse) (code int32, err error) {
	streamsCtx, stop := context.WithCancel(ctx)
	defer stop()
	waitCtx, stopWait := context.WithCancel(ctx)
	defer stopWait()
	var copyErr error
	go func() {
		defer close(x.copied)
		defer func() {
			if copyErr != nil {
				stopWait()
			}
		}()
		copyErr = stream.Copy(streamsCtx, conn, stream.Streams{
			Stdin: spec.Stdin, Stdout: x.output, Stderr: spec.Stderr, TTY: spec.TTY,
			EndInput: !spec.TTY, Ended: x.ended, Silence: outputGrace,
		})
	}()
	go stream.ForwardSizes(streamsCtx, spec.Resize, func(ctx context.Context, size engine.TerminalSize) error {
		_, err := x.engine.client.ExecResize(ctx, x.id, client.ExecResizeOptions{Height: uint(size.Height), Width: uint(size.Width)})
		return err
	})
	if err = x.awaitEnd(waitCtx); err == nil {
		close(x.ended)
	}
	if err == nil || waitCtx.Err() != nil { // its output cannot be delivered
		<-x.copied
		err = copyErr
	}
	if err == nil {
		code, err = x.exitCode(ctx)
	}
	if ctx.Err() != nil {
		err = ctx.Err()
	}
	if ctx.Err() != nil || err != nil && !isClosed(x.ended) { // nobody waits for it any more
		x.killAll()
	}
	stop()
	<-x.copied
	return code, err
}

// awaitEnd waits until the command's process has ended, or its client has gone.
func (x *execution) awaitEnd(ctx context.Context) error {
	got, err := x.awaitStart(ctx, x.copied)
	if err != nil || !got.Running {
		return err
	}
	pidfd, err := sysproc.OpenPidfd(got.PID)
	switch {
	case errors.Is(err, errs.NotFound):
		return nil
	case err != nil:
		_, err = x.awaitCode(ctx)
		return err
	}
	defer pidfd.Close()
	return sysproc.AwaitExit(ctx, pidfd)
}

// awaitStart waits until the engine has started the command, or could not start it. The engine
// answers to the attachment before that: it then reports a command that does not run, without a
// process and without a code. It closes the output of a command that it cannot start.
func (x *execution) awaitStart(ctx context.Context, closed <-chan struct{}) (client.ExecInspectResult, error) {
	for pause := time.Millisecond; ; pause = min(2*pause, 50*time.Millisecond) {
		over := isClosed(closed) // before the look
		got, err := x.inspect(ctx)
		if err != nil || isStarted(&got) {
			return got, err
		}
		if over && !got.Running {
			return got, fmt.Errorf("the Docker engine has ended the session before it started the command: %w", errs.Unavailable)
		}
		select {
		case <-ctx.Done():
			return got, ctx.Err()
		case <-time.After(pause):
		}
	}
}

// isStarted reports whether the engine has started a command, or has failed to.
func isStarted(got *client.ExecInspectResult) bool {
	return got.PID > 0 || !got.Running && got.ExitCode != 0
}

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// notExecuted is the error of a command that was never executed. The engine's runtime has written
// why in the place of the command's output.
func (x *execution) notExecuted(ctx context.Context) error {
	got, err := x.engine.client.ContainerInspect(ctx, x.container.engineID, client.ContainerInspectOptions{})
	if err == nil && got.Container.State != nil && !got.Container.State.Running {
		return fmt.Errorf("the container does not run: %w", errs.State)
	}
	return fmt.Errorf("%s: %w", strings.TrimSpace(x.output.kept.String()), errs.Invalid)
}

// beginning keeps the first bytes of what is written to it, and passes all on.
//
// It has no method but Write: io.Copy would write past it with those of a bytes.Buffer.
type beginning struct {
	kept bytes.Buffer
	to   io.Writer
}

// maxBeginning is how many bytes of an output are kept.
const maxBeginning = 1 << 10

func (b *beginning) Write(p []byte) (int, error) {
	b.kept.Write(p[:min(len(p), max(0, maxBeginning-b.kept.Len()))])
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
		// The engine forgets the commands of a container that has ended, and all commands when it
		// is restarted.
		return got, fmt.Errorf("the Docker engine no longer knows the command: its container has ended, or the engine was restarted: %w", errs.State)
	}
	return got, err
}

// killTimeout bounds the kill of a command whose caller is gone, startTimeout the wait for a start
// that the engine may have under way meanwhile.
const (
	killTimeout  = 10 * time.Second
	startTimeout = 2 * time.Second
)

// killAll kills everything that the command has started, also when it has ended itself.
func (x *execution) killAll() {
	ctx, stop := context.WithTimeout(context.Background(), killTimeout)
	defer stop()
	starting, stopStarting := context.WithTimeout(ctx, startTimeout)
	got, err := x.awaitStart(starting, x.copied)
	stopStarting()
	pid := 0
	if err == nil && got.Running {
		pid = got.PID
	}
	if err := killtree.Kill(ctx, x.mark, pid, x.container.cgroups); err != nil && !errors.Is(err, os.ErrProcessDone) {
		x.engine.log.Warn("cannot kill all processes of a command", "exec", x.id, "pid", pid, "error", err)
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
	return stream.Copy(ctx, conn.HijackedResponse, stream.Streams{
		Stdin: spec.Stdin, Stdout: spec.Stdout, Stderr: spec.Stderr, TTY: obj.tty,
		EndInput: obj.stdinOnce && !obj.tty, Ended: e.endOf(ctx, obj.pid),
	})
}

// endOf returns a channel that is closed when a process has ended. It is nil when the process cannot be
// watched: the output ends when the engine closes it then.
func (e *Engine) endOf(ctx context.Context, pid int) <-chan struct{} {
	ended := make(chan struct{})
	pidfd, err := sysproc.OpenPidfd(pid)
	switch {
	case errors.Is(err, errs.NotFound):
		close(ended)
		return ended
	case err != nil:
		e.log.Warn("cannot watch the process of an attached container", "pid", pid, "error", err)
		return nil
	}
	go func() {
		defer pidfd.Close()
		if sysproc.AwaitExit(ctx, pidfd) == nil {
			close(ended)
		}
	}()
	return ended
}
