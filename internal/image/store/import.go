package store

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"

	"github.com/containerd/containerd/v2/core/content"
	"github.com/distribution/reference"
	"github.com/opencontainers/go-digest"
	imagespec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/image"
	"github.com/berthrun/berth/internal/image/archive"
	"github.com/berthrun/berth/internal/image/database"
	"github.com/berthrun/berth/internal/image/names"
	"github.com/berthrun/berth/internal/image/progress"
	"github.com/berthrun/berth/internal/image/tree"
	"github.com/berthrun/berth/internal/sys/sysfile"
)

// Import implements image.Store.
func (s *Store) Import(ctx context.Context, stream io.Reader, name string, pin bool, report func(image.Progress)) ([]image.Image, error) {
	var fallback reference.Named
	if name != "" {
		var err error
		if fallback, err = names.Parse(name); err != nil {
			return nil, err
		}
	}
	ctx, end, err := s.background.Begin(ctx)
	if err != nil {
		return nil, err
	}
	defer end()
	var list []image.Image
	err = s.db.WithLease(ctx, func(ctx context.Context) error {
		list, err = s.importStream(ctx, stream, fallback, pin, progress.NewMeter(report))
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("cannot import the archive: %w", errs.OfDisk(err))
	}
	// Archives have files that are part of no image.
	s.db.Collect(context.WithoutCancel(database.WithNamespace(ctx)))
	return list, nil
}

func (s *Store) importStream(ctx context.Context, stream io.Reader, fallback reference.Named, pin bool, m *progress.Meter) ([]image.Image, error) {
	free, err := sysfile.DiskFree(s.db.Root)
	if err != nil {
		return nil, err
	}
	m.Stage(progress.Fetching, 0)
	found, err := archive.Read(ctx, healing{s.db.Content, s.db}, stream, archive.Limits{Bytes: free}, m.Add)
	if err != nil {
		return nil, err
	}
	if err := archive.NameAll(found, fallback); err != nil {
		return nil, err
	}
	// All are checked and unpacked before the first is shown.
	trees := make([][]*tree.Tree, len(found))
	for i, image := range found {
		if trees[i], err = s.importImage(ctx, image, m); err != nil {
			return nil, err
		}
	}
	m.Stage(progress.Done, 0)
	var list []image.Image
	for i, image := range found {
		for _, t := range trees[i] {
			img, err := s.Record(ctx, t, ArchiveNames(image, t), pin)
			if err != nil {
				return nil, err
			}
			list = append(list, *img)
		}
	}
	return list, nil
}

// healing is the content store for an import. It removes a damaged manifest, index or config before the archive's own is
// written: the content store does not overwrite what it has.
type healing struct {
	content.Store
	db *database.DB
}

// Writer implements content.Ingester.
func (h healing) Writer(ctx context.Context, opts ...content.WriterOpt) (content.Writer, error) {
	var asked content.WriterOpts
	for _, opt := range opts {
		if err := opt(&asked); err != nil {
			return nil, err
		}
	}
	if err := h.drop(ctx, asked.Desc); err != nil {
		return nil, err
	}
	// A blob of a pull that is under way may have a file and no record: the content store would write after its end.
	if asked.Desc.Digest != "" {
		if err := h.db.RecordFinished(ctx, asked.Desc.Digest); err != nil {
			return nil, err
		}
	}
	w, err := h.Store.Writer(ctx, opts...)
	if err != nil {
		return nil, err
	}
	return healingWriter{w, h}, nil
}

// drop removes a damaged blob that has at most the size of a document: only the end of the archive says what a blob is.
// What is unpacked of a small layer stays in use. A blob that is used in place is not removed; what reads it reports it.
func (h healing) drop(ctx context.Context, desc imagespec.Descriptor) error {
	if desc.Digest == "" || desc.Size > tree.MaxDocument {
		return nil
	}
	if err := h.db.DropDamagedDocument(ctx, desc); !errors.Is(err, errs.Invalid) {
		return err
	}
	return nil
}

// healingWriter writes what may have no digest in its name.
type healingWriter struct {
	content.Writer
	h healing
}

// Commit implements content.Writer.
func (w healingWriter) Commit(ctx context.Context, size int64, expected digest.Digest, opts ...content.Opt) error {
	if err := w.h.drop(ctx, imagespec.Descriptor{Digest: expected, Size: size}); err != nil {
		return err
	}
	// If a pull has finished the blob meanwhile, the content store takes its file, which may not be on disk yet.
	for _, step := range []func() error{
		func() error { return w.h.db.RecordFinished(ctx, expected) },
		func() error { return w.Writer.Commit(ctx, size, expected, opts...) },
		func() error { return w.h.db.RecordFinished(ctx, expected) },
	} {
		if err := step(); err != nil {
			return err
		}
	}
	return nil
}

// ArchiveNames are the names that an image of an archive gets.
func ArchiveNames(image archive.Image, t *tree.Tree) []string {
	var names []string
	for _, named := range image.Names {
		for _, name := range append([]string{named.String()}, t.DigestNames(named)...) {
			if !slices.Contains(names, name) {
				names = append(names, name)
			}
		}
	}
	return names
}

// importImage unpacks an image of an archive for each platform for which the archive has it.
func (s *Store) importImage(ctx context.Context, image archive.Image, m *progress.Meter) ([]*tree.Tree, error) {
	trees, err := s.ForPlatforms(func(platform string) (*tree.Tree, error) {
		t, err := s.db.ReadTree(ctx, image.String(), platform, image.Target, s.db.Present)
		if err != nil {
			return nil, err
		}
		for i, layer := range t.Layers {
			if err := s.db.Present(ctx, layer); err != nil {
				return nil, fmt.Errorf("image %s: layer %d: %w", image, i, err)
			}
		}
		return t, nil
	})
	if err != nil {
		return nil, err
	}
	for _, t := range trees {
		var total int64
		for _, layer := range t.Layers {
			total += layer.Size
		}
		m = m.Again()
		m.Stage(progress.Unpacking, total)
		ready := func(context.Context, int) error { return nil }
		if err := s.layers.Unpack(ctx, t, ready, m.Unpack); err != nil {
			return nil, fmt.Errorf("image %s: %w", image, err)
		}
	}
	return trees, nil
}

// Platforms are those of the rules.
func (s *Store) Platforms() []string { return s.rules.Load().Platforms }

// ForPlatforms returns the images that read returns for the node's platform and for those of the rules, at least one. The
// error is that of the node's platform. An archive with an index for many platforms need not have the content of the others.
func (s *Store) ForPlatforms(read func(platform string) (*tree.Tree, error)) ([]*tree.Tree, error) {
	var trees []*tree.Tree
	t, failed := read("")
	if failed == nil {
		trees = append(trees, t)
	} else if !errors.Is(failed, errs.Unsupported) {
		return nil, failed
	}
	for _, platform := range s.Platforms() {
		t, err := read(platform)
		switch {
		case errors.Is(err, errs.Unsupported), errors.Is(err, errs.Invalid):
		case err != nil:
			return nil, err
		case t.Platform != "": // an artifact is for all
			trees = append(trees, t)
		}
	}
	if len(trees) == 0 {
		return nil, failed
	}
	return trees, nil
}
