package keep

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/sys/sysfd"
	"github.com/berthrun/berth/internal/sys/sysproc"
)

const lockPoll = 20 * time.Millisecond

// acquire takes the keeper's lock. lock is nil when holder, another process, has
// it. A supervisor without keeper goes first: it is the parent of its containers
// and about to take over.
func acquire(ctx context.Context, o Options, inherited *inheritance) (lock *sysfd.Lock, holder int, err error) {
	if inherited != nil {
		lock, err := confirm(ctx, inherited.lock, o.Logger)
		return lock, 0, err
	}
	path := filepath.Join(o.StateDir, LockName)
	if err := awaitOrphan(ctx, o, path); err != nil {
		return nil, 0, err
	}
	return sysfd.TryLock(path)
}

// confirm takes a lock that came through execve again. Kernels before 5.11 drop it there when
// the process had threads. If another keeper was faster, this one stays the parent of its
// containers and waits.
func confirm(ctx context.Context, f *os.File, log *slog.Logger) (*sysfd.Lock, error) {
	for warned := false; ; warned = true {
		lock, holder, err := sysfd.LockFile(f)
		if lock != nil || err != nil {
			return lock, err
		}
		if !warned {
			log.Warn("another keeper took the lock during the take-over; waiting for it to end", "pid", holder)
		}
		if err := pause(ctx, lockPoll); err != nil {
			return nil, err
		}
	}
}

// awaitOrphan waits until a supervisor without keeper has become the keeper, or has ended. It
// kills one that takes too long; the containers of that one go on.
func awaitOrphan(ctx context.Context, o Options, keeperLock string) error {
	deadline := time.Now().Add(o.OrphanGrace)
	for {
		supervisor, err := sysfd.LockHolder(filepath.Join(o.StateDir, SupervisorLockName))
		if err != nil || supervisor == 0 {
			return err
		}
		keeper, err := sysfd.LockHolder(keeperLock)
		if err != nil || keeper != 0 {
			return err
		}
		if time.Now().After(deadline) {
			o.Logger.Warn("a supervisor without keeper did not take over; ending it", "pid", supervisor)
			return evict(ctx, o.StateDir, supervisor)
		}
		if err := pause(ctx, lockPoll); err != nil {
			return err
		}
	}
}

// evict kills the process that holds the supervisor's lock.
func evict(ctx context.Context, stateDir string, pid int) error {
	pidfd, err := openHolder(filepath.Join(stateDir, SupervisorLockName), pid)
	if err != nil {
		return errs.IgnoreNotFound(err)
	}
	defer pidfd.Close()
	if err := sysproc.SignalPidfd(pidfd, syscall.SIGKILL); err != nil {
		return errs.IgnoreNotFound(err)
	}
	return sysproc.AwaitExit(ctx, pidfd)
}

// openHolder opens the process pid and makes sure that it still holds the lock at
// path, so that pid was not reused. Kind NotFound when it does not.
func openHolder(path string, pid int) (*os.File, error) {
	pidfd, err := sysproc.OpenPidfd(pid)
	if err != nil {
		return nil, err
	}
	holder, err := sysfd.LockHolder(path)
	if err == nil && holder != pid {
		err = fmt.Errorf("holder %d of %s: %w", pid, path, errs.NotFound)
	}
	if err != nil {
		pidfd.Close()
		return nil, err
	}
	return pidfd, nil
}

// standBy runs a keeper that systemd has started while another one has the lock, after a
// take-over. For systemd it represents the other keeper.
func (k *keeper) standBy(ctx context.Context, holder int, signals <-chan os.Signal) error {
	pidfd, err := openHolder(filepath.Join(k.opts.StateDir, LockName), holder)
	if err != nil {
		return errs.IgnoreNotFound(err)
	}
	defer pidfd.Close()
	k.log.Info("standing by for the keeper that took over", "pid", holder)
	k.notify.ready(fmt.Sprintf("keeper is process %d", holder))
	ended := make(chan error, 1)
	go func() { ended <- sysproc.AwaitExit(ctx, pidfd) }()
	for {
		select {
		case err := <-ended:
			if err != nil && ctx.Err() == nil {
				return err
			}
			return nil
		case sig := <-signals:
			number, ok := sig.(syscall.Signal)
			if !ok || number == syscall.SIGCHLD || number == syscall.SIGPIPE {
				continue
			}
			if err := sysproc.SignalPidfd(pidfd, number); err != nil && !errors.Is(err, errs.NotFound) {
				k.log.Warn("cannot forward a signal", "signal", number.String(), "error", err)
			}
		}
	}
}

func pause(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-timer.C:
		return nil
	}
}
