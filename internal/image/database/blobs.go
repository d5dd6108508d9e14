package database

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
	imagespec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/image/tree"
	"github.com/berthrun/berth/internal/sys/sysfile"
)

// preloadedLabel is the label of a blob that is a link. Its value is the linked directory.
const preloadedLabel = "run.berth.preloaded"

// Present is the tree.Provide for content that must exist already.
func (d *DB) Present(ctx context.Context, desc imagespec.Descriptor) error {
	info, err := d.Content.Info(ctx, desc.Digest)
	if errdefs.IsNotFound(err) {
		return fmt.Errorf("blob %s is missing: %w", desc.Digest, errs.Invalid)
	}
	if err == nil && info.Size != desc.Size {
		return wrongSize(info, desc)
	}
	return err
}

// wrongSize is the error of a descriptor that lies about the size of a blob.
func wrongSize(info content.Info, desc imagespec.Descriptor) error {
	return fmt.Errorf("blob %s has %d bytes, its descriptor says %d: %w", desc.Digest, info.Size, desc.Size, errs.Invalid)
}

// intact is Present that also checks the blob's file: the database does not know the losses of a disk.
func (d *DB) intact(ctx context.Context, desc imagespec.Descriptor) error {
	if err := d.Present(ctx, desc); err != nil {
		return err
	}
	info, err := d.Content.Info(ctx, desc.Digest)
	if err != nil {
		return err
	}
	if problem := d.FileProblem(info); problem != "" {
		return fmt.Errorf("blob %s: %s", desc.Digest, problem)
	}
	return nil
}

// Whole is the tree.Provide for content of an image that is handed out. It looks at the blob's file, and does not read it. The
// error of a blob that is missing or looks wrong is a DamagedError.
func (d *DB) Whole(ctx context.Context, desc imagespec.Descriptor) error {
	info, err := d.Content.Info(ctx, desc.Digest)
	if errdefs.IsNotFound(err) {
		return &DamagedError{Blob: desc.Digest, problem: "it is missing"}
	}
	if err != nil {
		return err
	}
	if problem := d.FileProblem(info); problem != "" {
		return &DamagedError{Blob: desc.Digest, problem: problem}
	}
	if info.Size != desc.Size {
		return wrongSize(info, desc)
	}
	return nil
}

// Known is the tree.Provide for content of a recorded image. It checks the blob's file, since the database does not know the
// losses of a disk. It adds to the content store a blob whose file is there, and which only the database does not know: the
// database is damaged.
func (d *DB) Known(ctx context.Context, desc imagespec.Descriptor) error {
	_, err := d.Content.Info(ctx, desc.Digest)
	if errdefs.IsNotFound(err) {
		if err := d.adoptKnown(ctx, desc); err != nil {
			return err
		}
	}
	return d.intact(ctx, desc)
}

// adoptKnown adds a blob of a recorded image if its file is there.
func (d *DB) adoptKnown(ctx context.Context, desc imagespec.Descriptor) error {
	if size, ok := d.whole(desc.Digest); !ok || size != desc.Size {
		return nil
	}
	if err := d.AdoptFile(ctx, desc); err != nil {
		return fmt.Errorf("cannot record blob %s again: %w", desc.Digest, err)
	}
	d.log.Warn("a blob is recorded again, whose record in the database was missing or wrong", "blob", desc.Digest)
	return nil
}

// whole is verified, also for a link to the file of a preloaded blob.
func (d *DB) whole(blob digest.Digest) (int64, bool) {
	target, err := os.Readlink(d.BlobPath(blob))
	if err != nil || preloadedDir(target, blob) == "" {
		return d.verified(blob)
	}
	f, err := d.OpenBlob(blob)
	if err != nil {
		return 0, false
	}
	return sumOfFile(f, blob)
}

// AdoptFile adds to the content store a blob whose file, or link to the file of a preloaded one, is among its blobs already: it
// commits the blob without writing it again, and leases one that the store has already. The error is fs.ErrNotExist when the
// file is missing, or has another size than the blob.
func (d *DB) AdoptFile(ctx context.Context, desc imagespec.Descriptor) error {
	path := d.BlobPath(desc.Digest)
	fi, err := os.Stat(path)
	if err != nil {
		return err
	}
	if fi.Size() != desc.Size {
		return fmt.Errorf("blob %s has %d bytes on disk, want %d: %w", desc.Digest, fi.Size(), desc.Size, fs.ErrNotExist)
	}
	preloaded := ""
	if target, err := os.Readlink(path); err == nil {
		if preloaded = preloadedDir(target, desc.Digest); preloaded == "" {
			return fmt.Errorf("blob %s is a symbolic link to %s: %w", desc.Digest, target, fs.ErrNotExist)
		}
	}
	return d.AdoptBlob(ctx, desc, preloaded)
}

// preloadedDir is the directory of images that the link of a preloaded blob leads to, "" for another link.
func preloadedDir(target string, blob digest.Digest) string {
	dir, ok := strings.CutSuffix(target, filepath.Join("/", imagespec.ImageBlobsDir, blob.Algorithm().String(), blob.Encoded()))
	if !ok || !filepath.IsAbs(dir) {
		return ""
	}
	if _, err := os.Lstat(filepath.Join(dir, imagespec.ImageIndexFile)); err != nil {
		return ""
	}
	return dir
}

