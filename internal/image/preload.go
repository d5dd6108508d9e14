package image

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
	imagespec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/image/archive"
	"github.com/berthrun/berth/internal/sys/sysfile"
)

// A preloaded directory has images that lie ready on the host, part of what it was
// installed from, say. It is an OCI image layout whose layers are unpacked beside:
//
//	oci-layout, index.json, blobs   the images, named by annotations as in archives
//	layers/<hex>                    the files of a layer, as an overlay takes them from
//	                                below; <hex> is of its chain ID
//
// A store takes its images once, pinned, and copies nothing: blobs and layers are links to
// the directory, which stays as it is. That its layers are what the digests say is not
// checked: whoever writes there writes the host's programs. A store that finds links
// broken forgets their images as it does with lost content. MakePreloaded makes one.
const (
	layersName = "layers"
	// preloadedLabel is a blob's that is a link, with the directory as its value.
	preloadedLabel = "run.berth.preloaded"
)

// takenPath is the record that a directory's images are taken, with the digest of its index.
func (s *Images) takenPath(dir string) string {
	return filepath.Join(s.cfg.Root, "preloaded", fmt.Sprintf("%x", sha256.Sum256([]byte(dir)))[:24])
}

// preload takes the images of directories that have changed since they were looked at. A
// directory that is not there has none; one that cannot be used keeps no pod from running.
func (s *Images) preload(ctx context.Context) {
	for _, dir := range s.cfg.PreloadedDirs {
		if err := s.preloadDir(ctx, filepath.Clean(dir)); err != nil {
			s.log.Error("the images of a directory cannot be used where they lie", "dir", dir, "error", err)
		}
	}
}

func (s *Images) preloadDir(ctx context.Context, dir string) error {
	index, err := os.ReadFile(filepath.Join(dir, imagespec.ImageIndexFile))
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	version := digest.FromBytes(index).String()
	if taken, err := os.ReadFile(s.takenPath(dir)); err == nil && string(taken) == version {
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
	p := &preloading{s: s, dir: dir, lower: s.takesLower(filepath.Join(dir, layersName))}
	if p.lower != nil {
		s.log.Warn("layers that lie ready are unpacked again: nothing can be mounted on them where they are", "dir", dir, "error", p.lower)
	}
	for _, image := range found {
		if err := s.withLease(ctx, func(ctx context.Context) error { return p.take(ctx, image) }); err != nil {
			return fmt.Errorf("image %s: %w", image, diskError(err))
		}
	}
	if err := os.MkdirAll(filepath.Dir(s.takenPath(dir)), 0o700); err != nil {
		return err
	}
	return sysfile.Replace(s.takenPath(dir), []byte(version))
}

// preloading is one directory whose images are being taken. lower is why its layers cannot be
// below an overlay.
type preloading struct {
	s     *Images
	dir   string
	lower error
}

func (p *preloading) take(ctx context.Context, image archive.Image) error {
	t, err := p.s.trees().Read(ctx, image.String(), image.Target, p.linkDocument)
	if err != nil {
		return err
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
		err = p.s.unpackLayers(ctx, t, ready, func(int64) {})
	}
	if err != nil {
		return err
	}
	_, err = p.s.record(ctx, t, recordNames(image, t), true)
	return err
}

// linkDocument is the provide that links a blob which is what its digest says.
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

// linkBlob has the store's content include a blob of the directory, unless it has it already.
func (p *preloading) linkBlob(ctx context.Context, desc imagespec.Descriptor) error {
	s := p.s
	fi, err := os.Stat(p.blobPath(desc.Digest))
	if err != nil {
		return fmt.Errorf("%w: %w", err, errs.Invalid)
	}
	if fi.Size() != desc.Size {
		return fmt.Errorf("blob %s has %d bytes, its descriptor says %d: %w", desc.Digest, fi.Size(), desc.Size, errs.Invalid)
	}
	if err := s.present(ctx, desc); err != nil {
		// A link of a try that was cut short is in the way, and nothing else.
		link := s.blobPath(desc.Digest)
		if err := errors.Join(os.MkdirAll(filepath.Dir(link), 0o755), os.RemoveAll(link), os.Symlink(p.blobPath(desc.Digest), link)); err != nil {
			return err
		}
	}
	// What lies where the blobs are is committed without being written again.
	w, err := content.OpenWriter(ctx, s.content, content.WithRef("preload-"+strings.ToLower(rand.Text())), content.WithDescriptor(desc))
	if errdefs.IsAlreadyExists(err) {
		return nil // and is leased now
	}
	if err != nil {
		return err
	}
	err = w.Commit(ctx, desc.Size, desc.Digest, content.WithLabels(map[string]string{preloadedLabel: p.dir}))
	return errors.Join(err, w.Close())
}

// linkLayers makes the snapshots that are missing of the directory's layers, lowest first.
func (p *preloading) linkLayers(ctx context.Context, chains []string) error {
	parent := ""
	for _, chain := range chains {
		there, err := p.s.keepSnapshot(ctx, chain)
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
	return p.s.withSnapshot(ctx, parent, func(key string) error {
		info, err := p.s.snapshots.Stat(ctx, key)
		if err != nil {
			return fmt.Errorf("cannot look up a snapshot: %w", err)
		}
		upper := info.Labels[upperdirLabel]
		if err := errors.Join(os.Remove(upper), os.Symlink(files, upper)); err != nil {
			return err
		}
		return p.s.commitSnapshot(ctx, chain, parent, key)
	})
}

// takesLower reports whether an overlay of this store can have a directory below it: nil, or
// why not. Overlays can be on overlays twice only.
func (s *Images) takesLower(lower string) (err error) {
	dir, err := s.pool.take(s)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	target := filepath.Join(dir, "rootfs")
	if err := os.Mkdir(target, 0o700); err != nil {
		return err
	}
	overlay := sysfile.Overlay{
		LowerRoot: filepath.Dir(lower), Lower: []string{filepath.Base(lower)},
		Upper: filepath.Join(dir, upperName), Work: filepath.Join(dir, workName),
	}
	if err := sysfile.MountOverlay(overlay, target); err != nil {
		return err
	}
	return sysfile.Detach(target)
}
