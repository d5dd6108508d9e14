package execs

import (
	"context"
	"errors"
	"fmt"
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

// execution is one command that the Docker Engine has started.
type execution struct {
	in *Container
	// id is the Docker Engine's id of the command.
	id string
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
		_, err := x.in.Client.ExecResize(ctx, x.id, client.ExecResizeOptions{Height: uint(size.Height), Width: uint(size.Width)})
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
	if ctx.Err() != nil || err != nil && !stream.IsClosed(x.ended) { // nobody waits for it any more
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

// notExecuted is the error of a command that was never executed. The engine's runtime has written
// why in the place of the command's output.
func (x *execution) notExecuted(ctx context.Context) error {
	if x.in.ending(ctx) {
		return errEnding()
	}
	return fmt.Errorf("%s: %w", strings.TrimSpace(x.output.kept.String()), errs.Invalid)
}

// hasEnded reports whether a process has ended.
func hasEnded(pid int) bool {
	proc, err := sysproc.ReadProc(pid)
	return errors.Is(err, errs.NotFound) || err == nil && (proc.Zombie() || proc.Exiting)
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
	if err := killtree.Kill(ctx, x.mark, pid, x.in.Cgroups); err != nil && !errors.Is(err, os.ErrProcessDone) {
		x.in.Log.Warn("cannot kill all processes of a command", "exec", x.id, "pid", pid, "error", err)
	}
}
