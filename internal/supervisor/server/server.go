// Package server is the supervisor's process: the parent of containers, which
// owns their stdio, logs, exit statuses and terminals, and runs the OCI runtime.
//
// It serves a daemon over a unix socket and outlives it. It keeps its state in
// records on tmpfs, so that its successor continues where it stopped: an upgrade is
// a planned crash. The only outside input that it parses is the spec that the daemon
// sends. It knows nothing of pods, images and networks.
package server

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/supervisor/keep"
	"github.com/berthrun/berth/internal/supervisor/server/containers"
	"github.com/berthrun/berth/internal/supervisor/server/heldfiles"
	"github.com/berthrun/berth/internal/sys/sysfd"
)

// Options configure a Server.
type Options struct {
	// StateDir is on tmpfs and outlives the process. In it: supervisor.sock,
	// runc/<id> (in runc's format), supervisor/<id>, quarantine.
	StateDir string
	// Version is this build's.
	Version string
	// Keeper is this process's parent; nil when there is none.
	Keeper Keeper
	// ExitWhenIdle ends Run when there is no container and the last client has left, or
	// when there has been no container and no client for some seconds.
	ExitWhenIdle bool
	// OwnInit lets berth's own init start the containers that it can.
	OwnInit bool
	Logger  *slog.Logger
}

// ErrKeeperLost is the error of Run when the keeper is gone and this process could
// not become the keeper. The process should end; another keeper starts it again.
var ErrKeeperLost = errors.New("keeper is lost")

// Keeper is the part of keep.Client that a Server needs.
type Keeper interface {
	containers.Keeper
	Ready(ctx context.Context) error
	Lost() <-chan struct{}
	TakeOver(held []keep.Held) error
}

const (
	socketName = "supervisor.sock"
	// idleFor is how long there must be no container and no client before the supervisor ends.
	idleFor = time.Second
)

// Server is the process. It is made by New and used by one Run.
type Server struct {
	opts       Options
	log        *slog.Logger
	containers *containers.Set
	exits      exitListeners

	// stopping ends when Run does.
	stopping context.Context //nolint:containedctx // the life of the process
	stop     context.CancelFunc

	mu       sync.Mutex
	sessions map[*session]bool
	// changed is when there was last a session or a container.
	changed time.Time
	// left has an element after the last client has left for good.
	left chan struct{}
}

// New returns a server on opts.StateDir, which exists.
func New(opts Options) (*Server, error) {
	s := &Server{opts: opts, log: opts.Logger, sessions: make(map[*session]bool), changed: time.Now(), left: make(chan struct{}, 1)}
	var err error
	s.containers, err = containers.New(containers.Options{
		StateDir: opts.StateDir, Keeper: opts.Keeper, Clients: s, OwnInit: opts.OwnInit, Logger: opts.Logger,
	})
	if err != nil {
		return nil, err
	}
	return s, nil
}

// Run adopts the containers of a predecessor and serves until ctx ends (nil), there
// is no container and no client (nil, see ExitWhenIdle), or the keeper is lost. Kind
// Exists when another supervisor runs on the same state directory.
func (s *Server) Run(ctx context.Context) error {
	lock, err := keep.LockSupervisor(s.opts.StateDir)
	if err != nil {
		return err
	}
	defer lock.Close()
	if err := os.MkdirAll(filepath.Join(s.opts.StateDir, "supervisor"), 0o700); err != nil {
		return fmt.Errorf("cannot make the supervisor's directory: %w", err)
	}
	s.stopping, s.stop = context.WithCancel(ctx)
	defer s.stop()
	watched, err := s.containers.Begin(s.stopping)
	if err != nil {
		if s.keeperLost() {
			return s.takeOver() // without descriptors: those of the keeper are gone
		}
		return err
	}
	listener, err := s.listen()
	if err != nil {
		return err
	}
	defer listener.Close()
	go s.accept(listener)
	s.ready(ctx)
	err = s.wait(ctx, watched)
	listener.Close()
	s.stop()
	s.endCalls()
	return err
}

