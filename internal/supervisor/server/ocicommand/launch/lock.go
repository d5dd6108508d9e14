package launch

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/sys/sysfd"
)

// lockTimeout bounds the wait for a launcher that ends by itself.
const lockTimeout = 10 * time.Second

// AwaitLock returns the lock of an order, once its launcher has ended, which a supervisor that has died may have left.
// The caller closes it. Kind Unavailable when the launcher does not end within 10 seconds. The directory of path
// has to exist.
func AwaitLock(ctx context.Context, path string) (*sysfd.Lock, error) {
	ctx, stop := context.WithTimeout(ctx, lockTimeout)
	defer stop()
	for {
		lock, holder, err := sysfd.TryLock(path)
		if lock != nil || err != nil {
			return lock, err
		}
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("process %d, which works on it, does not end: %w", holder, errs.Unavailable)
		case <-time.After(5 * time.Millisecond):
		}
	}
}

// errBusy is that another process has the lock: one that removes the container, or a launcher that outlives its supervisor
// for a moment.
var errBusy = errors.New("it has the lock")

// takeLock takes the lock of the order, if that has one.
func (l *launcher) takeLock() error {
	if l.order.Lock == "" {
		return nil
	}
	lock, holder, err := sysfd.TryLock(l.order.Lock)
	if err != nil {
		return err
	}
	if lock == nil {
		return fmt.Errorf("process %d works on the container: %w", holder, errBusy)
	}
	l.lock = lock
	return nil
}
