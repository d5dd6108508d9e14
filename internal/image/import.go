package image

import (
	"context"
	"fmt"
	"io"

	"github.com/distribution/reference"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/image/archive"
	"github.com/berthrun/berth/internal/image/names"
	"github.com/berthrun/berth/internal/image/tree"
	"github.com/berthrun/berth/internal/sys/sysfile"
)

// Import implements Store.
func (s *Images) Import(ctx context.Context, stream io.Reader, name string, pin bool, progress func(Progress)) ([]Image, error) {
	var fallback reference.Named
	if name != "" {
		var err error
		if fallback, err = names.Parse(name); err != nil {
			return nil, err
		}
	}
	ctx, end, err := s.begin(ctx)
	if err != nil {
		return nil, err
	}
	defer end()
	var list []Image
	err = s.withLease(ctx, func(ctx context.Context) error {
		list, err = s.importStream(ctx, stream, fallback, pin, newMeter(progress))
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("cannot import the archive: %w", diskError(err))
	}
	// Archives have files that are part of no image.
	s.collect(context.WithoutCancel(s.ns(ctx)))
	return list, nil
}

func (s *Images) importStream(ctx context.Context, stream io.Reader, fallback reference.Named, pin bool, m *meter) ([]Image, error) {
	free, err := sysfile.DiskFree(s.cfg.Root)
	if err != nil {
		return nil, err
	}
	m.stage(stageFetching, 0)
	found, err := archive.Read(ctx, s.content, stream, archive.Limits{Bytes: free}, m.add)
	if err != nil {
		return nil, err
	}
	if err := nameAll(found, fallback); err != nil {
		return nil, err
	}
	// All are checked and unpacked before the first is shown.
	trees := make([]*tree.Tree, len(found))
	for i, image := range found {
		if trees[i], err = s.importImage(ctx, image, m); err != nil {
			return nil, err
		}
	}
	m.stage(stageDone, 0)
	var list []Image
	for i, image := range found {
		img, err := s.record(ctx, trees[i], recordNames(image, trees[i]), pin)
		if err != nil {
			return nil, err
		}
		list = append(list, *img)
	}
	return list, nil
}

// nameAll gives the one image without a name the fallback.
func nameAll(found []archive.Image, fallback reference.Named) error {
	nameless := 0
	for i := range found {
		if len(found[i].Names) > 0 {
			continue
		}
		nameless++
		if fallback != nil {
			found[i].Names = []reference.Named{fallback}
		}
	}
	if nameless > 1 && fallback != nil {
		return fmt.Errorf("the archive has %d images without a name, %s names one: %w", nameless, fallback, errs.Invalid)
	}
	return nil
}

func recordNames(image archive.Image, t *tree.Tree) []string {
	var names []string
	for _, named := range image.Names {
		names = append(append(names, named.String()), t.DigestNames(named)...)
	}
	return names
}

func (s *Images) importImage(ctx context.Context, image archive.Image, m *meter) (*tree.Tree, error) {
	t, err := s.trees().Read(ctx, image.String(), image.Target, s.present)
	if err != nil {
		return nil, err
	}
	var total int64
	for i, layer := range t.Layers {
		if err := s.present(ctx, layer); err != nil {
			return nil, fmt.Errorf("image %s: layer %d: %w", image, i, err)
		}
		total += layer.Size
	}
	m = newMeter(m.report)
	m.stage(stageUnpacking, total)
	ready := func(context.Context, int) error { return nil }
	if err := s.unpackLayers(ctx, t, ready, m.unpack); err != nil {
		return nil, fmt.Errorf("image %s: %w", image, err)
	}
	return t, nil
}
