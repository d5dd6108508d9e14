package streaming

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/cri-streaming/pkg/streaming/remotecommand"

	"github.com/berthrun/berth/internal/engine"
	"github.com/berthrun/berth/internal/errs"
)

// ExecURL returns a URL that runs the request's command once.
func (s *Server) ExecURL(req *runtimeapi.ExecRequest) (string, error) {
	if err := checkStreams(req.ContainerId, req.Tty, req.Stdin, req.Stdout, req.Stderr); err != nil {
		return "", fmt.Errorf("cannot exec: %w", err)
	}
	if len(req.Cmd) == 0 {
		return "", fmt.Errorf("cannot exec: cmd is empty: %w", errs.Invalid)
	}
	return s.issue("exec", func(w http.ResponseWriter, r *http.Request) {
		s.serveExec(w, r, req.ContainerId, req.Cmd,
			&remotecommand.Options{Stdin: req.Stdin, Stdout: req.Stdout, Stderr: req.Stderr, TTY: req.Tty})
	})
}

// AttachURL returns a URL that attaches to the request's container once.
func (s *Server) AttachURL(req *runtimeapi.AttachRequest) (string, error) {
	if err := checkStreams(req.ContainerId, req.Tty, req.Stdin, req.Stdout, req.Stderr); err != nil {
		return "", fmt.Errorf("cannot attach: %w", err)
	}
	return s.issue("attach", func(w http.ResponseWriter, r *http.Request) {
		s.serveAttach(w, r, req.ContainerId,
			&remotecommand.Options{Stdin: req.Stdin, Stdout: req.Stdout, Stderr: req.Stderr, TTY: req.Tty})
	})
}

func checkStreams(containerID string, tty, stdin, stdout, stderr bool) error {
	switch {
	case containerID == "":
		return fmt.Errorf("container_id is empty: %w", errs.Invalid)
	case tty && stderr:
		return fmt.Errorf("tty: tty and stderr cannot both be true: a terminal has one output: %w", errs.Invalid)
	case !stdin && !stdout && !stderr:
		return fmt.Errorf("stdin: one of stdin, stdout, or stderr must be set: %w", errs.Invalid)
	}
	return nil
}

// session turns the calls of the protocol library into those of Runtime. It
// implements remotecommand.Executor and remotecommand.Attacher, whose arguments
// for a pod are unused.
type session struct {
	runtime Runtime
	wanted  *remotecommand.Options
	log     *slog.Logger
}

// ExecInContainer implements remotecommand.Executor.
func (s session) ExecInContainer(ctx context.Context, _, _, containerID string, cmd []string,
	in io.Reader, out, errOut io.WriteCloser, tty bool, resize <-chan remotecommand.TerminalSize, _ time.Duration,
) error {
	spec := &engine.ExecSpec{ContainerID: containerID, Command: cmd, TTY: tty}
	spec.Stdin, spec.Stdout, spec.Stderr = s.streams(in, out, errOut)
	var stop func()
	spec.Resize, stop = terminalSizes(resize)
	defer stop()
	began := time.Now()
	var code int32
	err := errs.Guard("exec in container "+containerID, func() (err error) {
		code, err = s.runtime.Exec(ctx, spec)
		return err
	})
	markEnded(ctx)
	logSession(ctx, s.log, began, err, "verb", "exec", "container", containerID, "code", code)
	if err != nil {
		return forClient(err)
	}
	if code != 0 {
		return exitStatus(code)
	}
	return nil
}

// AttachContainer implements remotecommand.Attacher.
func (s session) AttachContainer(ctx context.Context, _, _, containerID string,
	in io.Reader, out, errOut io.WriteCloser, _ bool, resize <-chan remotecommand.TerminalSize,
) error {
	spec := &engine.AttachSpec{ContainerID: containerID}
	spec.Stdin, spec.Stdout, spec.Stderr = s.streams(in, out, errOut)
	var stop func()
	spec.Resize, stop = terminalSizes(resize)
	defer stop()
	began := time.Now()
	err := errs.Guard("attachment to container "+containerID, func() error { return s.runtime.Attach(ctx, spec) })
	markEnded(ctx)
	logSession(ctx, s.log, began, err, "verb", "attach", "container", containerID)
	return forClient(err)
}

// forClient is a session's error as a person reads it: the protocol sends the text alone, so the name of a kind in it
// would be of no use to a program.
func forClient(err error) error {
	if err == nil {
		return nil
	}
	return errors.New(errs.Message(err))
}

// logSession logs the end of a session, which no CRI request reports. A session whose client left
// is no failure.
func logSession(ctx context.Context, log *slog.Logger, began time.Time, err error, attrs ...any) {
	attrs = append(attrs, "took", time.Since(began).Round(time.Millisecond).String())
	switch {
	case ctx.Err() != nil:
		log.InfoContext(ctx, "the client left its session", attrs...)
	case err != nil:
		log.WarnContext(ctx, "session failed", append(attrs, "error", err)...)
	default:
		log.InfoContext(ctx, "session ended", attrs...)
	}
}

// streams leaves out what the client did not ask for: over WebSocket the library
// brings a stream for each channel, wanted or not.
func (s session) streams(in io.Reader, out, errOut io.Writer) (stdin io.Reader, stdout, stderr io.Writer) {
	if s.wanted.Stdin {
		stdin = in
	}
	if s.wanted.Stdout {
		stdout = out
	}
	if s.wanted.Stderr {
		stderr = errOut
	}
	return stdin, stdout, stderr
}

// terminalSizes converts sizes to the engine's type. It keeps only the newest size that has not
// been received, so the client never waits. stop ends it.
func terminalSizes(in <-chan remotecommand.TerminalSize) (<-chan engine.TerminalSize, func()) {
	if in == nil {
		return nil, func() {}
	}
	out := make(chan engine.TerminalSize)
	done := make(chan struct{})
	go func() {
		defer close(out)
		var newest engine.TerminalSize
		var send chan<- engine.TerminalSize // nil while there is nothing to send
		for {
			select {
			case size, ok := <-in:
				if !ok {
					in = nil
					if send == nil {
						return
					}
					continue
				}
				newest, send = engine.TerminalSize(size), out
			case send <- newest:
				send = nil
				if in == nil {
					return
				}
			case <-done:
				return
			}
		}
	}()
	return out, func() { close(done) }
}

// exitStatus is a command's exit code in the shape that the protocol library
// writes to the client's error channel.
type exitStatus int32

func (e exitStatus) Error() string   { return fmt.Sprintf("exit status %d", int32(e)) }
func (e exitStatus) String() string  { return e.Error() }
func (e exitStatus) Exited() bool    { return true }
func (e exitStatus) ExitStatus() int { return int(e) }
