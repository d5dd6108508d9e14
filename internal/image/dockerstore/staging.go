package dockerstore

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/containerd/v2/core/images/converter/uncompress"
	"github.com/containerd/containerd/v2/pkg/archive/compression"
	localcontent "github.com/containerd/containerd/v2/plugins/content/local"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/specs-go"
	imagespec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/image/archive"
	"github.com/berthrun/berth/internal/image/progress"
	"github.com/berthrun/berth/internal/image/tree"
	"github.com/berthrun/berth/internal/sys/sysfile"
)

const stagingPrefix = "import-"

// staging holds the content of an archive until the engine has it. Engines read fewer formats
// than berth does, check less, and keep the first images of an archive that turns out bad.
type staging struct {
	dir     string
	content content.Store
}

// staged is an image of an archive, checked.
type staged struct {
	archive.Image
	tree *tree.Tree
}

func (s *Images) newStaging() (_ *staging, err error) {
	dir, err := os.MkdirTemp(s.dir, stagingPrefix)
	if err != nil {
		return nil, err
	}
	store, err := localcontent.NewStore(dir)
	if err != nil {
		return nil, errors.Join(err, os.RemoveAll(dir))
	}
	return &staging{dir, store}, nil
}

func (st *staging) remove() error { return os.RemoveAll(st.dir) }

// read stores the archive and returns its images.
func (st *staging) read(ctx context.Context, stream io.Reader, m *progress.Meter) ([]archive.Image, error) {
	free, err := sysfile.DiskFree(filepath.Dir(st.dir))
	if err != nil {
		return nil, err
	}
	m.Stage(progress.Fetching, 0)
	return archive.Read(ctx, st.content, stream, archive.Limits{Bytes: free}, m.Add)
}

// check reads an image for this platform and checks that all of it is there.
func (st *staging) check(ctx context.Context, s *Images, found archive.Image) (*staged, error) {
	t, err := tree.Reader{Content: st.content, Platform: s.platform}.Read(ctx, found.String(), found.Target, st.present)
	if err != nil {
		return nil, err
	}
	if n := t.Encrypted(); n > 0 {
		return nil, fmt.Errorf("image %s: %d of its layers are encrypted, and a Docker Engine decrypts none: %w", found, n, errs.Unsupported)
	}
	for i, layer := range t.Layers {
		if err := st.present(ctx, layer); err != nil {
			return nil, fmt.Errorf("image %s: layer %d: %w", found, i, err)
		}
		if err := st.checkContent(ctx, layer, t.Image.RootFS.DiffIDs[i]); err != nil {
			return nil, fmt.Errorf("image %s: layer %d: %w", found, i, err)
		}
	}
	return &staged{found, t}, nil
}

// checkContent compares the content of a layer with what the config of the image says. Engines with the
// containerd image store load an image without it.
func (st *staging) checkContent(ctx context.Context, layer imagespec.Descriptor, diffID digest.Digest) (err error) {
	reader, err := st.content.ReaderAt(ctx, layer)
	if err != nil {
		return err
	}
	defer reader.Close()
	plain, err := compression.DecompressStream(content.NewReader(reader))
	if err != nil {
		return fmt.Errorf("cannot decompress it: %w: %w", err, errs.Invalid)
	}
	defer plain.Close()
	found, err := digest.FromReader(plain)
	if err != nil {
		return fmt.Errorf("cannot decompress it: %w: %w", err, errs.Invalid)
	}
	if found != diffID {
		return fmt.Errorf("its content has the digest %s, and the config of the image says %s: %w", found, diffID, errs.Invalid)
	}
	return nil
}

// present is the tree.Provide of what the archive has.
func (st *staging) present(ctx context.Context, desc imagespec.Descriptor) error {
	info, err := st.content.Info(ctx, desc.Digest)
	if errdefs.IsNotFound(err) {
		return fmt.Errorf("blob %s is missing: %w", desc.Digest, errs.Invalid)
	}
	if err == nil && info.Size != desc.Size {
		return fmt.Errorf("blob %s has %d bytes, its descriptor says %d: %w", desc.Digest, info.Size, desc.Size, errs.Invalid)
	}
	return err
}

// uncompress replaces layers that graph drivers cannot read, those of zstd. Their config, which
// is the image's id there, does not change.
func (st *staging) uncompress(ctx context.Context, image *staged) error {
	manifest := imagespec.Manifest{
		Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: imagespec.MediaTypeImageManifest, Config: image.tree.Config,
	}
	changed := false
	for i, layer := range image.tree.Layers {
		if layer.MediaType == imagespec.MediaTypeImageLayerZstd {
			plain, err := uncompress.LayerConvertFunc(ctx, st.content, layer)
			if err != nil {
				return fmt.Errorf("image %s: cannot decompress layer %d: %w", image, i, err)
			}
			layer, changed = *plain, true
		}
		manifest.Layers = append(manifest.Layers, layer)
	}
	if !changed {
		return nil
	}
	data, err := json.Marshal(manifest)
	if err != nil {
		return err
	}
	image.tree.Manifest = imagespec.Descriptor{MediaType: manifest.MediaType, Digest: digest.FromBytes(data), Size: int64(len(data))}
	image.tree.Layers = manifest.Layers
	return content.WriteBlob(ctx, st.content, "manifest-"+image.tree.Manifest.Digest.String(), bytes.NewReader(data), image.tree.Manifest)
}
