package store

import (
	"context"
	"fmt"
	"slices"

	"github.com/opencontainers/go-digest"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/image"
	"github.com/berthrun/berth/internal/image/database"
	"github.com/berthrun/berth/internal/image/names"
	"github.com/berthrun/berth/internal/image/snapshotters"
	"github.com/berthrun/berth/internal/image/tree"
)

// Record writes down that the image is complete and has these names besides its
// id, all in one transaction, and shows it. A name that another image for the same platform had moves.
func (s *Store) Record(ctx context.Context, t *tree.Tree, fullNames []string, pin bool) (*image.Image, error) {
	defer s.db.SaveNames(ctx) // without the lock
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.record(ctx, t, fullNames, pin, image.OverlaySnapshotter)
}

// record is Record. places are the proxy snapshotters that have got the layers, and image.OverlaySnapshotter if the image was
// unpacked: those that had them before may be left out. An image that was lost and was pinned is pinned again. s.mu is held;
// the caller calls SaveNames when it is free, since pulls that end together share the write.
func (s *Store) record(ctx context.Context, t *tree.Tree, fullNames []string, pin bool, places ...string) (*image.Image, error) {
	keys := keysOf(append(slices.Clone(fullNames), t.ID()), t.Platform)
	fresh := len(keys)
	losers := map[string]bool{}
	for _, key := range keys {
		if id, ok := s.names[key]; ok && id != t.ID() {
			losers[id] = true
		}
	}
	targets := []digest.Digest{t.Target.Digest, t.Manifest.Digest}
	for _, index := range t.Indexes {
		targets = append(targets, index.Digest)
	}
	pinned := pin || s.lost.WasPinned(t.ID(), targets...)
	if old := s.index[t.ID()]; old != nil {
		// One document may be the config of an image and the manifest of an artifact.
		if (old.Artifact != nil) != (t.Artifact != nil) {
			return nil, fmt.Errorf("cannot record image %s: an image and an artifact have this id; remove the one that is here first: %w", t.ID(), errs.Invalid)
		}
		pinned = pinned || old.Pinned
		if !old.Lazy {
			places = append(places, image.OverlaySnapshotter)
		}
		if old.proxyChain == snapshotters.TopChain(t.Layers) {
			places = append(places, old.Snapshotters...)
		}
		if len(old.Snapshotters) > 0 {
			defer s.proxies.Wake() // they may have lost a user
		}
	}
	slices.Sort(places)
	places = slices.Compact(places)
	for key, id := range s.names {
		if id == t.ID() && !slices.Contains(keys, key) {
			keys = append(keys, key)
		}
	}
	if len(proxiesOf(places)) > 0 && !s.haveLayersOf(ctx, t, keys[fresh:]) {
		if !slices.Contains(places, image.OverlaySnapshotter) { // another pull has recorded them meanwhile
			return nil, fmt.Errorf("cannot record image %s: other names of it have other layers, so it must be unpacked on the node; pull it again: %w", t.ID(), errs.State)
		}
		places = []string{image.OverlaySnapshotter}
	}
	if err := s.db.WriteRecords(ctx, t, keys[:fresh], keys[fresh:], pinned, places); err != nil {
		return nil, fmt.Errorf("cannot record image %s: %w", t.ID(), errs.OfDisk(err))
	}
	e, err := s.load(ctx, t, keys, pinned, places)
	if err != nil {
		return nil, err
	}
	own := annotations{}
	for _, key := range keys[fresh:] {
		own[key] = s.annotations[key]
	}
	for _, key := range keys[:fresh] {
		own[key] = t.Annotations
	}
	s.put(e, own)
	for id := range losers {
		s.renamed(id)
	}
	img := e.clone()
	return &img, nil
}

// keysOf returns the keys of names whose image is for a platform.
func keysOf(all []string, platform string) []string {
	keys := make([]string, len(all))
	for i, name := range all {
		keys[i] = names.Key(name, platform)
	}
	return keys
}

// proxiesOf returns those of the places of an image's layers that are proxy snapshotters.
func proxiesOf(places []string) (proxies []string) {
	for _, place := range places {
		if place != image.OverlaySnapshotter {
			proxies = append(proxies, place)
		}
	}
	return proxies
}

// haveLayersOf reports whether the manifests of all names have the same layers as a tree. A config has one id, and any number
// of manifests may name it. What berth unpacks it compares with the config, so it does not matter by which of them an image
// was pulled. What a snapshotter fetches is compared with the manifest alone: all names of an image that is in a snapshotter
// must have the same layers, or else whoever may pull one of them would choose the files of the others.
func (s *Store) haveLayersOf(ctx context.Context, t *tree.Tree, names []string) bool {
	top := snapshotters.TopChain(t.Layers)
	return !slices.ContainsFunc(names, func(name string) bool {
		other, err := s.treeOf(ctx, name)
		return err != nil || snapshotters.TopChain(other.Layers) != top
	})
}

// renamed brings the entry of an image that lost a name up to date. Its id and
// digest references stay. s.mu is held.
func (s *Store) renamed(id string) {
	old := s.index[id]
	if old == nil {
		return
	}
	has := map[string]bool{}
	for key, owner := range s.names {
		if name, _ := names.OfKey(key); owner == id {
			has[name] = true
		}
	}
	keeps := func(list []string) []string {
		return slices.DeleteFunc(slices.Clone(list), func(name string) bool { return !has[name] })
	}
	e := *old
	e.Tags, e.Digests, e.Annotations = keeps(old.Tags), keeps(old.Digests), s.shared(id)
	s.index[id] = &e
}

// Pinned returns the ids of the images that are pinned.
func (s *Store) Pinned() map[string]bool {
	s.mu.RLock()
	defer s.mu.RUnlock()
	pinned := map[string]bool{}
	for id, e := range s.index {
		if e.Pinned {
			pinned[id] = true
		}
	}
	return pinned
}

// Unpin takes the pin off images, by their ids. Images that are used in place stay pinned: they came with the machine.
func (s *Store) Unpin(ctx context.Context, ids []string) error {
	ctx = database.WithNamespace(ctx)
	defer s.db.SaveNames(ctx) // without the lock
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, id := range ids {
		old := s.index[id]
		if old == nil || !old.Pinned {
			continue
		}
		if info, err := s.db.Content.Info(ctx, digest.Digest(id)); err == nil && database.PreloadedFrom(info) != "" {
			continue
		}
		var keys []string
		for key, owner := range s.names {
			if owner == id {
				keys = append(keys, key)
			}
		}
		if err := s.db.UnpinRecords(ctx, keys); err != nil {
			return fmt.Errorf("cannot unpin image %s: %w", id, errs.OfDisk(err))
		}
		e := *old
		e.Pinned = false
		s.index[id] = &e
	}
	return nil
}
