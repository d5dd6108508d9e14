package background

import (
	"context"
	"crypto/rand"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/sys/sysfile"
)

// Slice is how long the trash removes one tree before it continues with the next: a tree of a
// million files does not delay the others.
const Slice = 2 * time.Second

// Trash is a directory whose trees are removed in the background. Its methods are safe for
// concurrent use.
type Trash struct {
	// Slice is how long the trash removes one tree before it continues with the next. Set it
	// before the first Discard.
	Slice time.Duration

	dir   string
	group *Group
	log   *slog.Logger
	// filled wakes the worker.
	filled chan struct{}
	// closing is closed when there are no more calls of Discard.
	closing  chan struct{}
	removals sync.WaitGroup
}

// NewTrash makes the trash in dir, with the usual Slice. The directory exists and is on the
// file system of what is discarded. Nothing is removed before Start.
func NewTrash(dir string, group *Group, log *slog.Logger) *Trash {
	return &Trash{
		Slice: Slice, dir: dir, group: group, log: log,
		filled: make(chan struct{}, 1), closing: make(chan struct{}),
	}
}

// Discard moves a tree to the trash, from which it is removed in the background. Nil when
// there is none.
func (t *Trash) Discard(path string) error {
	err := os.Rename(path, filepath.Join(t.dir, strings.ToLower(rand.Text())))
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err == nil {
		t.wake()
	}
	return err
}

// wake wakes the one worker that removes what is in the trash, and what an earlier process
// left there.
func (t *Trash) wake() {
	select {
	case t.filled <- struct{}{}:
	default: // it is awake already
	}
}

// Start begins to empty the trash, until Close.
func (t *Trash) Start() {
	t.removals.Go(func() {
		ctx, cancel := t.group.afterCloseTimeout()
		defer cancel()
		for {
			t.Empty(ctx)
			select {
			case <-t.filled:
			case <-t.closing:
				// Remove small trees that were just discarded.
				t.Empty(ctx)
				return
			}
		}
	})
}

// Close stops the worker. Call it once, after the group is closed: then there are no more calls
// of Discard.
func (t *Trash) Close() {
	close(t.closing)
	t.removals.Wait()
}

// Empty removes all trees in the trash, a Slice at a time. The next start retries those that
// cannot be removed. Call it before Start only.
func (t *Trash) Empty(ctx context.Context) {
	failed := map[string]bool{}
	for {
		entries, err := os.ReadDir(t.dir)
		if err != nil {
			t.log.Warn("cannot list the trash of the image store", "error", err)
			return
		}
		left := 0
		for _, entry := range entries {
			if failed[entry.Name()] {
				continue
			}
			if ctx.Err() != nil {
				return
			}
			left++
			err := errs.Guard("removal of "+entry.Name(), func() error { return t.removeSlice(ctx, entry.Name()) })
			if err != nil {
				failed[entry.Name()] = true
				t.log.Warn("cannot remove a discarded directory; the next start retries", "error", err)
			}
		}
		if left == 0 {
			return
		}
	}
}

// removeSlice removes a tree for at most a Slice. What remains is no error.
func (t *Trash) removeSlice(ctx context.Context, name string) error {
	sliceCtx, cancel := context.WithTimeout(ctx, t.Slice)
	defer cancel()
	err := sysfile.RemoveTree(sliceCtx, filepath.Join(t.dir, name))
	if sliceCtx.Err() != nil {
		return nil
	}
	return err
}
