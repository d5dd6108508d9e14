package image

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/containerd/v2/core/snapshots"
	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/specs-go"
	imagespec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/image/names"
	"github.com/berthrun/berth/internal/sys/sysfile"
)

// MakePreloaded writes a preloaded directory (see preload.go) of the images of archives,
// complete or not at all. helper is as in Config. Kind Exists when dir is there, Invalid for a
// bad archive.
func MakePreloaded(ctx context.Context, dir string, archives, helper []string, log *slog.Logger) (_ []Image, err error) {
	dir, err = filepath.Abs(dir)
	if err != nil {
		return nil, err
	}
	if _, err := os.Lstat(dir); err == nil {
		return nil, fmt.Errorf("%s is there already: %w", dir, errs.Exists)
	}
	if err := os.MkdirAll(filepath.Dir(dir), 0o755); err != nil {
		return nil, err
	}
	// On the same file system: what is unpacked is moved.
	work, err := os.MkdirTemp(filepath.Dir(dir), ".preloaded-")
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, sysfile.RemoveTree(context.WithoutCancel(ctx), work)) }()
	made := filepath.Join(work, "made")
	list, err := makePreloaded(ctx, made, archives, Config{
		Root: filepath.Join(work, "store"), State: filepath.Join(work, "state"), UnpackHelper: helper, Log: log,
	})
	if err != nil {
		return nil, err
	}
	return list, os.Rename(made, dir)
}

func makePreloaded(ctx context.Context, made string, archives []string, cfg Config) (_ []Image, err error) {
	s, err := Open(ctx, cfg)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	for _, name := range archives {
		if err := s.importFile(ctx, name); err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
	}
	if err := s.layOut(s.ns(ctx), made); err != nil {
		return nil, err
	}
	return s.List(ctx)
}

func (s *Images) importFile(ctx context.Context, name string) error {
	file, err := os.Open(name)
	if err != nil {
		return err
	}
	defer file.Close()
	_, err = s.Import(ctx, file, "", true, nil)
	return err
}

// layOut moves what a store has to a preloaded directory. The store is of no use after that.
func (s *Images) layOut(ctx context.Context, made string) error {
	index, err := s.layoutIndex(ctx)
	if err != nil {
		return err
	}
	layers := filepath.Join(made, layersName)
	if err := os.MkdirAll(layers, 0o755); err != nil {
		return err
	}
	for name, document := range map[string]any{
		imagespec.ImageLayoutFile: imagespec.ImageLayout{Version: imagespec.ImageLayoutVersion},
		imagespec.ImageIndexFile:  index,
	} {
		data, err := json.Marshal(document)
		if err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(made, name), data, 0o644); err != nil {
			return err
		}
	}
	if err := os.Rename(filepath.Join(s.contentDir(), imagespec.ImageBlobsDir), filepath.Join(made, imagespec.ImageBlobsDir)); err != nil {
		return err
	}
	uppers := map[string]string{}
	err = s.snapshots.Walk(ctx, func(_ context.Context, info snapshots.Info) error {
		if info.Kind == snapshots.KindCommitted {
			uppers[info.Name] = info.Labels[upperdirLabel]
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("cannot list snapshots: %w", err)
	}
	for chain, upper := range uppers {
		if err := os.Rename(upper, filepath.Join(layers, digest.Digest(chain).Encoded())); err != nil {
			return err
		}
	}
	return nil
}

// layoutIndex lists all names of images, sorted, and images without one.
func (s *Images) layoutIndex(ctx context.Context) (*imagespec.Index, error) {
	index := &imagespec.Index{Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: imagespec.MediaTypeImageIndex}
	list, err := s.List(ctx)
	if err != nil {
		return nil, err
	}
	for _, img := range list {
		for _, name := range append(slices.Clone(img.Tags), img.ID)[:max(len(img.Tags), 1)] {
			record, err := s.images.Get(ctx, name)
			if err != nil {
				return nil, fmt.Errorf("cannot look up %s: %w", name, err)
			}
			desc := record.Target
			if !names.IsID(name) {
				desc.Annotations = map[string]string{images.AnnotationImageName: name, imagespec.AnnotationRefName: name}
			}
			index.Manifests = append(index.Manifests, desc)
		}
	}
	slices.SortFunc(index.Manifests, func(a, b imagespec.Descriptor) int {
		return strings.Compare(a.Annotations[images.AnnotationImageName]+string(a.Digest), b.Annotations[images.AnnotationImageName]+string(b.Digest))
	})
	return index, nil
}
