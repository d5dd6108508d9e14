// Package server is the supervisor's process: the parent of containers, which
// owns their stdio, logs, exit statuses and terminals, and runs the OCI runtime.
//
// It serves a daemon over a unix socket and outlives it. It keeps what it needs
// to know in records on tmpfs, so that its successor goes on where it stopped: an
// upgrade is a crash that was planned. It parses nothing from outside but the
// spec that the daemon sends, and knows nothing of pods, images and networks.
package server

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/supervisor/keep"
	"github.com/berthrun/berth/internal/supervisor/server/logpump"
	"github.com/berthrun/berth/internal/supervisor/server/ociruntime"
	"github.com/berthrun/berth/internal/sys/cgroup"
	"github.com/berthrun/berth/internal/sys/sysfd"
	"github.com/berthrun/berth/internal/sys/sysfile"
	"github.com/berthrun/berth/internal/sys/sysproc"
)

// Options are what a Server is made from.
type Options struct {
	// StateDir is on tmpfs and outlives the process. In it: supervisor.sock,
	// runc/<id> (in runc's format), supervisor/<id>, quarantine.
	StateDir string
	// Version is this build's.
	Version string
	// Keeper is this process's parent; nil when there is none.
	Keeper Keeper
	// ExitWhenIdle ends Run when there has been no container and no client for
	// some seconds.
	ExitWhenIdle bool
	Logger       *slog.Logger
}

// ErrKeeperLost is what Run returns when the keeper is gone and its place could
// not be taken: the process should end, and be started anew by another keeper.
var ErrKeeperLost = errors.New("keeper is lost")

const (
	socketName = "supervisor.sock"
	// reserveName is the file that holds room in it.
	reserveName = "reserve"
	// idleFor is how long nobody must need the supervisor before it ends.
	idleFor = time.Second
	// quiet is how long after a create the memory that it took is given back.
	quiet = 3 * time.Second
	// lastCalls is how long calls under way may take to notice the end.
	lastCalls = 5 * time.Second
)

// Server is the process. It is made by New and used by one Run.
type Server struct {
	opts      Options
	log       *slog.Logger
	runtime   *ociruntime.Runtime
	host      *ociruntime.Host
	loop      *logpump.Loop
	vault     *vault
	exits     exits
	strangers *strangers
	// reserve is for the ends of containers, on a state directory that others have filled.
	reserve *sysfile.Reserve
	oom     *cgroup.OOMWatch
	bootID  string

	// forking is held for reading by whoever starts processes or lets them begin.
	forking sync.RWMutex
	// stopping ends when Run does.
	stopping context.Context //nolint:containedctx // the life of the process
	stop     context.CancelFunc

	mu         sync.Mutex
	containers map[string]*container
	sessions   map[*session]bool
	// warnings are what adoption could not do.
	warnings []string
	// changed is when the last session or container went.
	changed time.Time

	// offered is closed when a client has given what it held.
	offered     chan struct{}
	offeredOnce sync.Once

	// lastCreate is when the last create or exec began, in nanoseconds, 0 when
	// its memory was given back.
	lastCreate atomic.Int64
}

// New returns a server on opts.StateDir, which exists.
func New(opts Options) (*Server, error) {
	s := &Server{
		opts:       opts,
		log:        opts.Logger,
		vault:      newVault(opts.Keeper, opts.Logger),
		strangers:  newStrangers(filepath.Join(opts.StateDir, "strangers"), opts.Logger),
		containers: make(map[string]*container),
		sessions:   make(map[*session]bool),
		offered:    make(chan struct{}),
		changed:    time.Now(),
	}
	var err error
	if s.bootID, err = sysproc.BootID(); err != nil {
		return nil, err
	}
	if s.host, err = ociruntime.ReadHost(); err != nil {
		return nil, err
	}
	if s.runtime, err = ociruntime.New(filepath.Join(opts.StateDir, "runc"), s.host, s.isInit); err != nil {
		return nil, err
	}
	if s.loop, err = logpump.NewLoop(); err != nil {
		return nil, err
	}
	if s.oom, err = cgroup.NewOOMWatch(); err != nil {
		return nil, err
	}
	return s, nil
}

