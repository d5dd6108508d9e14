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

// load makes an image's entry from its content and snapshots. refs are the keys of all references to it. places are where its layers
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
	for _, key := range refs {
		name, _ := names.OfKey(key)
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

// find looks an image up, by a name for a platform, or by an id for any. key is that of the name by which the image was found,
// "" for an id. s.mu is held.
func (s *Store) find(platform, ref string) (_ *entry, key string, err error) {
	if e := s.index[ref]; e != nil {
		return e, "", nil
	}
	candidates, nameErr := names.Candidates(ref, s.rules.Load().SearchRegistries)
	for _, named := range candidates {
		for _, key := range []string{names.Key(named.String(), platform), named.String()} {
			e := s.index[s.names[key]]
			if e != nil && (key == names.Key(key, platform) || e.Artifact != nil) { // artifacts are for all platforms
				return e, key, nil
			}
		}
	}
	if nameErr == nil {
		nameErr = fmt.Errorf("the node does not have image %q: %w", ref, errs.NotFound)
	}
	prefix, ok := names.IDPrefix(ref)
	if !ok {
		return nil, "", nameErr
	}
	var found *entry
	for id, e := range s.index {
		if !strings.HasPrefix(id, prefix) {
			continue
		}
		if found != nil {
			return nil, "", fmt.Errorf("image id %q is ambiguous: %w", ref, errs.Invalid)
		}
		found = e
	}
	if found == nil {
		return nil, "", fmt.Errorf("the node does not have image %q: %w", ref, errs.NotFound)
	}
	return found, "", nil
}

// findFor is find of an image that is for the platform; see image.PlatformStore. s.mu is held.
func (s *Store) findFor(platform, ref string) (_ *entry, key string, err error) {
	e, key, err := s.find(platform, ref)
	if err == nil && !e.IsFor(platform) {
		return nil, "", &image.OtherPlatformError{Ref: ref, Has: []string{e.Platform()}, Wants: platform}
	}
	if !errors.Is(err, errs.NotFound) {
		return e, key, err
	}
	other := &image.OtherPlatformError{Ref: ref, Wants: platform}
	candidates, _ := names.Candidates(ref, s.rules.Load().SearchRegistries) // an invalid name has none
	for key, id := range s.names {
		name, _ := names.OfKey(key)
		if slices.ContainsFunc(candidates, func(named reference.Named) bool { return named.String() == name }) {
			other.Has = append(other.Has, s.index[id].Platform())
		}
	}
	if len(other.Has) == 0 {
		return nil, "", err
	}
	slices.Sort(other.Has)
	other.Has = slices.Compact(other.Has)
	return nil, "", other
}

// Get implements image.Store.
func (s *Store) Get(_ context.Context, ref string) (*image.Image, error) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.shown(s.find("", ref))
}

// GetFor implements image.PlatformStore.
func (s *Store) GetFor(_ context.Context, platform, ref string) (*image.Image, error) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.shown(s.findFor(platform, ref))
}

// shown returns what find has found. s.mu is held.
func (s *Store) shown(e *entry, key string, err error) (*image.Image, error) {
	if err != nil {
		return nil, err
	}
	img := e.clone()
	if key != "" {
		img.Annotations = s.annotations[key]
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
