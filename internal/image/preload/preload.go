// Package preload adds the images of a prepared directory of the host to a store.
//
// Such a directory may come with the operating system's image. It is an OCI image layout with
// the unpacked layers beside it:
//
//	oci-layout, index.json, blobs   the images, named by annotations as in archives
//	layers/<hex>                    the files of a layer, as an overlay takes them from
//	                                below; <hex> is of its chain ID
//
// A store adds its images once, pinned, and copies nothing: blobs and layers are links to the
// directory, which does not change. The store does not verify the digests of the layers: a
// process that can write there can write the host's programs. If the links break, the store
// removes their images, as with lost content. LayOut makes such a directory.
package preload

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"

	"github.com/opencontainers/go-digest"
	imagespec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/image/archive"
	"github.com/berthrun/berth/internal/image/database"
	"github.com/berthrun/berth/internal/image/layers"
	"github.com/berthrun/berth/internal/image/store"
	"github.com/berthrun/berth/internal/image/tree"
	"github.com/berthrun/berth/internal/sys/sysfile"
)

const layersName = "layers"

// recordsDir has the records below a store's root.
const recordsDir = "preloaded"

// Forget removes the records below a store's root. The next Take reads all directories again.
func Forget(root string) error { return os.RemoveAll(filepath.Join(root, recordsDir)) }

// Preloader adds images to a store.
type Preloader struct {
	DB     *database.DB
	Layers *layers.Unpacker
	Store  *store.Store
	// CanMount returns nil if an overlay can have the directory as its lower layer, or why not.
	CanMount func(lower string) error
	Log      *slog.Logger
}

// takenPath returns the path of the record that a directory's images are added, which holds the
// digest of its index, and the platforms for which they are.
func (p *Preloader) takenPath(dir string) string {
	return filepath.Join(p.DB.Root, recordsDir, fmt.Sprintf("%x", sha256.Sum256([]byte(dir)))[:24])
}

// Take adds the images of directories that have changed since the last Take. It skips a missing
// directory, and logs an error for one that cannot be used, so that pods still run.
func (p *Preloader) Take(ctx context.Context, dirs []string) {
	ctx = database.WithNamespace(ctx)
	for _, dir := range dirs {
		if err := p.takeDir(ctx, filepath.Clean(dir)); err != nil {
			p.Log.Error("cannot use the preloaded images of a directory", "dir", dir, "error", err)
		}
	}
}

func (p *Preloader) takeDir(ctx context.Context, dir string) error {
	index, err := os.ReadFile(filepath.Join(dir, imagespec.ImageIndexFile))
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	version := strings.Join(append([]string{digest.FromBytes(index).String()}, p.Store.Platforms()...), " ")
	if taken, err := os.ReadFile(p.takenPath(dir)); err == nil && string(taken) == version {
		return nil
	}
	layout, err := os.ReadFile(filepath.Join(dir, imagespec.ImageLayoutFile))
	if err != nil {
		return err
	}
	found, err := archive.Layout(layout, index)
	if err != nil {
		return err
	}
	one := &preloading{Preloader: p, dir: dir, lower: p.CanMount(filepath.Join(dir, layersName))}
	if one.lower != nil {
		p.Log.Warn("unpacking preloaded layers again: they cannot be lower layers of an overlay in their directory", "dir", dir, "error", one.lower)
	}
	for _, image := range found {
		err := p.DB.WithLease(ctx, func(ctx context.Context) error { return one.take(ctx, image) })
		if errors.As(err, new(*otherPlatforms)) {
			p.Log.Warn("skipping a preloaded image, because it is for no platform of the node and its handlers", "dir", dir, "image", image.String(), "error", err)
			continue
		}
		if err != nil {
			return fmt.Errorf("image %s: %w", image, errs.OfDisk(err))
		}
	}
	if err := os.MkdirAll(filepath.Dir(p.takenPath(dir)), 0o700); err != nil {
		return err
	}
	return sysfile.Replace(p.takenPath(dir), []byte(version))
}

// preloading is one directory whose images are being added. lower is why its layers cannot be
// lower layers of an overlay, or nil.
type preloading struct {
	*Preloader
	dir   string
	lower error
}

// otherPlatforms is the error of an image that is for other platforms only.
type otherPlatforms struct{ error }

func (e *otherPlatforms) Unwrap() error { return e.error }

