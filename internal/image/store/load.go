package store

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/image"
	"github.com/berthrun/berth/internal/image/database"
	"github.com/berthrun/berth/internal/image/lost"
	"github.com/berthrun/berth/internal/image/tree"
)

// DropWork removes the leases of work that ended with its process. Call it before the first collection: it records the blobs
// that pulls have finished.
func (s *Store) DropWork(ctx context.Context) error { return s.db.DropWork(ctx) }

// KeepHeld keeps the layers that root filesystems hold and no image keeps, and drops the leases of others. Call it after
// ReadRecords and all RestoreLayers, before the first collection.
func (s *Store) KeepHeld(ctx context.Context) error {
	leased, err := s.db.DropUnheld(ctx, func(chain string) bool { return s.holds.counts[chain] > 0 })
	if err != nil {
		return err
	}
	for _, chain := range leased {
		s.holds.orphans[chain] = true
	}
	kept := map[string]bool{"": true}
	for _, t := range s.recorded.trees {
		kept[t.TopChain()] = true
	}
	return s.keepHeld(ctx, kept)
}

// recorded are the images of the records that ReadRecords has read, by their ids.
type recorded struct {
	trees  map[string]*tree.Tree
	names  map[string][]string
	own    map[string]annotations
	pinned map[string]bool
	places map[string][]string
	// gone are the names of images whose content is missing, found what they were.
	gone  map[string]bool
	found lost.Losses
	// full is set if the host had no room to record a blob again.
	full bool
}

// ReadRecords reads the recorded images. It mends what the database says of their content, without which the collector would
// remove it. Call it before the first collection, then KeepHeld and Load.
func (s *Store) ReadRecords(ctx context.Context) error {
	records, err := s.db.Images.List(ctx)
	if err != nil {
		return err
	}
	r := &recorded{
		trees: map[string]*tree.Tree{}, names: map[string][]string{}, own: map[string]annotations{}, pinned: map[string]bool{},
		places: map[string][]string{}, gone: map[string]bool{}, found: lost.Losses{},
	}
	s.recorded = r
	linked, seen := map[digest.Digest]bool{}, map[digest.Digest]bool{}
	for _, record := range records {
		t, err := s.db.ReadRecord(ctx, record, s.db.Known)
		if err != nil && isFull(errs.OfDisk(err)) {
			s.log.Error("an image cannot be used, because the host has no room to record its content again; free some and restart berth", "image", record.Name, "error", err)
			r.full = true
			r.found.Note(record.Target, record.Name, database.IsPinned(record))
			continue
		}
		if err != nil {
			s.log.Warn("removing an image whose content is missing or damaged; it comes back in the background if an archive of image.import_dirs or a registry has it, else pull or import it", "image", record.Name, "error", err)
			r.gone[record.Name] = true
			r.found.Note(record.Target, record.Name, database.IsPinned(record))
			continue
		}
		if !linked[t.Target.Digest] {
			linked[t.Target.Digest] = true
			if err := s.db.Relink(ctx, t); err != nil {
				return err
			}
		}
		for _, layer := range t.Layers {
			if !seen[layer.Digest] {
				seen[layer.Digest] = true
				_ = s.db.Known(ctx, layer) // Load notes one that is missing
			}
		}
		id := t.ID()
		r.trees[id] = t
		r.names[id] = append(r.names[id], record.Name)
		if r.own[id] == nil {
			r.own[id] = annotations{}
		}
		r.own[id][record.Name] = t.Annotations
		r.pinned[id] = r.pinned[id] || database.IsPinned(record)
		r.places[id] = slices.DeleteFunc(database.SnapshottersOf(record), func(name string) bool { // all its records have the same
			return name != image.OverlaySnapshotter && !s.proxies.Has(name)
		})
		if len(r.places[id]) == 0 && record.Name == id {
			s.log.Warn("the layers of an image are in a snapshotter that is not in image.snapshotters any more; unless the node has its content, it is pulled again with the credentials of the node, not those of a pod",
				"image", id, "snapshotters", database.SnapshottersOf(record))
		}
	}
	return nil
}

