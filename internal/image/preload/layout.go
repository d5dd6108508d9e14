package preload

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/containerd/v2/core/snapshots"
	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/specs-go"
	imagespec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/berthrun/berth/internal/image"
	"github.com/berthrun/berth/internal/image/database"
	"github.com/berthrun/berth/internal/image/names"
)

// LayOut moves the images of a list to a preloaded directory, which it makes, with all content
// and layers of the store. The store is of no use after that.
func LayOut(ctx context.Context, db *database.DB, list []image.Image, made string) error {
	ctx = database.WithNamespace(ctx)
	index, err := layoutIndex(ctx, db, list)
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
	if err := os.Rename(filepath.Join(db.ContentDir(), imagespec.ImageBlobsDir), filepath.Join(made, imagespec.ImageBlobsDir)); err != nil {
		return err
	}
	uppers := map[string]string{}
	err = db.Snapshots.Walk(ctx, func(_ context.Context, info snapshots.Info) error {
		if info.Kind == snapshots.KindCommitted {
			uppers[info.Name] = database.UpperDir(info)
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
func layoutIndex(ctx context.Context, db *database.DB, list []image.Image) (*imagespec.Index, error) {
	index := &imagespec.Index{Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: imagespec.MediaTypeImageIndex}
	for _, img := range list {
		platform, err := db.PlatformOf(ctx, img.ID)
		if err != nil {
			return nil, err
		}
		for _, name := range append(slices.Clone(img.Tags), img.ID)[:max(len(img.Tags), 1)] {
			record, err := db.Images.Get(ctx, names.Key(name, platform))
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
