// Package containers manages the containers of the supervisor: it creates, starts, watches and
// removes them, runs commands in them, and adopts those of a predecessor.
//
// It knows neither connections nor the protocol: package server turns requests into calls of it,
// and is its Clients.
package containers

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	goruntime "runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/semaphore"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/figures"
	"github.com/berthrun/berth/internal/supervisor"
	"github.com/berthrun/berth/internal/supervisor/keep"
	"github.com/berthrun/berth/internal/supervisor/server/adopted"
	"github.com/berthrun/berth/internal/supervisor/server/heldfiles"
	"github.com/berthrun/berth/internal/supervisor/server/logpump"
	"github.com/berthrun/berth/internal/supervisor/server/ocicommand"
	"github.com/berthrun/berth/internal/supervisor/server/ociruntime"
	"github.com/berthrun/berth/internal/supervisor/server/record"
	"github.com/berthrun/berth/internal/supervisor/server/shim"
	"github.com/berthrun/berth/internal/sys/cgroup"
	"github.com/berthrun/berth/internal/sys/sysfile"
	"github.com/berthrun/berth/internal/sys/sysproc"
)

// Keeper is the part of keep.Client that a Set needs.
type Keeper interface {
	heldfiles.Keeper
	Exit(ctx context.Context, pid int, start uint64) (keep.Exit, error)
	Forget(ctx context.Context, pid int, start uint64) error
}

// Clients hold duplicates of the containers' descriptors and are notified of exits. The methods do
// not wait for an answer.
type Clients interface {
	// Hold sends every client a descriptor of a container, to be held under a name
	// (supervisor.StreamStart, ...).
	Hold(id, name string, f *os.File)
	// Drop has every client close what it holds of a container: all of it, or what names
	// says.
	Drop(id string, names ...string)
	// Exited reports an exit.
	Exited(exit supervisor.Exit)
}

// Options configure a Set.
type Options struct {
	// StateDir is on tmpfs and outlives the process. In it: runc/<id> (in runc's format),
	// handlers/<id> and shims (of containers that handlers make), supervisor/<id>, quarantine.
	StateDir string
	// Keeper is this process's parent; nil when there is none.
	Keeper  Keeper
	Clients Clients
	// OwnInit lets berth's own init start the containers that it can.
	OwnInit bool
	Logger  *slog.Logger
}

const (
	// reserveName is the file that holds room in the state directory.
	reserveName = "reserve"
	// memoryPause is the time between a create and the release of the memory that it took.
	memoryPause = 3 * time.Second
	// StopTimeout is how long work that must not be cut in the middle may go on when this
	// process ends.
	StopTimeout = 5 * time.Second
)

// Set is all containers of a state directory. It is made by New and used after one Begin.
type Set struct {
	opts    Options
	log     *slog.Logger
	runtime *ociruntime.Runtime
	// programs are the OCI runtimes of handlers.
	programs *ocicommand.Programs
	shims    *shim.Shims
	host     *ociruntime.Host
	loop     *logpump.Loop
	held     *heldfiles.Store
	adopted  *adopted.Processes
	// reserve is for the ends of containers, on a state directory that others have filled.
	reserve *sysfile.Reserve
	oom     *cgroup.OOMWatch
	// ends notices the ends of inits.
	ends   *sysproc.ExitWatch
	bootID string

	// forking is held for reading by whoever starts processes or lets them begin.
	forking sync.RWMutex
	// execs bounds the execs that are starting; see execTurn.
	execs *semaphore.Weighted
	// stopping ends when this process does.
	stopping context.Context //nolint:containedctx // the life of the process

	mu         sync.Mutex
	containers map[string]*Container
	// warnings are what adoption could not do.
	warnings []string
	// starts counts the creates of this process by what did them, reasons those of libcontainer by their
	// reason; see countStart.
	starts, reasons map[string]uint64

	// offered is closed when a client has offered what it held.
	offered     chan struct{}
	offeredOnce sync.Once

	// lastCreate is when the last create or exec, or this process itself, began, in nanoseconds, 0
	// when its memory was given back.
	lastCreate atomic.Int64
}