// Load loads the images that ReadRecords has read. It repairs images with missing layers and removes those with
// missing content. If the disk is too full to repair an image, the image cannot be used, but its record and its content
// stay: it is pulled again in the background, and the next start repairs it. Call it once, before the store is used.
func (s *Store) Load(ctx context.Context) error {
	r := s.recorded
	s.recorded = nil
	unusable := r.full || len(r.gone) > 0
	for id, t := range r.trees {
		e, err := s.loadOrRepair(ctx, t, r.names[id], r.pinned[id], r.places[id])
		if err != nil {
			keep := isFull(err)
			if keep {
				s.log.Error("an image cannot be used, because the host has no room to unpack it again; free some and restart berth, or pull or import the image", "image", id, "error", err)
			} else {
				s.log.Warn("removing an image that cannot be unpacked again; it comes back in the background if an archive of image.import_dirs or a registry has it, else pull or import it", "image", id, "error", err)
			}
			for _, name := range r.names[id] {
				if !keep {
					r.gone[name] = true
				}
				r.found.Note(t.Target, name, r.pinned[id])
			}
			unusable = true
			continue
		}
		s.put(e, r.own[id])
		if !e.Lazy {
			s.noteAbsent(ctx, t)
		}
	}
	loaded := map[string]bool{"": true}
	for _, e := range s.index {
		loaded[e.chain] = true
	}
	if err := s.keepHeld(ctx, loaded); err != nil {
		return err
	}
	s.lost.Add(r.found.Images()) // before the records go, which have the names
	s.SettleLost()
	if !unusable { // a lost image comes back, and its registry may not have its signatures any more
		s.dropEvidence()
	}
	return s.db.DeleteRecords(ctx, r.gone, "")
}

// isFull reports whether an error says that the host has no room, and so nothing of an image.
func isFull(err error) bool {
	return errors.Is(err, errs.Exhausted) || errors.Is(errs.Kind(err), errs.Exhausted)
}

// loadOrRepair loads an image, after unpacking again what is missing of it. One that is only in snapshotters is loaded as it
// is, and one that cannot be unpacked again is from then on only in these.
func (s *Store) loadOrRepair(ctx context.Context, t *tree.Tree, names []string, pinned bool, places []string) (e *entry, err error) {
	proxies, whole := proxiesOf(places), false
	if slices.Contains(places, image.OverlaySnapshotter) {
		e, err = s.load(ctx, t, names, pinned, places)
		whole = err == nil
	} else if len(proxies) > 0 {
		return s.load(ctx, t, names, pinned, proxies)
	}
	for i := 0; whole && i < len(t.Chains()); i++ {
		if whole, err = s.layers.Whole(ctx, t, i); err != nil {
			return nil, err
		}
		if !whole {
			err = fmt.Errorf("the files of layer %s are missing or not complete", t.Chains()[i])
		}
	}
	if whole {
		return e, nil
	}
	attrs := []any{"image", t.ID()}
	if err != nil { // nil where the image was in a snapshotter alone
		attrs = append(attrs, "error", err)
	}
	s.log.Warn("unpacking an image again whose layers are missing", attrs...)
	err = s.UnpackAgain(ctx, t)
	switch {
	case err == nil:
		return s.load(ctx, t, names, pinned, append(proxies, image.OverlaySnapshotter))
	case len(proxies) == 0:
		return nil, err
	}
	s.log.Warn("an image cannot be unpacked again; using its layers in a snapshotter", "image", t.ID(), "snapshotters", proxies, "error", err)
	return s.load(ctx, t, names, pinned, proxies)
}

// UnpackAgain unpacks the layers of an image that are missing, from content of the store: those whose files alone are
// missing into their place, below all that stands on them.
func (s *Store) UnpackAgain(ctx context.Context, t *tree.Tree) error {
	return s.db.WithLease(database.WithNamespace(ctx), func(ctx context.Context) error {
		ready := func(ctx context.Context, i int) error { return s.db.Known(ctx, t.Layers[i]) }
		return s.layers.Unpack(ctx, t, ready, func(int64) {})
	})
}

// keepHeld keeps the layers below root filesystems that no image keeps. It may have been lost just
// now, because its content is damaged: its containers run on.
func (s *Store) keepHeld(ctx context.Context, kept map[string]bool) error {
	for chain := range s.holds.counts {
		if kept[chain] || s.holds.orphans[chain] {
			continue
		}
		_, err := s.db.Snapshots.Stat(ctx, chain)
		if errdefs.IsNotFound(err) {
			continue
		}
		if err == nil {
			err = s.db.KeepForContainers(ctx, chain)
		}
		if err != nil {
			return fmt.Errorf("cannot keep layer %s, which a container uses: %w", chain, err)
		}
		s.holds.orphans[chain] = true
	}
	return nil
}
