// Package keep is the keeper, the supervisor's parent, and the supervisor's client for it.
//
// The keeper has three tasks: it holds duplicates of descriptors that cannot be reopened, it
// records the exits of the processes that it has adopted (the ledger), and it restarts the
// supervisor. It parses nothing but the fixed frames of frame.go, and does not know what a
// container is: a key is a text to it, a process is a pid with a start time.
//
// The life of the two, where K is the keeper and S the supervisor:
//
//	S dies      K adopts its children, records and reaps those that end, and starts S
//	            again; S gets the descriptors and the exit statuses from K.
//	K dies      S notices, takes K's lock, ends what is under way, and becomes
//	            the keeper by execve (TakeOver): same pid, still the parent.
//	S exits 0   with --exit-when-idle: nothing is left to keep, K ends too. So a
//	            supervisor that ends by a signal exits with another status.
//	SIGTERM     K sends S a SIGTERM, waits, and ends; containers go on.
//	SIGHUP      the binary on disk tests itself, and replaces S. K stays.
//
// Files below the state directory: keeper.lock (held by the keeper),
// supervisor.lock (held by the supervisor), ledger, keeper.json (for people).
package keep

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"strings"
	"time"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/sys/cgroup"
	"github.com/berthrun/berth/internal/sys/sysfd"
	"github.com/berthrun/berth/internal/sys/sysproc"
)

// Options configure the keeper.
type Options struct {
	// StateDir is the directory of locks and ledger. It exists.
	StateDir string
	// Binary is the path of the supervisor's program, looked up at each start; "" means this
	// one.
	Binary string
	// Args start the supervisor: {"serve", "--state", ...}.
	Args []string
	// SelfTest are the arguments that make Binary test itself and exit with 0:
	// {"selftest"}. Nil skips the test.
	SelfTest []string
	// ExitWhenIdle ends the keeper when the supervisor exits with status 0.
	// Without it any end of the supervisor means a restart.
	ExitWhenIdle bool
	// Cgroup is the name of a cgroup for the keeper, below the root of each hierarchy. It enters
	// it at the start and removes it at the end. "" leaves the keeper where it is.
	Cgroup string
	// StopTimeout is how long a supervisor may take to end after a SIGTERM; then it is killed.
	// 0 means 10 s.
	StopTimeout time.Duration
	// OrphanGrace is how long a supervisor whose keeper died may take to become the
	// keeper, before a new keeper kills it. 0 means 10 s.
	OrphanGrace time.Duration
	// Logger is the keeper's log.
	Logger *slog.Logger
}

// The files below the state directory that others need to know.
const (
	// LockName is the keeper's lock; sysfd.LockHolder returns its pid.
	LockName = "keeper.lock"
	// SupervisorLockName is the supervisor's lock.
	SupervisorLockName = "supervisor.lock"
	// StatusName is a JSON file, Status, about the keeper and its supervisor.
	StatusName = "keeper.json"

	ledgerName = "ledger"
)

const (
	defaultStopTimeout = 10 * time.Second
	defaultOrphanGrace = 10 * time.Second
)

// Run keeps a supervisor running until it gets SIGTERM or SIGINT, ctx ends or, with
// ExitWhenIdle, the supervisor has nothing to do; then it returns nil. When another process is
// the keeper it returns an error of kind Exists. If systemd has started this one it sends READY
// instead, waits, forwards SIGTERM and SIGHUP, and returns nil when the other has ended: systemd
// starts it again.
//
// Run must be the first call of its process: it changes the process (subreaper, signals, Go's
// memory settings), reaps every child, and takes the descriptors that systemd or a TakeOver
// left open.
func Run(ctx context.Context, opts Options) error {
	if err := sysfd.CloseOnExecFrom(firstListenFD); err != nil {
		return err
	}
	inherited, err := readInheritance()
	if err != nil {
		return err
	}
	opts, err = opts.withDefaults(inherited)
	if err != nil {
		return err
	}
	shrink()
	k := &keeper{opts: opts, log: opts.Logger, notify: systemd(inherited, opts.Logger)}
	signals, stopSignals := notifySignals()
	defer stopSignals()
	held, err := takeStored(inherited)
	if err != nil {
		return err
	}
	lock, holder, err := acquire(ctx, opts, inherited)
	if err != nil {
		return err
	}
	if lock == nil {
		closeAll(held)
		if k.notify.path == "" {
			return fmt.Errorf("another keeper (process %d) runs for the state directory %s; end it, or use another directory: %w", holder, opts.StateDir, errs.Exists)
		}
		return k.standBy(ctx, holder, signals)
	}
	defer lock.Close()
	if err := k.prepare(held); err != nil {
		return err
	}
	return k.run(ctx, signals)
}