// New returns a Set on opts.StateDir, which exists.
func New(opts Options) (*Set, error) {
	s := &Set{
		opts:       opts,
		log:        opts.Logger,
		held:       heldfiles.New(opts.Keeper, opts.Logger),
		adopted:    adopted.New(filepath.Join(opts.StateDir, adopted.DirName), opts.Logger),
		containers: make(map[string]*Container),
		starts:     make(map[string]uint64),
		reasons:    make(map[string]uint64),
		offered:    make(chan struct{}),
		execs:      semaphore.NewWeighted(execTurns(goruntime.NumCPU())),
	}
	var err error
	if s.bootID, err = sysproc.BootID(); err != nil {
		return nil, err
	}
	if s.host, err = ociruntime.ReadHost(); err != nil {
		return nil, err
	}
	if s.runtime, err = ociruntime.New(filepath.Join(opts.StateDir, "runc"), s.host, opts.OwnInit, s.isInit); err != nil {
		return nil, err
	}
	go s.runtime.Warm()
	if s.programs, err = ocicommand.New(filepath.Join(opts.StateDir, "handlers"), s.runtime, s.host, opts.Logger); err != nil {
		return nil, err
	}
	if s.shims, err = shim.New(filepath.Join(opts.StateDir, "shims"), s.runtime, s.host, opts.Logger, s.forgetExit); err != nil {
		return nil, err
	}
	if s.loop, err = logpump.NewLoop(); err != nil {
		return nil, err
	}
	if s.oom, err = cgroup.NewOOMWatch(); err != nil {
		return nil, err
	}
	if s.ends, err = sysproc.NewExitWatch(); err != nil {
		return nil, err
	}
	return s, nil
}

// Begin adopts the containers of a predecessor and watches them until ctx ends, with this
// process. watched has the end of the log pump or of the watch for exits, which end before ctx by an error
// only. It fails when the keeper does not return its descriptors.
func (s *Set) Begin(ctx context.Context) (watched <-chan error, err error) {
	s.stopping = ctx
	s.reserve = sysfile.KeepReserve(filepath.Join(s.opts.StateDir, reserveName))
	ended := make(chan error, 2)
	go func() { ended <- s.loop.Run(ctx) }()
	go func() { ended <- s.ends.Run(ctx) }()
	if err := s.held.Fetch(ctx); err != nil {
		return nil, fmt.Errorf("cannot get what the keeper holds: %w", err)
	}
	go s.oom.Run(ctx)
	s.adopted.Begin(ctx, s.held, s.reserve)
	if err := s.shims.Begin(); err != nil {
		s.warn("%v", err)
	}
	s.adopt(ctx)
	go s.adopted.Listen(ctx)
	s.lastCreate.Store(time.Now().UnixNano())
	return ended, nil
}

// Held returns the descriptors that the keeper holds, or would hold, for the containers. A process
// that becomes the keeper needs them.
func (s *Set) Held() []keep.Held { return s.held.All() }

// Offered ends the wait of containers for descriptors that a client may offer.
func (s *Set) Offered() { s.offeredOnce.Do(func() { close(s.offered) }) }

// Starters counts the containers by what created them, and by why that was not berth's own init.
func (s *Set) Starters() (starters, reasons map[string]int) {
	starters, reasons = make(map[string]int), make(map[string]int)
	for _, c := range s.All() {
		rec := c.snapshot()
		if rec.Starter != "" {
			starters[rec.Starter]++
		}
		if rec.StarterReason != "" {
			reasons[rec.StarterReason]++
		}
	}
	return starters, reasons
}

// LogFigures counts what containers have written to their logs, since the start of this process.
func (s *Set) LogFigures() figures.Logs { return s.loop.Figures() }

// Warnings returns the failures of adoption, and the abilities that the host denies containers, one
// sentence each.
func (s *Set) Warnings() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append(s.host.Warnings(), s.warnings...)
}

// forgetExit has the keeper forget the exit of a process, if it has recorded it.
func (s *Set) forgetExit(pid int, start uint64) {
	if s.opts.Keeper == nil {
		return
	}
	ctx, stop := context.WithTimeout(context.Background(), heldfiles.KeeperTimeout)
	defer stop()
	if err := s.opts.Keeper.Forget(ctx, pid, start); err != nil {
		s.log.Debug("cannot have the keeper forget an exit", "pid", pid, "error", err)
	}
}

// FreeMemory returns memory to the host once the start or the creates that needed it have ended.
func (s *Set) FreeMemory() {
	last := s.lastCreate.Load()
	if last != 0 && time.Since(time.Unix(0, last)) > memoryPause && s.lastCreate.CompareAndSwap(last, 0) {
		if err := sysproc.ReleaseMemory(); err != nil {
			s.log.Debug("cannot return memory to the host", "error", err)
		}
	}
}