// wait returns when there is a reason to end.
func (s *Server) wait(ctx context.Context, watched <-chan error) error {
	var lost <-chan struct{}
	if s.opts.Keeper != nil {
		lost = s.opts.Keeper.Lost()
	}
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case err := <-watched:
			if ctx.Err() != nil {
				return nil
			}
			return fmt.Errorf("cannot serve containers any more: %w", err)
		case <-lost:
			return s.takeOver()
		case <-tick.C:
			s.containers.FreeMemory()
			if s.opts.ExitWhenIdle && s.unused() > idleFor {
				s.log.Info("no container and no client; ending")
				return nil
			}
		case <-s.left:
			if s.opts.ExitWhenIdle && s.unused() > 0 {
				s.log.Info("no container, and the last client has left; ending")
				return nil
			}
		}
	}
}

func (s *Server) keeperLost() bool {
	if s.opts.Keeper == nil {
		return false
	}
	select {
	case <-s.opts.Keeper.Lost():
		return true
	default:
		return false
	}
}

// takeOver makes this process the keeper, and does not return if that succeeds.
func (s *Server) takeOver() error {
	s.log.Warn("the keeper ended; becoming the keeper")
	s.stop() // creates and execs under way end
	release := s.containers.BlockForks()
	defer release()
	err := s.opts.Keeper.TakeOver(s.containers.Held())
	return fmt.Errorf("%w: %w", ErrKeeperLost, err)
}

// endCalls waits until calls under way have noticed the end and undone their work.
func (s *Server) endCalls() {
	done := make(chan struct{})
	go func() {
		s.containers.BlockForks() // without release: the process ends
		close(done)
	}()
	select {
	case <-done:
	case <-time.After(containers.StopTimeout):
	}
}

func (s *Server) ready(ctx context.Context) {
	if s.opts.Keeper == nil {
		return
	}
	ctx, stop := context.WithTimeout(ctx, heldfiles.KeeperTimeout)
	defer stop()
	if err := s.opts.Keeper.Ready(ctx); err != nil {
		s.log.Warn("cannot report to the keeper that the supervisor is ready", "error", err)
	}
}

// unused returns how long there has been neither a container nor a client, as far as earlier calls
// have seen; 0 while there is one.
func (s *Server) unused() time.Duration {
	empty := s.containers.Empty()
	s.mu.Lock()
	defer s.mu.Unlock()
	if !empty || len(s.sessions) > 0 {
		s.changed = time.Now()
		return 0
	}
	return time.Since(s.changed)
}

// listen makes the socket. It renames the socket to its path once the socket is ready and has
// its mode.
func (s *Server) listen() (*net.UnixListener, error) {
	path := filepath.Join(s.opts.StateDir, socketName)
	next := path + ".next"
	if err := errs.IgnoreNotExist(os.Remove(next)); err != nil {
		return nil, fmt.Errorf("cannot listen: %w", err)
	}
	listener, err := net.ListenUnix("unix", &net.UnixAddr{Name: next, Net: "unix"})
	if err != nil {
		return nil, fmt.Errorf("cannot listen: %w", err)
	}
	listener.SetUnlinkOnClose(false)
	if err := errors.Join(os.Chmod(next, 0o600), os.Rename(next, path)); err != nil {
		listener.Close()
		return nil, fmt.Errorf("cannot listen: %w", err)
	}
	return listener, nil
}

// accept serves the connections of this user and of root.
func (s *Server) accept(listener *net.UnixListener) {
	for {
		conn, err := listener.AcceptUnix()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			s.log.Error("cannot accept a connection", "error", err)
			time.Sleep(100 * time.Millisecond) // out of descriptors, most likely
			continue
		}
		if err := checkPeer(conn); err != nil {
			s.log.Warn("refused a connection", "error", err)
			conn.Close()
			continue
		}
		go s.serve(conn)
	}
}

func checkPeer(conn *net.UnixConn) error {
	pid, uid, err := sysfd.PeerPid(conn)
	if err != nil {
		return err
	}
	if uid != 0 && uid != os.Geteuid() {
		return fmt.Errorf("process %d of user %d: %w", pid, uid, errs.Invalid)
	}
	return nil
}
