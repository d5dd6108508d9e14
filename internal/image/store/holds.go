package store

import (
	"context"
	"fmt"
	"slices"

	"github.com/containerd/errdefs"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/image/database"
)

// Layers are the layers of an image, as an overlay takes them.
type Layers struct {
	// ImageID is the image that they were acquired for. It may be removed meanwhile.
	ImageID string
	// Chain names their topmost snapshot, in Proxy if there is one.
	Chain string
	// Lower are their directories, topmost first, relative to database.Paths.LayersDir.
	Lower []string
	// Proxy is the snapshotter that has them in place of Lower, which is nil then; "" for none.
	Proxy string
}

// AcquireLayers keeps the layers of an image, whatever happens to the image, until
// ReleaseLayers. They are those of the proxy snapshotter that is wanted, if it has them, else the store's own, else those of
// another proxy snapshotter, which keeps them by itself. NotFound when there is no image of that id.
func (s *Store) AcquireLayers(imageID, wanted string) (Layers, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	e := s.index[imageID]
	if e == nil {
		return Layers{}, fmt.Errorf("the node does not have image %q: %w", imageID, errs.NotFound)
	}
	if slices.Contains(e.Snapshotters, wanted) {
		return Layers{ImageID: e.ID, Chain: e.proxyChain, Proxy: wanted}, nil
	}
	if e.Lazy {
		return Layers{ImageID: e.ID, Chain: e.proxyChain, Proxy: e.Snapshotters[0]}, nil
	}
	s.holds.counts[e.chain]++
	return Layers{ImageID: e.ID, Chain: e.chain, Lower: e.lower}, nil
}

// Tops implements snapshotters.Users.
func (s *Store) Tops(snapshotter string) map[string]bool {
	s.mu.RLock()
	defer s.mu.RUnlock()
	tops := map[string]bool{}
	for _, e := range s.index {
		if slices.Contains(e.Snapshotters, snapshotter) {
			tops[e.proxyChain] = true
		}
	}
	return tops
}

// Lost implements snapshotters.Users: an image that only this snapshotter had is removed, so that it is pulled again.
func (s *Store) Lost(ctx context.Context, snapshotter, chain string) {
	s.mu.RLock()
	var lost []string
	for id, e := range s.index {
		if e.proxyChain == chain && slices.Contains(e.Snapshotters, snapshotter) {
			lost = append(lost, id)
		}
	}
	s.mu.RUnlock()
	for _, id := range lost {
		s.log.Warn("a snapshotter has lost the layers of an image; it is not used for the image until that is pulled again", "snapshotter", snapshotter, "image", id)
		if err := s.dropProxy(database.WithNamespace(ctx), id, snapshotter); err != nil {
			s.log.Warn("cannot record that the layers of an image are lost", "snapshotter", snapshotter, "image", id, "error", err)
		}
	}
}

// dropProxy records that a snapshotter does not have an image any more. It removes the image if nothing else has it.
func (s *Store) dropProxy(ctx context.Context, id, snapshotter string) error {
	t, err := s.treeOf(ctx, id)
	if err != nil {
		return err
	}
	s.mu.Lock()
	e := s.index[id]
	if e == nil {
		s.mu.Unlock()
		return nil
	}
	left := *e
	left.Snapshotters = slices.DeleteFunc(slices.Clone(e.Snapshotters), func(name string) bool { return name == snapshotter })
	if left.Lazy && len(left.Snapshotters) == 0 {
		s.mu.Unlock()
		return s.Remove(ctx, id)
	}
	defer s.db.SaveNames(ctx) // without the lock
	defer s.mu.Unlock()
	s.index[id] = &left
	_, err = s.record(ctx, t, nil, false)
	return err
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