// LockSupervisor takes the lock that allows one supervisor at a time. Kind Exists
// when another process holds it.
func LockSupervisor(stateDir string) (*sysfd.Lock, error) {
	lock, holder, err := sysfd.TryLock(filepath.Join(stateDir, SupervisorLockName))
	if err != nil {
		return nil, err
	}
	if lock == nil {
		return nil, fmt.Errorf("another supervisor (process %d) runs for the state directory %s; end it, or use another directory: %w", holder, stateDir, errs.Exists)
	}
	return lock, nil
}

func (o Options) withDefaults(inherited *inheritance) (Options, error) {
	if o.StateDir == "" || len(o.Args) == 0 {
		return o, fmt.Errorf("keeper without state directory or arguments: %w", errs.Invalid)
	}
	if o.Logger == nil {
		o.Logger = slog.Default()
	}
	if o.StopTimeout == 0 {
		o.StopTimeout = defaultStopTimeout
	}
	if o.OrphanGrace == 0 {
		o.OrphanGrace = defaultOrphanGrace
	}
	if o.Binary == "" && inherited != nil {
		o.Binary = inherited.binary
	}
	if o.Binary == "" {
		self, err := os.Executable()
		if err != nil {
			return o, fmt.Errorf("cannot find the supervisor's program: %w", err)
		}
		o.Binary = self
	}
	return o, nil
}

// shrink keeps the process small: it is nearly always idle, and its work is never urgent.
func shrink() {
	const gcPercent = 10
	debug.SetGCPercent(gcPercent)
	runtime.GOMAXPROCS(1)
}

// takeStored returns the descriptors that were held for this process before it began: by the
// process image before execve, or by systemd. Never both, since systemd's are the same.
func takeStored(inherited *inheritance) (map[string][]int, error) {
	held, strange := storedFDs(os.Getenv, os.Getpid())
	for _, name := range unitEnvironment() {
		if err := os.Unsetenv(name); err != nil {
			return nil, fmt.Errorf("cannot clear the environment: %w", err)
		}
	}
	sysfd.CloseFDs(strange)
	if inherited == nil {
		return held, nil
	}
	closeAll(held)
	return inherited.held, nil
}

func closeAll(held map[string][]int) {
	for _, fds := range held {
		sysfd.CloseFDs(fds)
	}
}

// enterCgroup moves the keeper out of the cgroup of the daemon that started it, and of
// whatever pod or session that is in, into one of its own.
func enterCgroup(name string) error {
	if name != filepath.Base(name) || strings.Contains(name, "kubepods") {
		return fmt.Errorf("cgroup %q is no name for a supervisor's own", name)
	}
	return cgroup.Enter(name)
}

// prepare makes the process a keeper. What the host forbids is left out.
func (k *keeper) prepare(held map[string][]int) error {
	if err := sysproc.SetSubreaper(); err != nil {
		return err
	}
	if err := sysproc.SetOOMScoreAdj(oomScoreAdj); err != nil && !errors.Is(err, errs.Unsupported) {
		return err
	}
	if k.opts.Cgroup != "" {
		if err := enterCgroup(k.opts.Cgroup); err != nil {
			k.log.Warn("cannot move the keeper to its own cgroup; it stays in the cgroup of the "+
				"process that started it",
				"error", err)
		}
	}
	bootID, err := sysproc.BootID()
	if err != nil {
		return err
	}
	if k.ledger, err = openLedger(filepath.Join(k.opts.StateDir, ledgerName), bootID); err != nil {
		return err
	}
	if k.held, err = newHoldings(k.notify); err != nil {
		return err
	}
	for key, fds := range held {
		k.held.adopt(key, fds)
	}
	return nil
}

// oomScoreAdj is for the keeper and, by inheritance, the supervisor.
const oomScoreAdj = -999

// systemd is where the unit's manager listens, if there is one.
func systemd(inherited *inheritance, log *slog.Logger) notifier {
	if inherited != nil {
		return notifier{path: inherited.notify, log: log}
	}
	return notifier{path: os.Getenv("NOTIFY_SOCKET"), main: true, log: log}
}
