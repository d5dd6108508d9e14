package store

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/containerd/containerd/v2/core/images"
	"github.com/distribution/reference"
	"github.com/opencontainers/go-digest"
	imagespec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/image"
	"github.com/berthrun/berth/internal/image/database"
	"github.com/berthrun/berth/internal/image/downloads"
	"github.com/berthrun/berth/internal/image/names"
	"github.com/berthrun/berth/internal/image/progress"
	"github.com/berthrun/berth/internal/image/registry"
	"github.com/berthrun/berth/internal/image/tree"
)

// Stored is one image, for those that account for it.
type Stored struct {
	ID            string
	Tags, Digests []string
	Pinned, Lazy  bool
	// Target is what its names point to.
	Target imagespec.Descriptor
	// Tree is nil if its documents cannot be read; Fault says why.
	Tree  *tree.Tree
	Fault error
}

// Names are the tags, or the digests if there is no tag.
func (s Stored) Names() []string {
	if len(s.Tags) == 0 {
		return s.Digests
	}
	return s.Tags
}

// Inventory lists all images, sorted by id. It reads their documents.
func (s *Store) Inventory(ctx context.Context) ([]Stored, error) {
	ctx = database.WithNamespace(ctx)
	list, err := s.List(ctx)
	if err != nil {
		return nil, err
	}
	var all []Stored
	for i := range list {
		record, err := s.db.Images.Get(ctx, list[i].ID)
		if err != nil {
			continue // it was removed meanwhile
		}
		all = append(all, s.stored(ctx, &list[i], record))
	}
	slices.SortFunc(all, func(a, b Stored) int { return cmp.Compare(a.ID, b.ID) })
	return all, nil
}

// Stored returns one image, with its documents.
func (s *Store) Stored(ctx context.Context, id string) (Stored, error) {
	ctx = database.WithNamespace(ctx)
	img, err := s.Get(ctx, id)
	if err != nil {
		return Stored{}, err
	}
	record, err := s.db.Images.Get(ctx, img.ID)
	if err != nil {
		return Stored{}, fmt.Errorf("cannot find the record of image %s: %w", id, err)
	}
	one := s.stored(ctx, img, record)
	return one, one.Fault
}

func (s *Store) stored(ctx context.Context, img *image.Image, record images.Image) Stored {
	one := Stored{ID: img.ID, Tags: img.Tags, Digests: img.Digests, Pinned: img.Pinned, Lazy: img.Lazy, Target: record.Target}
	one.Tree, one.Fault = s.db.ReadRecord(ctx, record, s.db.Present)
	if one.Fault != nil {
		one.Tree = nil
	}
	return one
}

// WhileUnused calls fn while no root filesystem stands on a snapshot, and none can begin to. It
// returns false, and does not call fn, if one does.
func (s *Store) WhileUnused(ctx context.Context, chain string, fn func() error) (bool, error) {
	ctx = database.WithNamespace(ctx)
	s.mu.Lock()
	defer s.mu.Unlock()
	for top := range s.holds.counts {
		below, err := s.db.IsBelow(ctx, chain, top)
		if err != nil {
			return false, err
		}
		if below {
			return false, nil
		}
	}
	return true, fn()
}

// LockBlob keeps others from fetching a blob until unlock.
func (s *Store) LockBlob(ctx context.Context, blob digest.Digest) (unlock func(), err error) {
	return s.blobs.Lock(ctx, blob.String())
}

// FetchAgain fetches a blob by the names of images that have it, with the node's own credentials, until one of their registries
// has it. It asks each repository once, and returns the one that has given the blob. got is called with the bytes as they come.
// Downloads for pods go first.
func (s *Store) FetchAgain(ctx context.Context, using []Stored, desc imagespec.Descriptor, to registry.Target, got func(int64)) (from string, err error) {
	unlock, err := s.LockBlob(ctx, desc.Digest)
	if err != nil {
		return "", err
	}
	defer unlock()
	rules := s.rules.Load()
	var all Faults
	asked := map[string]bool{}
	for _, name := range namesOf(using) {
		named, err := names.Parse(name)
		if err != nil || asked[reference.TrimNamed(named).Name()] {
			continue
		}
		repository := reference.TrimNamed(named).Name()
		asked[repository] = true
		err = s.fetchBlob(ctx, named, desc, to, rules, got)
		if err == nil {
			return repository, nil
		}
		if ctx.Err() != nil {
			return "", context.Cause(ctx)
		}
		all = append(all, fault{repository, reference.Path(named), err})
	}
	if len(all) == 0 {
		return "", fmt.Errorf("no name of the image leads to a registry: %w", errs.NotFound)
	}
	return "", all
}

func namesOf(images []Stored) []string {
	var all []string
	for _, img := range images {
		all = append(append(all, img.Digests...), img.Tags...)
	}
	return all
}

// fetchBlob fetches a blob by one name. It fails if the registry sends nothing for long, as a pull does.
func (s *Store) fetchBlob(ctx context.Context, named reference.Named, desc imagespec.Descriptor, to registry.Target, rules *PullRules, got func(int64)) error {
	remote, err := s.openRegistry(ctx, named, image.Auth{}, rules)
	if err != nil {
		return err
	}
	defer remote.Close()
	m := progress.NewMeter(nil)
	ctx, release := m.Guard(ctx, rules.NoProgressTimeout)
	defer release()
	defer m.Transfer()()
	turn := downloads.Turn{Gate: s.downloads, Waits: m.Wait}
	err = remote.Fetch(downloads.InBackground(ctx), to, desc, turn, func(n int64) {
		m.Touch()
		got(n)
	})
	if cause := context.Cause(ctx); err != nil && cause != nil {
		return fmt.Errorf("%w", cause)
	}
	return errs.OfDisk(err)
}

// fault is why a repository has not given an object. path is the repository's in its registry.
type fault struct {
	repository, path string
	error
}

// Error implements error.
func (f fault) Error() string { return f.repository + ": " + f.error.Error() }

// Unwrap returns the cause.
func (f fault) Unwrap() error { return f.error }

// Faults are why no registry has given an object. It has the kinds of all.
type Faults []error

// Error implements error. It has each cause once, with the repositories that it concerns. Causes are the same if they differ in the
// repository's path alone, which is in the URL of a request.
func (f Faults) Error() string {
	type cause struct{ key, text, of string }
	var causes []cause
	for _, err := range f {
		c := cause{key: err.Error(), text: err.Error()}
		if one, ok := err.(fault); ok { //nolint:errorlint // one that wraps it has a text of its own
			c = cause{key: strings.ReplaceAll(one.error.Error(), one.path, ""), text: one.error.Error(), of: one.repository}
		}
		at := slices.IndexFunc(causes, func(other cause) bool { return other.key == c.key })
		switch {
		case at < 0:
			causes = append(causes, c)
		case c.of != "":
			causes[at].of += ", " + c.of
		}
	}
	texts := make([]string, len(causes))
	for i, c := range causes {
		texts[i] = c.text
		if c.of != "" {
			texts[i] = c.of + ": " + c.text
		}
	}
	return strings.Join(texts, "; ")
}

// Unwrap returns the errors.
func (f Faults) Unwrap() []error { return f }