func (p *preloading) take(ctx context.Context, image archive.Image) error {
	trees, err := p.Store.ForPlatforms(func(platform string) (*tree.Tree, error) {
		return p.DB.ReadTree(ctx, image.String(), platform, image.Target, p.linkDocument)
	})
	if errors.Is(err, errs.Unsupported) {
		return &otherPlatforms{err}
	}
	if err != nil {
		return err
	}
	for _, t := range trees {
		if err := p.takeTree(ctx, image, t); err != nil {
			return err
		}
	}
	return nil
}

// takeTree adds an image for one platform.
func (p *preloading) takeTree(ctx context.Context, image archive.Image, t *tree.Tree) (err error) {
	if n := t.Encrypted(); n > 0 {
		return fmt.Errorf("%d of its layers are encrypted, and those of preloaded directories lie there unpacked; import it from an archive: %w", n, errs.Unsupported)
	}
	for i, layer := range t.Layers {
		if err := p.linkBlob(ctx, layer); err != nil {
			return fmt.Errorf("layer %d: %w", i, err)
		}
	}
	if p.lower == nil {
		err = p.linkLayers(ctx, t.Chains())
	} else {
		ready := func(context.Context, int) error { return nil }
		err = p.Layers.Unpack(ctx, t, ready, func(int64) {})
	}
	if err != nil {
		return err
	}
	_, err = p.Store.Record(ctx, t, store.ArchiveNames(image, t), true)
	return err
}

// linkDocument is the tree.Provide that verifies a document's digest and links its blob.
func (p *preloading) linkDocument(ctx context.Context, desc imagespec.Descriptor) error {
	data, err := os.ReadFile(p.blobPath(desc.Digest))
	if err != nil {
		return fmt.Errorf("%w: %w", err, errs.Invalid)
	}
	if got := desc.Digest.Algorithm().FromBytes(data); got != desc.Digest {
		return fmt.Errorf("blob %s has digest %s: %w", desc.Digest, got, errs.Invalid)
	}
	return p.linkBlob(ctx, desc)
}

func (p *preloading) blobPath(dgst digest.Digest) string {
	return filepath.Join(p.dir, imagespec.ImageBlobsDir, dgst.Algorithm().String(), dgst.Encoded())
}

// linkBlob adds a blob of the directory to the store's content, unless the store has it.
func (p *preloading) linkBlob(ctx context.Context, desc imagespec.Descriptor) error {
	fi, err := os.Stat(p.blobPath(desc.Digest))
	if err != nil {
		return fmt.Errorf("%w: %w", err, errs.Invalid)
	}
	if fi.Size() != desc.Size {
		return fmt.Errorf("blob %s has %d bytes, its descriptor says %d: %w", desc.Digest, fi.Size(), desc.Size, errs.Invalid)
	}
	if err := p.DB.Present(ctx, desc); err != nil {
		// Only a link of an interrupted attempt can be there.
		link := p.DB.BlobPath(desc.Digest)
		if err := errors.Join(os.MkdirAll(filepath.Dir(link), 0o755), os.RemoveAll(link), os.Symlink(p.blobPath(desc.Digest), link)); err != nil {
			return err
		}
	}
	return p.DB.AdoptBlob(ctx, desc, p.dir)
}

// linkLayers makes the missing snapshots of the directory's layers, lowest first.
func (p *preloading) linkLayers(ctx context.Context, chains []string) error {
	parent := ""
	for _, chain := range chains {
		there, err := p.DB.KeepSnapshot(ctx, chain)
		if err != nil {
			return err
		}
		if !there {
			if err := p.linkLayer(ctx, chain, parent); err != nil {
				return err
			}
		}
		parent = chain
	}
	return nil
}

func (p *preloading) linkLayer(ctx context.Context, chain, parent string) error {
	files := filepath.Join(p.dir, layersName, digest.Digest(chain).Encoded())
	if fi, err := os.Stat(files); err != nil || !fi.IsDir() {
		return fmt.Errorf("there is no directory %s: %w", files, errors.Join(err, errs.Invalid))
	}
	return p.DB.WithSnapshot(ctx, parent, func(key string) error {
		info, err := p.DB.Snapshots.Stat(ctx, key)
		if err != nil {
			return fmt.Errorf("cannot look up a snapshot: %w", err)
		}
		upper := database.UpperDir(info)
		if err := errors.Join(os.Remove(upper), os.Symlink(files, upper)); err != nil {
			return err
		}
		return p.DB.CommitSnapshot(ctx, database.LayerLabel{Chain: chain, Parent: parent}, key)
	})
}
