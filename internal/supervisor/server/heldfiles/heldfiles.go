// Package heldfiles gives the keeper duplicates of descriptors, so that they outlive this process.
package heldfiles

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/berthrun/berth/internal/supervisor/keep"
	"github.com/berthrun/berth/internal/sys/sysfd"
)

// Keeper is the part of keep.Client that a Store needs.
type Keeper interface {
	Hold(ctx context.Context, key string, files ...*os.File) error
	Release(ctx context.Context, key string) error
	Held(ctx context.Context) ([]keep.Held, error)
}

// KeeperTimeout bounds one call to the keeper, which answers at once or is dead.
const KeeperTimeout = 5 * time.Second

// Store gives the keeper duplicates of descriptors, and keeps a list of them for the case that this
// process becomes the keeper. The files belong to their owners, which release them before they
// close them.
//
// Without a keeper only the descriptors of which the daemon has duplicates outlive this process.
type Store struct {
	keeper Keeper // may be nil
	log    *slog.Logger

	mu   sync.Mutex
	held keep.Table[[]*os.File]
	// failing is set once a call to the keeper has failed.
	failing bool
}

// New returns an empty Store. keeper may be nil.
func New(keeper Keeper, log *slog.Logger) *Store {
	return &Store{keeper: keeper, log: log}
}

// Hold gives the keeper files under key, in place of those that it held there. The end of ctx ends
// only the wait for the keeper's answer: the files are sent by then.
func (s *Store) Hold(ctx context.Context, key string, files ...*os.File) {
	s.mu.Lock()
	s.held.Set(key, files)
	s.mu.Unlock()
	if s.keeper == nil {
		return
	}
	bounded, stop := context.WithTimeout(ctx, KeeperTimeout)
	defer stop()
	if err := s.keeper.Hold(bounded, key, files...); err != nil && !errors.Is(err, ctx.Err()) {
		s.warnOnce("the keeper does not hold descriptors", key, err)
	}
}

// Release has the keeper close what it holds under key, or below key when that ends in "/".
func (s *Store) Release(key string) {
	s.mu.Lock()
	for _, k := range s.held.Below(key) {
		s.held.Delete(k)
	}
	s.mu.Unlock()
	if s.keeper == nil {
		return
	}
	ctx, stop := context.WithTimeout(context.Background(), KeeperTimeout)
	defer stop()
	if err := s.keeper.Release(ctx, key); err != nil {
		s.warnOnce("the keeper does not release descriptors", key, err)
	}
}

// Fetch gets duplicates of all that the keeper holds for a predecessor. The error is the keeper's.
func (s *Store) Fetch(ctx context.Context) error {
	if s.keeper == nil {
		return nil
	}
	all, err := s.keeper.Held(ctx)
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, h := range all {
		s.held.Set(h.Key, h.Files)
	}
	return nil
}

// Get returns the files that are held under key. They stay held.
func (s *Store) Get(key string) []*os.File {
	s.mu.Lock()
	defer s.mu.Unlock()
	files, _ := s.held.Get(key)
	return slices.Clone(files)
}

// Below returns the keys that a Release of key means, sorted.
func (s *Store) Below(key string) []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.held.Below(key)
}

// Keys returns every key, sorted.
func (s *Store) Keys() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.held.Keys()
}

// All returns everything that is held.
func (s *Store) All() []keep.Held {
	s.mu.Lock()
	defer s.mu.Unlock()
	var all []keep.Held
	for k, files := range s.held.All() {
		// An owner releases a file before it closes it, but may be in between now.
		open := slices.DeleteFunc(slices.Clone(files), func(f *os.File) bool {
			_, err := sysfd.FileFD(f)
			return err != nil
		})
		if len(open) > 0 {
			all = append(all, keep.Held{Key: k, Files: open})
		}
	}
	return all
}

// warnOnce logs the first failure only: a dead keeper fails every call.
func (s *Store) warnOnce(what, key string, err error) {
	s.mu.Lock()
	failing := s.failing
	s.failing = true
	s.mu.Unlock()
	if !failing && !errors.Is(err, context.Canceled) {
		s.log.Warn(what, "key", key, "error", err)
	}
}