// enterFork waits until this process may start other processes, or let waiting inits continue. Kind
// Unavailable when this process is about to become the keeper. leave must be called afterwards.
func (s *Set) enterFork(ctx context.Context) (leave func(), err error) {
	s.forking.RLock()
	if s.stopping.Err() != nil {
		s.forking.RUnlock()
		return nil, fmt.Errorf("supervisor is stopping: %w", errs.Unavailable)
	}
	if err := ctx.Err(); err != nil {
		s.forking.RUnlock()
		return nil, err
	}
	s.lastCreate.Store(time.Now().UnixNano())
	return s.forking.RUnlock, nil
}

// BlockForks waits for the starts of processes that are under way, and blocks new ones until
// release is called.
func (s *Set) BlockForks() (release func()) {
	s.forking.Lock()
	return s.forking.Unlock
}

// Find returns a container, also a partly created one. Kind NotFound when there is none.
func (s *Set) Find(id string) (*Container, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if c := s.containers[id]; c != nil {
		return c, nil
	}
	return nil, fmt.Errorf("container %s: %w", id, errs.NotFound)
}

// Has reports whether anything of a container exists.
func (s *Set) Has(id string) bool {
	_, err := s.Find(id)
	return err == nil
}

// All returns every container, in no order.
func (s *Set) All() []*Container {
	s.mu.Lock()
	defer s.mu.Unlock()
	list := make([]*Container, 0, len(s.containers))
	for _, c := range s.containers {
		list = append(list, c)
	}
	return list
}

// List describes every container, ordered by id. A container of which only the runtime's state is
// left is supervisor.Broken.
func (s *Set) List() ([]supervisor.Container, error) {
	list := []supervisor.Container{}
	known := map[string]bool{}
	for _, c := range s.All() {
		list = append(list, c.Describe())
		known[c.id] = true
	}
	ids, err := s.runtimeIDs()
	if err != nil {
		return nil, err
	}
	for _, id := range ids {
		if !known[id] {
			list = append(list, supervisor.Container{ID: id, State: supervisor.Broken})
		}
	}
	slices.SortFunc(list, func(a, b supervisor.Container) int { return cmp.Compare(a.ID, b.ID) })
	return list, nil
}

// Empty reports whether there is no container.
func (s *Set) Empty() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.containers) == 0
}

// claim adds a container that is being created. errs.Exists when anything of it
// exists.
func (s *Set) claim(rec record.Container) (*Container, error) {
	c := s.newContainer(rec)
	c.exclusive <- struct{}{}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.containers[rec.ID] != nil {
		return nil, fmt.Errorf("container %s: %w", rec.ID, errs.Exists)
	}
	s.containers[rec.ID] = c
	return c, nil
}

// claimFor is claim for a create. It fails when ctx has ended: a Remove that came after the end has found no container,
// and nothing of it may exist from then on.
func (s *Set) claimFor(ctx context.Context, rec record.Container) (*Container, error) {
	c, err := s.claim(rec)
	if err != nil {
		return nil, err
	}
	if ctx.Err() != nil {
		s.delete(c)
		c.unlock()
		return nil, context.Cause(ctx)
	}
	return c, nil
}

func (s *Set) delete(c *Container) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.containers[c.id] == c {
		delete(s.containers, c.id)
	}
	close(c.gone)
}

// isInit reports whether a process is the init of a container.
func (s *Set) isInit(pid int) bool {
	return slices.ContainsFunc(s.All(), func(c *Container) bool {
		init := c.snapshot().Init
		return init != nil && init.Pid == pid
	})
}

// dir is the directory of a container's record.
func (s *Set) dir(id string) string { return filepath.Join(s.opts.StateDir, "supervisor", id) }

// warn logs a failure of adoption, and keeps it for Warnings.
func (s *Set) warn(format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	s.log.Error(text)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.warnings = append(s.warnings, text)
}

// lasting returns a context for work that goes on when the client's connection ends, but not when
// the client cancels.
func (s *Set) lasting(ctx context.Context) (context.Context, context.CancelFunc) {
	out, cancel := context.WithCancel(s.stopping)
	stop := context.AfterFunc(ctx, func() {
		if !errors.Is(context.Cause(ctx), errs.Unavailable) {
			cancel()
		}
	})
	return out, func() { stop(); cancel() }
}

// outlasting is lasting for work that must not be interrupted: when this process ends, the work has
// StopTimeout more.
func (s *Set) outlasting(ctx context.Context) (context.Context, context.CancelFunc) {
	out, cancel := context.WithCancel(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, func() {
		if !errors.Is(context.Cause(ctx), errs.Unavailable) {
			cancel()
		}
	})
	stopLast := context.AfterFunc(s.stopping, func() { time.AfterFunc(StopTimeout, cancel) })
	return out, func() { stop(); stopLast(); cancel() }
}
