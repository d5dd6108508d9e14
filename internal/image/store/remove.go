package store

import (
	"context"
	"fmt"
	"os"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/image/database"
)

// Remove implements image.Store.
func (s *Store) Remove(ctx context.Context, ref string) error {
	return s.remove(ctx, ref, func() (*entry, error) {
		e, _, err := s.find("", ref)
		return e, err
	})
}

// RemoveFor implements image.PlatformStore.
func (s *Store) RemoveFor(ctx context.Context, platform, ref string) error {
	return s.remove(ctx, ref, func() (*entry, error) {
		e, _, err := s.findFor(platform, ref)
		return e, err
	})
}

// remove removes the image that find returns. s.mu is held while find is called. NotFound is success.
func (s *Store) remove(ctx context.Context, ref string, find func() (*entry, error)) error {
	// Close waits for a removal, which goes to its end.
	_, end, err := s.background.Begin(ctx)
	if err != nil {
		return fmt.Errorf("cannot remove image %s: %w", ref, err)
	}
	defer end()
	ctx = database.WithNamespace(ctx)
	removed, err := s.removeRecords(ctx, find)
	if err != nil {
		return fmt.Errorf("cannot remove image %s: %w", ref, errs.OfDisk(err))
	}
	if removed {
		s.proxies.Wake()
		s.db.Collect(context.WithoutCancel(ctx))
	}
	return nil
}

func (s *Store) removeRecords(ctx context.Context, find func() (*entry, error)) (removed bool, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	e, err := find()
	if err != nil {
		return false, errs.IgnoreNotFound(err)
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
	s.db.SaveNames(ctx, going)
	if err := s.db.DeleteRecords(ctx, going, held); err != nil {
		s.db.SaveNames(ctx, nil)
		return false, err
	}
	if held != "" {
		s.holds.orphans[held] = true
	}
	s.forget(e.ID)
	if err := errs.IgnoreNotExist(os.Remove(s.evidencePath(e.ID))); err != nil {
		s.log.Warn("cannot remove the signatures of an image", "image", e.ID, "error", err)
	}
	return true, nil
}
