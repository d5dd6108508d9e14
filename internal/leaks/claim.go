package leaks

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/supervisor/keep"
	"github.com/berthrun/berth/internal/sys/sysfd"
)

// claim keeps a berth from starting while its leaks are repaired.
type claim struct{ lock *sysfd.Lock }

// Close lets a berth start again.
func (f *Facts) Close() error {
	if f.claim.lock == nil {
		return nil
	}
	lock := f.claim.lock
	f.claim.lock = nil
	return lock.Close()
}

// mayRepair returns why nothing is repaired now, nil for no reason. While berth runs, it has answered
// what it has records of. While it does not run, doctor holds its lock.
func (f *Facts) mayRepair(ctx context.Context, processes bool) error {
	if _, err := os.Stat(f.sandboxDir()); err != nil {
		return fmt.Errorf("berth's records are not in %s, so it is not known what has one; start berth, or give the flags of its `berth serve`: %w", f.sandboxDir(), errs.State)
	}
	if f.claim.lock == nil {
		done, err := f.claimOrRunning(ctx)
		if err != nil || done {
			return err
		}
	}
	keeper, err := f.held(filepath.Join(f.State, "supervisor", keep.LockName))
	if err != nil {
		return err
	}
	if keeper != 0 && processes {
		return fmt.Errorf("berth does not run, and its supervisor (process %d) may have these processes; start berth, whose start ends what has no record: %w", keeper, errs.State)
	}
	return f.inPlaceOf("berth's supervisor", keeper)
}

// claimOrRunning takes the lock of a berth that does not run. running is true if one does, and may be
// repaired beside: then there is no lock.
func (f *Facts) claimOrRunning(ctx context.Context) (running bool, err error) {
	path := f.lockFile()
	if _, err = f.ask(ctx); err == nil {
		holder, err := f.held(path)
		if err != nil || holder != 0 {
			return true, errors.Join(err, f.inPlaceOf("berth", holder))
		}
	} else if !errors.Is(err, errs.Unavailable) {
		return false, err
	}
	lock, holder, err := sysfd.TryLock(path)
	if err != nil {
		return false, err
	}
	if lock == nil {
		return false, fmt.Errorf("berth (process %d) has the directory %s, and does not answer on its socket; look at its log: %w", holder, f.State, errs.Unavailable)
	}
	f.claim.lock = lock
	return false, nil
}

// inPlaceOf is an error of kind State if this process does not see the mounts and links of another
// one; pid is 0 for none, and -1 if it is in another PID namespace.
func (f *Facts) inPlaceOf(who string, pid int) error {
	if pid == 0 {
		return nil
	}
	same, err := f.Host.SameNamespaces(pid)
	if err != nil {
		return err
	}
	if !same {
		return fmt.Errorf("%s has other namespaces than this process; run doctor where berth runs: %w", who, errs.State)
	}
	return nil
}