// Run adopts what a predecessor left and serves until ctx ends (nil), nobody
// needs it any more (nil), or the keeper is lost. Kind Exists when another
// supervisor runs on the same state directory.
func (s *Server) Run(ctx context.Context) error {
	lock, err := keep.LockSupervisor(s.opts.StateDir)
	if err != nil {
		return err
	}
	defer lock.Close()
	if err := os.MkdirAll(filepath.Join(s.opts.StateDir, "supervisor"), 0o700); err != nil {
		return fmt.Errorf("cannot make the supervisor's directory: %w", err)
	}
	s.reserve = sysfile.KeepReserve(filepath.Join(s.opts.StateDir, reserveName))
	s.strangers.reserve = s.reserve
	s.stopping, s.stop = context.WithCancel(ctx)
	defer s.stop()
	pumped := make(chan error, 1)
	go func() { pumped <- s.loop.Run(s.stopping) }()
	if err := s.vault.fetch(ctx); err != nil {
		if s.keeperLost() {
			return s.takeOver() // with nothing: what the keeper held is gone
		}
		return fmt.Errorf("cannot get what the keeper holds: %w", err)
	}
	go s.oom.Run(s.stopping)
	s.strangers.begin(ctx, s.vault)
	s.adopt(ctx)
	go s.strangers.listen(s.stopping)
	listener, err := s.listen()
	if err != nil {
		return err
	}
	defer listener.Close()
	go s.accept(listener)
	s.ready(ctx)
	err = s.wait(ctx, pumped)
	listener.Close()
	s.stop()
	s.endCalls()
	return err
}

// wait returns when there is a reason to end.
func (s *Server) wait(ctx context.Context, pumped <-chan error) error {
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
		case err := <-pumped:
			if ctx.Err() != nil {
				return nil
			}
			return fmt.Errorf("log pump ended: %w", err)
		case <-lost:
			return s.takeOver()
		case <-tick.C:
			s.giveBack()
			if s.opts.ExitWhenIdle && s.idle() {
				s.log.Info("nobody needs the supervisor any more")
				return nil
			}
		}
	}
}

// giveBack returns memory to the host once the creates that needed it are over.
func (s *Server) giveBack() {
	last := s.lastCreate.Load()
	if last != 0 && time.Since(time.Unix(0, last)) > quiet && s.lastCreate.CompareAndSwap(last, 0) {
		debug.FreeOSMemory()
	}
}

func (s *Server) keeperLost() bool {
	return s.opts.Keeper != nil && isClosed(s.opts.Keeper.Lost())
}

// takeOver makes this process the keeper, and does not return if that succeeds.
func (s *Server) takeOver() error {
	s.log.Warn("the keeper is gone; taking its place")
	s.stop() // creates and execs under way end
	s.forking.Lock()
	defer s.forking.Unlock()
	err := s.opts.Keeper.TakeOver(s.vault.all())
	return fmt.Errorf("%w: %w", ErrKeeperLost, err)
}

// endCalls lets calls under way see the end and undo what they do.
func (s *Server) endCalls() {
	done := make(chan struct{})
	go func() {
		s.forking.Lock()
		close(done)
	}()
	select {
	case <-done:
	case <-time.After(lastCalls):
	}
}

func (s *Server) ready(ctx context.Context) {
	if s.opts.Keeper == nil {
		return
	}
	ctx, stop := context.WithTimeout(ctx, keeperTimeout)
	defer stop()
	if err := s.opts.Keeper.Ready(ctx); err != nil {
		s.log.Warn("the keeper was not told that the supervisor is ready", "error", err)
	}
}

func (s *Server) idle() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.containers) > 0 || len(s.sessions) > 0 {
		s.changed = time.Now()
	}
	return time.Since(s.changed) > idleFor
}

// listen makes the socket. It appears under its name only when it is ready and
// its mode is right.
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

// accept serves who connects, and only this user and root.
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
			s.log.Warn("a connection is refused", "error", err)
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
