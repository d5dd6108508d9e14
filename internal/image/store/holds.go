package store

import (
	"context"
	"fmt"

	"github.com/containerd/errdefs"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/image/database"
)

// Layers are the layers of an image, as an overlay takes them.
type Layers struct {
	// ImageID is the image that they were acquired for. It may be removed meanwhile.
	ImageID string
	// Chain names their topmost snapshot.
	Chain string
	// Lower are their directories, topmost first, relative to database.Paths.LayersDir.
	Lower []string
}

// AcquireLayers keeps the layers of an image, whatever happens to the image, until
// ReleaseLayers. NotFound when there is no image of that id.
func (s *Store) AcquireLayers(imageID string) (Layers, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	e := s.index[imageID]
	if e == nil {
		return Layers{}, fmt.Errorf("image %q: %w", imageID, errs.NotFound)
	}
	s.holds.counts[e.chain]++
	return Layers{ImageID: e.ID, Chain: e.chain, Lower: e.lower}, nil
}

// RestoreLayers is AcquireLayers for a record of an earlier process, by the name of the
// topmost snapshot. The layers are held even when an error says that they are lost: the
// record is there. Call it before Load.
func (s *Store) RestoreLayers(ctx context.Context, chain string) (lower []string, err error) {
	s.mu.Lock()
	s.holds.counts[chain]++
	lower, known := s.holds.lower[chain]
	s.mu.Unlock()
	if known {
		return lower, nil
	}
	if lower, err = s.db.LowerDirs(ctx, chain); err != nil {
		return nil, err
	}
	s.mu.Lock()
	s.holds.lower[chain] = lower
	s.mu.Unlock()
	return lower, nil
}

// ReleaseLayers undoes one AcquireLayers or RestoreLayers. Layers that nothing else holds and
// whose image is gone are removed in the background.
func (s *Store) ReleaseLayers(chain string) {
	s.mu.Lock()
	last := s.holds.release(chain)
	s.mu.Unlock()
	if last {
		s.background.Go(func(ctx context.Context) { s.dropUnused(database.WithNamespace(ctx), chain) })
	}
}

// dropUnused removes a snapshot that no container uses any more, if its image was removed
// meanwhile.
func (s *Store) dropUnused(ctx context.Context, chain string) {
	// Closing the store waits for this, and does not cancel it.
	ctx = context.WithoutCancel(ctx)
	s.mu.Lock()
	var err error
	if s.holds.counts[chain] == 0 {
		if err = s.db.DropForContainers(ctx, chain); err == nil {
			delete(s.holds.orphans, chain)
		}
	}
	s.mu.Unlock()
	switch {
	case err == nil:
		s.db.Collect(ctx)
	case !errdefs.IsNotFound(err):
		s.log.Warn("cannot remove the snapshot of a removed image", "snapshot", chain, "error", err)
	}
}

// holds are the snapshots that root filesystems stand on. Store.mu guards them.
type holds struct {
	// counts are the root filesystems by the topmost snapshot below them.
	counts map[string]int
	// lower are the directories of those that were restored: most containers of a node share a few.
	lower map[string][]string
	// orphans are snapshots whose image was removed while they were held: a lease
	// keeps them.
	orphans map[string]bool
}

func newHolds() holds {
	return holds{counts: map[string]int{}, lower: map[string][]string{}, orphans: map[string]bool{}}
}

// release takes one hold. last reports that the snapshot is an orphan that nothing holds
// any more.
func (h *holds) release(chain string) (last bool) {
	if h.counts[chain]--; h.counts[chain] > 0 {
		return false
	}
	delete(h.counts, chain)
	delete(h.lower, chain)
	return h.orphans[chain]
}
