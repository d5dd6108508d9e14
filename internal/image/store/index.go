package store

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/distribution/reference"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/image"
	"github.com/berthrun/berth/internal/image/names"
	"github.com/berthrun/berth/internal/image/snapshotters"
	"github.com/berthrun/berth/internal/image/tree"
)

// entry is an image in memory. It is never changed, only replaced.
type entry struct {
	image.Image
	// chain names the image's topmost snapshot; lower are the directories of
	// all, topmost first, relative to layersDir. It is nil for a lazy image.
	chain string
	lower []string
	// proxyChain names the topmost snapshot in the snapshotters.
	proxyChain string
}

// load makes an image's entry from its content and snapshots. refs are all references to it. places are where its layers
// are, as with record. What another image with the same chain has unpacked is not used for an image that was not: nothing
// has shown that its layers have this content.
func (s *Store) load(ctx context.Context, t *tree.Tree, refs []string, pinned bool, places []string) (*entry, error) {
	chain, proxies := t.TopChain(), proxiesOf(places)
	var lower []string
	unpacked := slices.Contains(places, image.OverlaySnapshotter)
	if unpacked {
		var err error
		if lower, err = s.db.LowerDirs(ctx, chain); err != nil {
			return nil, err
		}
	}
	e := &entry{
		Image: image.Image{
			ID:           t.ID(),
			Size:         t.Size(),
			Config:       t.Image.Config,
			OS:           t.Image.OS,
			Architecture: t.Image.Architecture,
			Variant:      t.Image.Variant,
			ChainID:      chain,
			Pinned:       pinned,
			Artifact:     t.Artifact,
			Encrypted:    t.Encrypted(),
			Snapshotters: proxies,
			Lazy:         !unpacked,
		},
		chain: chain,
		lower: lower,
	}
	if len(proxies) > 0 {
		e.proxyChain = snapshotters.TopChain(t.Layers)
	}
	if t.Image.Created != nil {
		e.Created = *t.Image.Created
	} else {
		e.Created = time.Unix(0, 0)
	}
	for _, name := range refs {
		switch {
		case names.IsID(name):
		case names.HasDigest(name):
			e.Digests = append(e.Digests, name)
		default:
			e.Tags = append(e.Tags, name)
		}
	}
	slices.Sort(e.Tags)
	e.Tags = slices.Compact(e.Tags)
	// The digest that a registry gives the name comes before that of its part for this
	// platform.
	part := "@" + t.Manifest.Digest.String()
	slices.SortFunc(e.Digests, func(a, b string) int {
		if last := strings.HasSuffix(a, part); last != strings.HasSuffix(b, part) {
			if last {
				return 1
			}
			return -1
		}
		return strings.Compare(a, b)
	})
	e.Digests = slices.Compact(e.Digests) // tags of one repository share it
	return e, nil
}

// annotations are those of the manifest of each name.
type annotations map[string]map[string]string

// put makes the index say what the records now say of an image, which has the names of own. s.mu is held.
func (s *Store) put(e *entry, own annotations) {
	s.forget(e.ID)
	for name, has := range own {
		s.names[name], s.annotations[name] = e.ID, has
	}
	e.Annotations = s.shared(e.ID)
	s.index[e.ID] = e
}

// shared returns the annotations that the manifests of all names of an image have. Anybody can make a manifest with the
// config of an image of others: a pull of it must not annotate their image. s.mu is held.
func (s *Store) shared(id string) map[string]string {
	var shared map[string]string
	first := true
	for name, owner := range s.names {
		has := s.annotations[name]
		switch {
		case owner != id:
		case first:
			shared, first = has, false
		case !maps.Equal(shared, has):
			shared = maps.Clone(shared)
			maps.DeleteFunc(shared, func(key, value string) bool {
				other, both := has[key]
				return !both || other != value
			})
		}
	}
	return shared
}

// forget takes an image out of the index. s.mu is held.
func (s *Store) forget(id string) {
	delete(s.index, id)
	for name, owner := range s.names {
		if owner == id {
			delete(s.names, name)
			delete(s.annotations, name)
		}
	}
}

// find looks an image up. s.mu is held.
func (s *Store) find(ref string) (*entry, error) {
	if e := s.index[ref]; e != nil {
		return e, nil
	}
	candidates, nameErr := names.Candidates(ref, s.rules.Load().SearchRegistries)
	for _, named := range candidates {
		if e := s.index[s.names[named.String()]]; e != nil {
			return e, nil
		}
	}
	prefix, ok := names.IDPrefix(ref)
	if !ok {
		if nameErr != nil {
			return nil, nameErr
		}
		return nil, fmt.Errorf("image %q: %w", ref, errs.NotFound)
	}
	var found *entry
	for id, e := range s.index {
		if !strings.HasPrefix(id, prefix) {
			continue
		}
		if found != nil {
			return nil, fmt.Errorf("image id %q is ambiguous: %w", ref, errs.Invalid)
		}
		found = e
	}
	if found == nil {
		return nil, fmt.Errorf("image %q: %w", ref, errs.NotFound)
	}
	return found, nil
}

// Get implements image.Store.
func (s *Store) Get(_ context.Context, ref string) (*image.Image, error) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	e, err := s.find(ref)
	if err != nil {
		return nil, err
	}
	img := e.clone()
	candidates, _ := names.Candidates(ref, s.rules.Load().SearchRegistries) // none if it is no name
	if named := nameIn(img.Tags, img.Digests, candidates); named != nil {
		img.Annotations = s.annotations[named.String()]
	}
	return &img, nil
}

// List implements image.Store.
func (s *Store) List(context.Context) ([]image.Image, error) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	list := make([]image.Image, 0, len(s.index))
	for _, e := range s.index {
		list = append(list, e.clone())
	}
	slices.SortFunc(list, func(a, b image.Image) int { return strings.Compare(a.ID, b.ID) })
	return list, nil
}

// clone copies what a caller might change.
func (e *entry) clone() image.Image {
	img := e.Image
	img.Tags, img.Digests = slices.Clone(e.Tags), slices.Clone(e.Digests)
	return img
}

// nameIn returns the one of a reference's candidates that is a name of an image which find has found by it, nil for
// none: it was found by its id.
func nameIn(tags, digests []string, candidates []reference.Named) reference.Named {
	for _, named := range candidates {
		if slices.Contains(tags, named.String()) || slices.Contains(digests, named.String()) {
			return named
		}
	}
	return nil
}

// findPresent is find for verbs to which an absent image is success: nil then.
func (s *Store) findPresent(ref string) (*entry, error) {
	e, err := s.find(ref)
	if errors.Is(err, errs.NotFound) {
		return nil, nil
	}
	return e, err
}
