package keep

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/sys/cgroup"
	"github.com/berthrun/berth/internal/sys/sysfd"
	"github.com/berthrun/berth/internal/sys/sysfile"
	"github.com/berthrun/berth/internal/sys/sysproc"
)

// keeper is the state of the process. One goroutine, run, owns all of it. The reader of the
// supervisor's socket and the timers only send to it.
type keeper struct {
	opts   Options
	log    *slog.Logger
	notify notifier

	ledger *ledger
	held   *holdings

	// child is the supervisor, nil while none runs.
	child *child
	// restart starts the next supervisor after a pause; nil otherwise.
	restart  <-chan time.Time
	failures int
	// upgrade is the request that is under way, nil otherwise.
	upgrade *upgrade
	// kill fires when a supervisor has not ended in time after a SIGTERM.
	kill     <-chan time.Time
	stopping bool
	// idle is true when the supervisor ended because nothing is left to do.
	idle   bool
	status Status
}

// Status is the content of keeper.json, for people and for tests.
type Status struct {
	// Pid is the keeper's.
	Pid     int       `json:"pid"`
	Started time.Time `json:"started"`
	// Binary is what the next supervisor will be started from.
	Binary string `json:"binary"`
	// Supervisor is its pid, 0 while none runs.
	Supervisor int `json:"supervisor"`
	// Ready is true once this supervisor has reported that it serves.
	Ready bool `json:"ready"`
	// Restarts counts the supervisors after the first.
	Restarts int `json:"restarts"`
	// LastEnd is how the last supervisor ended.
	LastEnd string `json:"lastEnd,omitempty"`
	// NextStart is when the next one starts, when it has to wait.
	NextStart *time.Time `json:"nextStart,omitempty"`
	// Upgrade is the error of the last upgrade, "" when it succeeded.
	UpgradeAt    *time.Time `json:"upgradeAt,omitempty"`
	UpgradeError string     `json:"upgradeError,omitempty"`
}

// run starts supervisors until there is no reason for one any more.
func (k *keeper) run(ctx context.Context, signals <-chan os.Signal) error {
	k.status = Status{Pid: os.Getpid(), Started: time.Now(), Binary: k.opts.Binary}
	k.sweep()
	k.start()
	for !k.done() {
		select {
		case <-ctx.Done():
			k.stop()
			ctx = context.WithoutCancel(ctx)
		case sig := <-signals:
			k.signalled(sig)
		case req, ok := <-k.child.incoming():
			if !ok {
				k.child.requests = nil // its end follows
				continue
			}
			k.serve(k.child, req)
		case <-k.restart:
			k.restart = nil
			k.start()
		case <-k.kill:
			k.kill = nil
			k.log.Warn("the supervisor did not end after SIGTERM; killing it", "pid", k.child.pid)
			k.signalChild(syscall.SIGKILL)
		case <-k.upgrade.deadline():
			k.abandonUpgrade()
		}
	}
	return k.leave()
}

// done reports whether the keeper is to stop, or has nothing to keep, and has no child of its
// own left.
func (k *keeper) done() bool {
	return k.stopping && k.child == nil && k.upgrade == nil
}

func notifySignals() (<-chan os.Signal, func()) {
	// SIGPIPE has a handler so that a closed log does not end the process. No signal is ignored:
	// containers would inherit that.
	ch := make(chan os.Signal, 16)
	signal.Notify(ch, syscall.SIGCHLD, syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP, syscall.SIGQUIT, syscall.SIGPIPE)
	return ch, func() { signal.Stop(ch) }
}

func (k *keeper) signalled(sig os.Signal) {
	k.sweep() // for every signal: the channel may have been full for a SIGCHLD
	switch sig {
	case syscall.SIGTERM, syscall.SIGINT, syscall.SIGQUIT:
		k.log.Info("stopping", "signal", sig.String())
		k.stop()
	case syscall.SIGHUP:
		k.beginUpgrade(nil)
	}
}

// stop sends the supervisor a SIGTERM. Containers go on.
func (k *keeper) stop() {
	if k.stopping {
		return
	}
	k.stopping = true
	k.restart = nil
	k.abandonUpgrade()
	k.terminateChild()
}

func (k *keeper) terminateChild() {
	if k.child == nil {
		return
	}
	k.signalChild(syscall.SIGTERM)
	k.kill = time.After(k.opts.StopTimeout)
}

// sweep reaps every child that has ended. The supervisor and its self-test have their own
// handlers; the status of every other child goes into the ledger first.
func (k *keeper) sweep() {
	for {
		pid, status, err := sysproc.PeekAnyChild()
		if errors.Is(err, errs.NotFound) || err == nil && pid == 0 {
			return
		}
		if err != nil {
			k.log.Error("cannot find ended children", "error", err)
			return
		}
		ours := k.child != nil && pid == k.child.pid
		helper := k.upgrade != nil && pid == k.upgrade.pid
		if !ours && !helper {
			k.record(pid, status)
		}
		if err := sysproc.ReapPid(pid); err != nil {
			k.log.Error("cannot reap a child", "pid", pid, "error", err)
			return
		}
		switch {
		case ours:
			k.childEnded(status)
		case helper:
			k.selfTested(status)
		}
	}
}

func (k *keeper) record(pid int, status syscall.WaitStatus) {
	proc, err := sysproc.ReadProc(pid)
	if err == nil {
		err = k.ledger.add(identity{pid, proc.Start}, entry{status, time.Now()})
	}
	if err != nil {
		k.log.Error("cannot record an exit", "pid", pid, "error", err)
	}
}

// leave is the end of the process.
func (k *keeper) leave() error {
	for _, fds := range k.held.fds.All() {
		sysfd.CloseFDs(fds)
	}
	if k.opts.Cgroup != "" {
		if err := cgroup.Leave(k.opts.Cgroup); err != nil {
			k.log.Warn("cannot remove the keeper's cgroup", "error", err)
		}
	}
	if k.idle {
		if err := k.ledger.remove(); err != nil {
			k.log.Warn("cannot remove the ledger", "error", err)
		}
	}
	return errs.IgnoreNotExist(os.Remove(filepath.Join(k.opts.StateDir, StatusName)))
}

// publish writes keeper.json. The file is for people, so a failure is only logged.
func (k *keeper) publish() {
	data, err := json.Marshal(k.status)
	if err == nil {
		err = sysfile.Replace(filepath.Join(k.opts.StateDir, StatusName), append(data, '\n'))
	}
	if err != nil {
		k.log.Warn("cannot write the keeper's status", "error", err)
	}
}
