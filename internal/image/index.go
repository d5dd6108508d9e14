package image

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/containerd/v2/core/snapshots"
	"github.com/containerd/errdefs"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/image/names"
	"github.com/berthrun/berth/internal/image/tree"
)

// entry is an image in memory. It is never changed, only replaced.
type entry struct {
	Image
	// chain names the image's topmost snapshot; lower are the directories of
	// all, topmost first, relative to layersDir.
	chain string
	lower []string
}

// upperdirLabel tells where the overlay snapshotter keeps a snapshot's files.
const upperdirLabel = "containerd.io/snapshot/overlay.upperdir"

// lowerDirs lists the directories of a committed snapshot and all below it,
// topmost first, relative to layersDir.
func (s *Images) lowerDirs(ctx context.Context, chain string) ([]string, error) {
	var lower []string
	for chain != "" {
		info, err := s.snapshots.Stat(ctx, chain)
		if err != nil {
			return nil, fmt.Errorf("cannot find snapshot %s: %w", chain, err)
		}
		if info.Kind != snapshots.KindCommitted {
			return nil, fmt.Errorf("snapshot %s is not complete", chain)
		}
		dir, err := filepath.Rel(s.layersDir(), info.Labels[upperdirLabel])
		if err != nil {
			return nil, fmt.Errorf("cannot tell where snapshot %s is: %w", chain, err)
		}
		lower = append(lower, dir)
		chain = info.Parent
	}
	return lower, nil
}

// load makes an image's entry from its content and snapshots. refs are all
// references to it.
func (s *Images) load(ctx context.Context, t *tree.Tree, refs []string, pinned bool) (*entry, error) {
	chain := t.TopChain()
	lower, err := s.lowerDirs(ctx, chain)
	if err != nil {
		return nil, err
	}
	e := &entry{
		Image: Image{
			ID:           t.ID(),
			Size:         t.Size(),
			Config:       t.Image.Config,
			OS:           t.Image.OS,
			Architecture: t.Image.Architecture,
			Variant:      t.Image.Variant,
			ChainID:      chain,
			Pinned:       pinned,
			Annotations:  t.Annotations,
		},
		chain: chain,
		lower: lower,
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

// put makes the index say what the records now say of an image. s.mu is held.
func (s *Images) put(e *entry, names []string) {
	s.forget(e.ID)
	s.index[e.ID] = e
	for _, name := range names {
		s.names[name] = e.ID
	}
}

// forget takes an image out of the index. s.mu is held.
func (s *Images) forget(id string) {
	delete(s.index, id)
	for name, owner := range s.names {
		if owner == id {
			delete(s.names, name)
		}
	}
}

// find looks an image up. s.mu is held.
func (s *Images) find(ref string) (*entry, error) {
	if e := s.index[ref]; e != nil {
		return e, nil
	}
	named, nameErr := names.Parse(ref)
	if nameErr == nil {
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

// Get implements Store.
func (s *Images) Get(_ context.Context, ref string) (*Image, error) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	e, err := s.find(ref)
	if err != nil {
		return nil, err
	}
	img := e.clone()
	return &img, nil
}

// List implements Store.
func (s *Images) List(context.Context) ([]Image, error) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	list := make([]Image, 0, len(s.index))
	for _, e := range s.index {
		list = append(list, e.clone())
	}
	slices.SortFunc(list, func(a, b Image) int { return strings.Compare(a.ID, b.ID) })
	return list, nil
}

// clone copies what a caller might change.
func (e *entry) clone() Image {
	img := e.Image
	img.Tags, img.Digests = slices.Clone(e.Tags), slices.Clone(e.Digests)
	return img
}

// findPresent is find for verbs to which an absent image is success: nil then.
func (s *Images) findPresent(ref string) (*entry, error) {
	e, err := s.find(ref)
	if errors.Is(err, errs.NotFound) {
		return nil, nil
	}
	return e, err
}

// Usage implements Store. It counts blobs and unpacked layers as the databases
// know them, and reads no directory.
func (s *Images) Usage(ctx context.Context) (Usage, error) {
	ctx = s.ns(ctx)
	usage := Usage{Mountpoint: s.cfg.Root, At: time.Now()}
	err := s.content.Walk(ctx, func(info content.Info) error {
		if info.Labels[preloadedLabel] != "" {
			return nil // a link; so are its layers, and no file
		}
		usage.Bytes += info.Size
		usage.Inodes++
		return nil
	})
	if err != nil {
		return Usage{}, fmt.Errorf("cannot add up image content: %w", err)
	}
	// The snapshotter's transaction must not be open while it is asked again.
	var names []string
	err = s.snapshots.Walk(ctx, func(_ context.Context, info snapshots.Info) error {
		if info.Kind == snapshots.KindCommitted {
			names = append(names, info.Name)
		}
		return nil
	})
	if err != nil {
		return Usage{}, fmt.Errorf("cannot list snapshots: %w", err)
	}
	for _, name := range names {
		used, err := s.snapshots.Usage(ctx, name)
		if errdefs.IsNotFound(err) {
			continue
		}
		if err != nil {
			return Usage{}, fmt.Errorf("cannot tell the size of snapshot %s: %w", name, err)
		}
		usage.Bytes += used.Size
		usage.Inodes += used.Inodes
	}
	return usage, nil
}