// AdoptBlob is AdoptFile for a file that is known to be there. preloaded is the directory that a link leads to, "" for a file.
func (d *DB) AdoptBlob(ctx context.Context, desc imagespec.Descriptor, preloaded string) error {
	w, err := content.OpenWriter(ctx, d.Content, content.WithRef("adopt-"+strings.ToLower(rand.Text())), content.WithDescriptor(desc))
	if errdefs.IsAlreadyExists(err) {
		return nil
	}
	if err != nil {
		return err
	}
	var labels []content.Opt
	if preloaded != "" {
		labels = append(labels, content.WithLabels(map[string]string{preloadedLabel: preloaded}))
	}
	err = w.Commit(ctx, desc.Size, desc.Digest, labels...)
	return errors.Join(err, w.Close())
}

// WriteEmpty adds the blob without content, such as an empty file of an artifact.
func (d *DB) WriteEmpty(ctx context.Context, desc imagespec.Descriptor) error {
	return content.WriteBlob(ctx, d.Content, "empty-"+strings.ToLower(rand.Text()), bytes.NewReader(nil), desc)
}

// DropDamagedBlobs removes blobs whose file a loss of power has emptied, cut or taken: as long as
// the database has them, nothing fetches them again. What is unpacked of them stays in use. A file that has the right digest is
// no damaged blob: the database has a wrong size of it, or does not know that a link leads to a preloaded one.
func (d *DB) DropDamagedBlobs(ctx context.Context) error {
	damaged := map[digest.Digest]string{}
	err := d.Content.Walk(ctx, func(info content.Info) error {
		if problem := d.FileProblem(info); problem != "" {
			damaged[info.Digest] = problem
		}
		return nil
	})
	if err != nil {
		return err
	}
	for dgst, problem := range damaged {
		if size, ok := d.whole(dgst); ok {
			d.log.Warn("recording a blob again, whose record in the database is wrong", "blob", dgst, "problem", problem)
			if err := d.Content.Delete(ctx, dgst); err != nil && !errdefs.IsNotFound(err) {
				return err
			}
			if err := d.AdoptFile(ctx, imagespec.Descriptor{Digest: dgst, Size: size}); err != nil {
				return fmt.Errorf("cannot record blob %s again: %w", dgst, err)
			}
			continue
		}
		d.log.Warn("removing a damaged blob; it is fetched again in the background if an archive of image.import_dirs or a registry has it, else by the next pull or import of its image",
			"blob", dgst, "problem", problem)
		if err := d.dropBlob(ctx, dgst); err != nil {
			return err
		}
	}
	return nil
}

// DropDamagedDocument removes a document of an image whose content has another digest than its name,
// so that it can be fetched again. Nothing happens to a blob that is whole, or not there. Invalid when the descriptor lies
// about the size: a registry may name a layer of any size as a document, and that is not read into memory.
func (d *DB) DropDamagedDocument(ctx context.Context, desc imagespec.Descriptor) error {
	info, err := d.Content.Info(ctx, desc.Digest)
	if errdefs.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return err
	}
	if info.Size > tree.MaxDocument {
		return wrongSize(info, desc)
	}
	problem := d.FileProblem(info)
	if problem == "" {
		data, err := sysfile.ReadRegular(d.BlobPath(desc.Digest), info.Size)
		if err == nil && desc.Digest.Algorithm().FromBytes(data) == desc.Digest {
			if info.Size != desc.Size {
				return wrongSize(info, desc)
			}
			return nil
		}
		problem = "its content has another digest"
	}
	if from := PreloadedFrom(info); from != "" {
		return fmt.Errorf("blob %s is used in place: %s; write %s again: %w", desc.Digest, problem, from, errs.Invalid)
	}
	if d.finished.keeps(desc.Digest) {
		return nil // another pull has dropped it, and fetched it again
	}
	d.log.Warn("fetching a damaged blob again", "blob", desc.Digest, "problem", problem)
	return d.dropBlob(ctx, desc.Digest)
}

// dropBlob removes a blob and its file: the content store does not overwrite an existing one.
func (d *DB) dropBlob(ctx context.Context, dgst digest.Digest) error {
	if err := d.Content.Delete(ctx, dgst); err != nil && !errdefs.IsNotFound(err) {
		return err
	}
	return d.discard(d.BlobPath(dgst))
}

// Sweep removes content and snapshots that are not, or not completely, recorded.
// The collector checks the disk only where it has removed something, so Sweep creates
// something to remove in each place.
func (d *DB) Sweep(ctx context.Context) error {
	d.strays = nil // the collection removes them
	probe := []byte("swept at start\n")
	desc := imagespec.Descriptor{Digest: digest.FromBytes(probe), Size: int64(len(probe))}
	if err := content.WriteBlob(ctx, d.Content, "sweep", bytes.NewReader(probe), desc); err != nil {
		return err
	}
	if _, err := d.Snapshots.Prepare(ctx, "sweep", ""); err != nil && !errdefs.IsAlreadyExists(err) {
		return err
	}
	return d.collect(ctx)
}

// PreloadedFrom returns the directory that a blob is used from, "" for one of the store.
func PreloadedFrom(info content.Info) string { return info.Labels[preloadedLabel] }
