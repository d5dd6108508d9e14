package store

import (
	"context"
	"fmt"
	"os"
	"slices"
	"time"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/image/database"
	"github.com/berthrun/berth/internal/image/names"
	"github.com/berthrun/berth/internal/sys/sysfile"
)

// Remove implements image.Store.
func (s *Store) Remove(ctx context.Context, ref string) error {
	return s.remove(ctx, "", ref, func() (*entry, error) {
		e, _, err := s.find("", ref)
		return e, err
	})
}

// RemoveFor implements image.PlatformStore.
func (s *Store) RemoveFor(ctx context.Context, platform, ref string) error {
	return s.remove(ctx, platform, ref, func() (*entry, error) {
		e, _, err := s.findFor(platform, ref)
		return e, err
	})
}

// defaultRetryTime is longer than the five minutes within which a kubelet tries a pull again.
const defaultRetryTime = 10 * time.Minute

// remove removes the image that find returns. s.mu is held while find is called. NotFound is success. The
// leftovers of its names go with it, and those that wait for a pull for too long.
func (s *Store) remove(ctx context.Context, platform, ref string, find func() (*entry, error)) error {
	// Close waits for a removal, which goes to its end.
	_, end, err := s.background.Begin(ctx)
	if err != nil {
		return fmt.Errorf("cannot remove image %s: %w", ref, err)
	}
	defer end()
	ctx = database.WithNamespace(context.WithoutCancel(ctx))
	removed, err := s.removeRecords(ctx, find)
	if err != nil {
		return fmt.Errorf("cannot remove image %s: %w", ref, errs.OfDisk(err))
	}
	keys := s.pullKeys(ref, platform)
	s.lost.Remove(keys)
	dropped := s.dropLeftovers(ctx, func(k database.Leftover) bool {
		return removed[k.Key] || slices.Contains(keys, k.Key) || len(removed) > 0 && time.Since(k.At) > s.retryTime
	})
	if len(removed) > 0 {
		s.proxies.Wake()
	}
	if len(removed) > 0 && !dropped {
		s.db.Collect(ctx)
	}
	return nil
}

// pullKeys are the keys that a reference may have been pulled by, none for an id.
func (s *Store) pullKeys(ref, platform string) []string {
	candidates, _ := names.Candidates(ref, s.rules.Load().SearchRegistries) // an invalid name has none
	keys := make([]string, len(candidates))
	for i, named := range candidates {
		keys[i] = names.Key(named.String(), platform)
	}
	return keys
}

// LostNames are the names that a reference may mean, of images that the store has lost; see lost.List. Remove takes them off the
// list.
func (s *Store) LostNames(platform, ref string) []string {
	return s.lost.Named(s.pullKeys(ref, platform))
}

// dropLeftovers removes the leftovers of failed pulls for which drop says so. It reports whether there was one. Their unfinished
// downloads go, too, but those that a pull under way wants.
func (s *Store) dropLeftovers(ctx context.Context, drop func(database.Leftover) bool) bool {
	ctx = database.WithNamespace(context.WithoutCancel(ctx))
	dropped, unwanted, err := s.db.DropLeftovers(ctx, drop)
	if err != nil {
		s.log.Warn("cannot drop the leftovers of failed pulls", "error", err)
	}
	ended, end := context.WithCancel(ctx)
	end() // a lock with it waits for nobody
	for _, blob := range unwanted {
		unlock, err := s.blobs.Lock(ended, blob.String())
		if err != nil {
			continue
		}
		if err := s.db.AbortDownload(blob); err != nil {
			s.log.Warn("cannot remove an unfinished download", "blob", blob, "error", err)
		}
		unlock()
	}
	if dropped {
		s.db.Collect(ctx)
	}
	return dropped
}

// leastFree is the part of the disk, in percent, below which no leftover stays. A kubelet removes images then,
// and evicts pods.
const leastFree = 15

// TidyLeftovers drops those that have expired by now, or all if the disk is short of space. left reports whether any stays.
func (s *Store) TidyLeftovers(ctx context.Context, now time.Time) (dropped, left bool) {
	short := false
	free, err := sysfile.DiskFree(s.db.Root)
	if size, sizeErr := sysfile.SizeOf(s.db.Root); err == nil && sizeErr == nil {
		short = float64(free) < float64(size.Bytes)*leastFree/100
	}
	dropped = s.dropLeftovers(ctx, func(k database.Leftover) bool {
		goes := short || now.After(k.Expires)
		left = left || !goes
		return goes
	})
	return dropped, left
}

// removeRecords returns the names that it has removed, none if find finds no image.
func (s *Store) removeRecords(ctx context.Context, find func() (*entry, error)) (removed map[string]bool, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	e, err := find()
	if err != nil {
		return nil, errs.IgnoreNotFound(err)
	}
	held := ""
	if s.holds.counts[e.chain] > 0 {
		held = e.chain
	}
	going := map[string]bool{}
	for name, id := range s.names {
		if id == e.ID {
			going[name] = true
		}
	}
	if err := s.db.DeleteRecords(ctx, going, held); err != nil {
		return nil, err
	}
	if held != "" {
		s.holds.orphans[held] = true
	}
	s.forget(e.ID)
	if err := errs.IgnoreNotExist(os.Remove(s.evidencePath(e.ID))); err != nil {
		s.log.Warn("cannot remove the signatures of an image", "image", e.ID, "error", err)
	}
	return going, nil
}
