package store

import (
	"context"
	"fmt"
	"slices"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/image"
	"github.com/berthrun/berth/internal/image/tree"
)

// Record writes down that the image is complete and has these names besides its
// id, all in one transaction, and shows it. A name that another image had moves.
func (s *Store) Record(ctx context.Context, t *tree.Tree, names []string, pin bool) (*image.Image, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.record(ctx, t, names, pin)
}

// record is Record of an image whose layers proxies have, too. s.mu is held.
func (s *Store) record(ctx context.Context, t *tree.Tree, names []string, pin bool, proxies ...string) (*image.Image, error) {
	names = append(slices.Clone(names), t.ID())
	fresh := len(names)
	losers := map[string]bool{}
	for _, name := range names {
		if id, ok := s.names[name]; ok && id != t.ID() {
			losers[id] = true
		}
	}
	pinned := pin
	if old := s.index[t.ID()]; old != nil {
		// One document may be the config of an image and the manifest of an artifact.
		if (old.Artifact != nil) != (t.Artifact != nil) {
			return nil, fmt.Errorf("cannot record image %s: an image and an artifact have this id; remove the one that is here first: %w", t.ID(), errs.Invalid)
		}
		pinned = pinned || old.Pinned
		proxies = append(proxies, old.Snapshotters...)
	}
	slices.Sort(proxies)
	proxies = slices.Compact(proxies)
	for name, id := range s.names {
		if id == t.ID() && !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	if err := s.db.WriteRecords(ctx, t, names[:fresh], names[fresh:], pinned, proxies); err != nil {
		return nil, fmt.Errorf("cannot record image %s: %w", t.ID(), errs.OfDisk(err))
	}
	s.db.SaveNames(ctx, nil)
	e, err := s.load(ctx, t, names, pinned, proxies)
	if err != nil {
		return nil, err
	}
	own := annotations{}
	for _, name := range names[fresh:] {
		own[name] = s.annotations[name]
	}
	for _, name := range names[:fresh] {
		own[name] = t.Annotations
	}
	s.put(e, own)
	for id := range losers {
		s.renamed(id)
	}
	img := e.clone()
	return &img, nil
}

// renamed brings the entry of an image that lost a name up to date. Its id and
// digest references stay. s.mu is held.
func (s *Store) renamed(id string) {
	old := s.index[id]
	if old == nil {
		return
	}
	keeps := func(list []string) []string {
		return slices.DeleteFunc(slices.Clone(list), func(name string) bool { return s.names[name] != id })
	}
	e := *old
	e.Tags, e.Digests, e.Annotations = keeps(old.Tags), keeps(old.Digests), s.shared(id)
	s.index[id] = &e
}
