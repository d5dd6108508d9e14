package kubeconfig

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/berthrun/berth/internal/errs"
)

// How long to wait for a lock, and how often to retry. kubectl holds one for milliseconds, and does
// not wait.
const (
	lockPatience = 10 * time.Second
	lockPause    = 20 * time.Millisecond
)

// lockAll takes kubectl's locks of files, always in the same order, so that two processes do not
// deadlock.
func lockAll(ctx context.Context, files []string) (unlock func() error, err error) {
	var held []string
	unlock = func() error {
		var all []error
		for _, file := range held {
			if err := errs.IgnoreNotExist(os.Remove(lockName(file))); err != nil {
				all = append(all, fmt.Errorf("cannot unlock kubeconfig: %w", err))
			}
		}
		return errors.Join(all...)
	}
	for _, file := range slices.Sorted(slices.Values(files)) {
		if err := lock(ctx, file); err != nil {
			return nil, errors.Join(err, unlock())
		}
		held = append(held, file)
	}
	return unlock, nil
}

// lockName is client-go's: a file beside the kubeconfig, which only one process can create.
func lockName(file string) string { return file + ".lock" }

func lock(ctx context.Context, file string) error {
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		return fmt.Errorf("cannot make the directory of kubeconfig %s: %w", file, err)
	}
	deadline := time.NewTimer(lockPatience)
	defer deadline.Stop()
	try := time.NewTicker(lockPause)
	defer try.Stop()
	for {
		f, err := os.OpenFile(lockName(file), os.O_CREATE|os.O_EXCL, 0)
		if err == nil {
			return f.Close()
		}
		if !errors.Is(err, fs.ErrExist) {
			return fmt.Errorf("cannot lock kubeconfig %s: %w", file, err)
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("cannot lock kubeconfig %s: %w", file, context.Cause(ctx))
		case <-deadline.C:
			return fmt.Errorf("cannot lock kubeconfig %s: somebody has had the lock for %s; if no kubectl is running, remove %s: %w",
				file, lockPatience, lockName(file), errs.Unavailable)
		case <-try.C:
		}
	}
}
