// Package stream is the client's side of exec, attach and port-forward: it connects a terminal
// or pipes to the URL that a runtime returns.
package stream

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"os/signal"
	"syscall"

	"golang.org/x/term"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/portforward"
	"k8s.io/client-go/tools/remotecommand"
	"k8s.io/client-go/transport/spdy"
	"k8s.io/client-go/util/exec"

	"github.com/berthrun/berth/internal/errs"
)

// Streams are the ends of a session. Nil ones are not connected.
type Streams struct {
	In       io.Reader
	Out, Err io.Writer
	// TTY says that the command has a terminal. If In is a terminal too, Run puts it into
	// raw mode and passes its size on.
	TTY bool
}

// Run connects the streams to an exec or attach URL until the session ends, and returns the
// command's exit code (0 for an attachment). If the connection breaks, the error is of kind
// Unavailable.
func Run(ctx context.Context, rawURL string, s Streams) (code int, err error) {
	u, err := url.Parse(rawURL)
	if err != nil {
		return 0, fmt.Errorf("cannot use the runtime's streaming URL: %w", err)
	}
	transport, upgrader, err := spdy.RoundTripperFor(&rest.Config{})
	if err != nil {
		return 0, fmt.Errorf("cannot connect to the runtime's streaming server: %w", err)
	}
	watcher := &statusWatcher{Upgrader: upgrader}
	session, err := remotecommand.NewSPDYExecutorForTransports(transport, watcher, http.MethodPost, u)
	if err != nil {
		return 0, fmt.Errorf("cannot connect to the runtime's streaming server: %w", err)
	}
	opts := remotecommand.StreamOptions{Stdin: s.In, Stdout: s.Out, Stderr: s.Err, Tty: s.TTY}
	if file, ok := s.In.(*os.File); ok && s.TTY && term.IsTerminal(int(file.Fd())) {
		restore, err := raw(file)
		if err != nil {
			return 0, err
		}
		defer restore()
		sizes := followSize(ctx, file)
		defer sizes.stop()
		opts.TerminalSizeQueue = sizes
	}
	err = session.StreamWithContext(ctx, opts)
	var status exec.CodeExitError
	if errors.As(err, &status) {
		return status.Code, nil
	}
	if err != nil {
		return 0, fmt.Errorf("the session failed: %w", explain(ctx, u, err))
	}
	if !watcher.received.Load() {
		return 0, fmt.Errorf("the connection to the runtime broke, and how the session ended is not known: %w", errs.Unavailable)
	}
	return 0, nil
}

// raw puts the terminal into raw mode.
func raw(file *os.File) (restore func(), err error) {
	fd := int(file.Fd())
	before, err := term.MakeRaw(fd)
	if err != nil {
		return nil, fmt.Errorf("cannot make the terminal raw: %w", err)
	}
	return func() {
		//nolint:errcheck // the terminal is gone, or it is as it was
		term.Restore(fd, before)
	}, nil
}

// sizeQueue reports the terminal's size, now and whenever it changes.
type sizeQueue struct {
	file    *os.File
	changed chan os.Signal
	done    <-chan struct{}
	stop    func()
}

func followSize(ctx context.Context, file *os.File) *sizeQueue {
	ctx, cancel := context.WithCancel(ctx)
	q := &sizeQueue{file: file, changed: make(chan os.Signal, 1), done: ctx.Done()}
	signal.Notify(q.changed, syscall.SIGWINCH)
	q.stop = func() {
		signal.Stop(q.changed)
		cancel()
	}
	q.changed <- syscall.SIGWINCH // the first size
	return q
}

// Next implements remotecommand.TerminalSizeQueue.
func (q *sizeQueue) Next() *remotecommand.TerminalSize {
	select {
	case <-q.changed:
	case <-q.done:
		return nil
	}
	width, height, err := term.GetSize(int(q.file.Fd()))
	if err != nil {
		return nil
	}
	return &remotecommand.TerminalSize{Width: uint16(width), Height: uint16(height)}
}

// Forward listens on addresses and forwards ports ("8080:80", ":80", "80") over the
// URL until ctx ends. It reports what happens to out and errOut.
func Forward(ctx context.Context, rawURL string, addresses, ports []string, out, errOut io.Writer) error {
	u, err := url.Parse(rawURL)
	if err != nil {
		return fmt.Errorf("cannot use the runtime's streaming URL: %w", err)
	}
	transport, upgrader, err := spdy.RoundTripperFor(&rest.Config{})
	if err != nil {
		return fmt.Errorf("cannot connect to the runtime's streaming server: %w", err)
	}
	dialer := spdy.NewDialer(upgrader, &http.Client{Transport: transport}, http.MethodPost, u)
	f, err := portforward.NewOnAddressesWithContext(ctx, dialer, addresses, ports, make(chan struct{}), out, errOut)
	if err != nil {
		return fmt.Errorf("cannot forward ports: %w", err)
	}
	if err := f.ForwardPorts(); err != nil && ctx.Err() == nil {
		return fmt.Errorf("cannot forward ports: %w", explain(ctx, u, err))
	}
	return nil
}
