package image

import (
	"context"
	"crypto/rand"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/berthrun/berth/internal/sys/sysfile"

	"github.com/berthrun/berth/internal/errs"
)

const (
	// trashSlice is how long one tree is removed before the next one has its turn: a tree
	// of a million files keeps no other from going.
	trashSlice = 2 * time.Second
	// closePatience is how long Close waits for a removal under way. The next start goes on.
	closePatience = 2 * time.Second
)

// discard moves a tree to the trash, from which it is removed in the background. Nil when
// there is none.
func (s *Images) discard(path string) error {
	err := os.Rename(path, filepath.Join(s.trashDir(), strings.ToLower(rand.Text())))
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err == nil {
		s.emptyTrash()
	}
	return err
}

// emptyTrash wakes the one worker that removes what is in the trash, and what an earlier
// process left there.
func (s *Images) emptyTrash() {
	select {
	case s.trashed <- struct{}{}:
	default: // it is awake already
	}
}

// startTrash begins to empty the trash until the store closes.
func (s *Images) startTrash() {
	s.removals.Go(func() {
		ctx, cancel := s.afterPatience()
		defer cancel()
		for {
			s.removeTrash(ctx)
			select {
			case <-s.trashed:
			case <-s.settled:
				// Small things that were discarded just now go, too.
				s.removeTrash(ctx)
				return
			}
		}
	})
}

// endTrash ends the worker, after all that discards has ended.
func (s *Images) endTrash() {
	close(s.settled)
	s.removals.Wait()
}

// linger runs fn in the background, as do does, with a context that ends some time after the
// store has begun to close.
func (s *Images) linger(fn func(ctx context.Context)) {
	s.background.Go(func() {
		ctx, cancel := s.afterPatience()
		defer cancel()
		errs.Protect("work of the image store in the background", func() { fn(s.ns(ctx)) })
	})
}

// afterPatience returns a context that ends some time after the store has begun to close.
func (s *Images) afterPatience() (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		select {
		case <-s.closing:
		case <-ctx.Done():
			return
		}
		select {
		case <-time.After(s.patience):
			cancel()
		case <-ctx.Done():
		}
	}()
	return ctx, cancel
}

// removeTrash removes all trees in the trash by turns. What cannot be removed is tried again
// at the next start.
func (s *Images) removeTrash(ctx context.Context) {
	failed := map[string]bool{}
	for {
		entries, err := os.ReadDir(s.trashDir())
		if err != nil {
			s.log.Warn("cannot list what is to be removed", "error", err)
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
			err := errs.Guard("removal of "+entry.Name(), func() error { return s.removeSlice(ctx, entry.Name()) })
			if err != nil {
				failed[entry.Name()] = true
				s.log.Warn("cannot remove what a container wrote, or a layer; it is tried again at the next start", "error", err)
			}
		}
		if left == 0 {
			return
		}
	}
}

// removeSlice removes a tree for one turn. What is left then is no error.
func (s *Images) removeSlice(ctx context.Context, name string) error {
	turn, cancel := context.WithTimeout(ctx, s.slice)
	defer cancel()
	err := sysfile.RemoveTree(turn, filepath.Join(s.trashDir(), name))
	if turn.Err() != nil {
		return nil
	}
	return err
}
