// Package apisocket makes the sockets that the daemon serves its APIs on. To the unix socket only root and
// one group can connect. It replaces the stale socket of a dead daemon, and leaves one that a process
// serves. It also reports which process is at the other end of a connection.
package apisocket

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/sys/sysfd"
	"github.com/berthrun/berth/internal/undo"
)

// dialTimeout is how long a process on an existing socket has to accept.
const dialTimeout = 2 * time.Second

const (
	// lingerTimeout is how long the socket of a daemon that was killed may be served by a child of it.
	lingerTimeout = 5 * time.Second
	// lingerPoll is between two looks: the kernel reports the end of a socket to nobody.
	lingerPoll = 10 * time.Millisecond
)

// Options are where a socket is and who may use it.
type Options struct {
	// Path of the socket.
	Path string
	// GID is the group that may use the socket, beside root.
	GID int
	// OwnDir says that the directory belongs to the daemon alone. Then Listen lets GID pass
	// through it. Listen makes a missing directory with mode 0700.
	OwnDir bool
	// Mode of the socket; 0 means 0660.
	Mode os.FileMode
}

// Listener is a listening unix socket. Close removes the socket.
type Listener struct {
	*net.UnixListener
	path string
	file os.FileInfo
	lock *sysfd.Lock
}

// Listen binds the socket. Kind Exists when another daemon serves it.
func Listen(ctx context.Context, opts Options) (l *Listener, err error) {
	if !filepath.IsAbs(opts.Path) {
		return nil, fmt.Errorf("cannot listen on %q: the path is not absolute: %w", opts.Path, errs.Invalid)
	}
	if err := prepareDir(opts); err != nil {
		return nil, err
	}
	var u undo.Stack
	defer u.OnError(ctx, &err)

	// No other daemon can bind between removeStale and bind.
	lock, holder, err := sysfd.TryLock(opts.Path + ".lock")
	if err != nil {
		return nil, fmt.Errorf("cannot listen on %s: %w", opts.Path, err)
	}
	if lock == nil {
		return nil, fmt.Errorf("cannot listen on %s: process %d serves it: %w", opts.Path, holder, errs.Exists)
	}
	u.Push("unlock "+opts.Path, func(context.Context) error { return lock.Close() })

	if err := removeStale(ctx, opts.Path); err != nil {
		return nil, err
	}
	unixListener, err := bind(ctx, opts.Path)
	if err != nil {
		return nil, err
	}
	u.Push("close "+opts.Path, func(context.Context) error { return unixListener.Close() })
	if err := os.Chown(opts.Path, -1, opts.GID); err != nil {
		return nil, fmt.Errorf("cannot give socket %s to its group: %w", opts.Path, err)
	}
	if err := os.Chmod(opts.Path, cmp.Or(opts.Mode, 0o660)); err != nil {
		return nil, fmt.Errorf("cannot set the mode of socket %s: %w", opts.Path, err)
	}
	file, err := os.Lstat(opts.Path)
	if err != nil {
		return nil, fmt.Errorf("cannot stat socket %s: %w", opts.Path, err)
	}
	return &Listener{unixListener, opts.Path, file, lock}, nil
}

// Close stops listening and removes the socket, unless another one has replaced it.
func (l *Listener) Close() error {
	if file, err := os.Lstat(l.path); err != nil || !os.SameFile(file, l.file) {
		l.SetUnlinkOnClose(false)
	}
	err := l.UnixListener.Close()
	if errors.Is(err, net.ErrClosed) {
		return nil
	}
	return errors.Join(err, l.lock.Close())
}

func prepareDir(opts Options) error {
	dir := filepath.Dir(opts.Path)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("cannot make the directory of socket %s: %w", opts.Path, err)
	}
	if !opts.OwnDir || opts.GID == 0 {
		return nil
	}
	// The group may pass through the directory, not list it.
	if err := errors.Join(os.Chown(dir, -1, opts.GID), os.Chmod(dir, 0o710)); err != nil {
		return fmt.Errorf("cannot let group %d reach socket %s: %w", opts.GID, opts.Path, err)
	}
	return nil
}

// removeStale removes a socket that no process serves.
func removeStale(ctx context.Context, path string) error {
	info, err := os.Lstat(path)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("cannot listen on %s: %w", path, err)
	}
	if info.Mode().Type() != os.ModeSocket {
		return fmt.Errorf("cannot listen on %s: it exists and is no socket: %w", path, errs.Exists)
	}
	if err := awaitUnserved(ctx, path); err != nil {
		return err
	}
	if err := os.Remove(path); err != nil {
		return fmt.Errorf("cannot remove stale socket: %w", err)
	}
	return nil
}

// awaitUnserved returns when no process serves a socket. A daemon that was killed while it started a program leaves a
// child that has the socket until it executes the program, so awaitUnserved waits up to lingerTimeout, or until ctx
// ends. Kind Exists if a process still serves the socket then.
func awaitUnserved(ctx context.Context, path string) error {
	deadline := time.Now().Add(lingerTimeout)
	for {
		dialer := net.Dialer{Timeout: dialTimeout}
		conn, err := dialer.DialContext(context.WithoutCancel(ctx), "unix", path)
		switch {
		case errors.Is(err, syscall.ECONNREFUSED):
			return nil
		case err != nil:
			// The queue may be full: a process serves the socket, slowly.
			return fmt.Errorf("cannot listen on %s: cannot find out whether a process serves it: %w", path, err)
		}
		conn.Close()
		if time.Now().After(deadline) {
			return fmt.Errorf("cannot listen on %s: a process serves it already: %w", path, errs.Exists)
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("cannot listen on %s: a process serves it already: %w", path, errs.Exists)
		case <-time.After(lingerPoll):
		}
	}
}

// bind listens with a socket that is closed to all others from its first moment:
// the file takes its mode from the unbound socket.
func bind(ctx context.Context, path string) (*net.UnixListener, error) {
	lc := net.ListenConfig{Control: func(_, _ string, raw syscall.RawConn) error {
		var modeErr error
		err := raw.Control(func(fd uintptr) { modeErr = syscall.Fchmod(int(fd), 0o600) })
		return errors.Join(err, modeErr)
	}}
	l, err := lc.Listen(ctx, "unix", path)
	if err != nil {
		return nil, fmt.Errorf("cannot listen on %s: %w", path, err)
	}
	return l.(*net.UnixListener), nil
}
