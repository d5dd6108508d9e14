package check

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
	imagespec "github.com/opencontainers/image-spec/specs-go/v1"
	"golang.org/x/sys/unix"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/image"
	"github.com/berthrun/berth/internal/image/database"
	"github.com/berthrun/berth/internal/image/registry"
	"github.com/berthrun/berth/internal/image/store"
)

// checkBlobs reads every blob.
func (r *run) checkBlobs(ctx context.Context) error {
	var all, damaged []content.Info
	err := r.DB.Content.Walk(ctx, func(info content.Info) error {
		all = append(all, info)
		return nil
	})
	if err != nil {
		return fmt.Errorf("cannot list content: %w", err)
	}
	var done, total int64
	for _, info := range all {
		total += info.Size
	}
	r.meter.Stage(image.CheckReading, total)
	problems := map[digest.Digest]string{}
	for i, info := range all {
		r.stages.Say("read blobs", fmt.Sprintf("the disk, %d of %d blobs are read", i, len(all)))
		problem := r.DB.FileProblem(info)
		if problem == "" {
			if problem, err = readBlob(ctx, r.DB.Paths, info, r.meter.Add); err != nil {
				return err
			}
		}
		done += info.Size
		r.meter.Set(image.Progress{Stage: image.CheckReading, Done: done, Total: total})
		if _, err := r.DB.Content.Info(ctx, info.Digest); err != nil {
			continue // it was removed meanwhile
		}
		r.report.Blobs++
		r.report.Bytes += info.Size
		if problem != "" {
			problems[info.Digest] = problem
			damaged = append(damaged, info)
		}
	}
	// Once a manifest is whole again, it is known which layers its image has.
	left := r.mendBlobs(ctx, damaged, problems, true)
	if len(left) > 0 {
		if err := r.readImages(ctx); err != nil {
			return err
		}
		r.mendBlobs(ctx, left, problems, false)
	}
	return context.Cause(ctx)
}

// mendBlobs reports damaged blobs, and repairs them. It returns those that no image is known to have,
// if known is set, and does not report them.
func (r *run) mendBlobs(ctx context.Context, damaged []content.Info, problems map[digest.Digest]string, known bool) (left []content.Info) {
	for _, info := range damaged {
		if ctx.Err() != nil {
			return nil
		}
		using := imagesWith(r.images, info.Digest)
		if known && len(using) == 0 {
			left = append(left, info)
			continue
		}
		damage := image.Damage{Object: "blob", Digest: info.Digest, Problem: problems[info.Digest], Images: []string{}, Containers: []string{}}
		for _, img := range using {
			damage.Images = append(damage.Images, nameOf(img))
		}
		r.mendBlob(ctx, info, using, &damage, replacement{r.DB.BlobPath(info.Digest)})
		r.broken[info.Digest] = !damage.Repaired
		r.found(damage)
	}
	return left
}

// checkMissing finds layers whose blob the store has no more: a start removes blobs whose file has
// another size. Their images stay in use, but cannot be unpacked again or exported. A lazy image never had its blobs.
func (r *run) checkMissing(ctx context.Context) error {
	for _, img := range r.images {
		if img.Tree == nil || img.Lazy {
			continue
		}
		for _, layer := range img.Tree.Layers {
			_, err := r.DB.Content.Info(ctx, layer.Digest)
			if _, known := r.broken[layer.Digest]; known || !errdefs.IsNotFound(err) {
				continue
			}
			damage := image.Damage{Object: "blob", Digest: layer.Digest, Problem: "it is missing", Images: []string{}, Containers: []string{}}
			using := imagesWith(r.images, layer.Digest)
			for _, other := range using {
				damage.Images = append(damage.Images, nameOf(other))
			}
			info := content.Info{Digest: layer.Digest, Size: layer.Size}
			err = r.DB.WithLease(ctx, func(ctx context.Context) error {
				r.mendBlob(ctx, info, using, &damage, r.DB)
				return context.Cause(ctx)
			})
			if err != nil {
				return err
			}
			r.broken[layer.Digest] = !damage.Repaired
			r.found(damage)
		}
	}
	return nil
}

// imagesWith returns those images that have a blob, as far as their documents can be read.
func imagesWith(images []store.Stored, blob digest.Digest) []store.Stored {
	var all []store.Stored
	for _, img := range images {
		has := img.ID == blob.String() || img.Target.Digest == blob ||
			slices.ContainsFunc(img.Digests, func(name string) bool { return strings.HasSuffix(name, "@"+blob.String()) })
		if t := img.Tree; t != nil {
			is := func(desc imagespec.Descriptor) bool { return desc.Digest == blob }
			has = has || t.Manifest.Digest == blob || slices.ContainsFunc(t.Layers, is) || slices.ContainsFunc(t.Indexes, is)
		}
		if has {
			all = append(all, img)
		}
	}
	return all
}

// mendBlob fetches a damaged blob again. The new file takes the place of the old one at once.
func (r *run) mendBlob(ctx context.Context, info content.Info, using []store.Stored, damage *image.Damage, to registry.Target) {
	from := database.PreloadedFrom(info)
	switch {
	case from != "":
		damage.Advice = fmt.Sprintf("it is used in place: write %s again", from)
		return
	case len(using) == 0:
		damage.Advice = "no image is known to have it; if an image's manifest is damaged too, pull or import that image again"
		return
	case !r.repair:
		damage.Advice = "run the check with --repair, or remove the image and pull or import it again"
		return
	}
	r.meter.Stage(image.CheckFetching, info.Size)
	source, err := r.fetchAgain(ctx, info, using, using, to, func(source string) func(int64) {
		r.stages.Say("fetch a blob again", source)
		return r.meter.Add
	})
	switch {
	case err == nil:
		damage.Repaired, damage.Repair = true, "fetched again from "+source
	case ctx.Err() == nil && retryable(err):
		r.wantBlob(info.Digest, minWait)
		damage.Advice = fmt.Sprintf("it cannot be fetched: %s; berth tries again in the background (berth jobs)", errs.Message(err))
	default:
		damage.Advice = fmt.Sprintf("it cannot be fetched: %s; pull the image with its credentials after its removal, or import it again", errs.Message(err))
	}
}

// fetchAgain fetches a blob again: from an archive of the host, or by the names of the images that registries are asked for. It
// returns the archive or the repository that has given it. begin is called with what is asked, and returns what gets the
// bytes.
func (c *Checker) fetchAgain(
	ctx context.Context, info content.Info, using, fromRegistries []store.Stored, to registry.Target, begin func(source string) (got func(int64)),
) (from string, err error) {
	path, archiveErr := c.extract(ctx, info, using, to, begin("an archive of image.import_dirs"))
	switch {
	case path != "":
		return "archive " + path, nil
	case ctx.Err() != nil:
		return "", context.Cause(ctx)
	case errors.Is(archiveErr, errs.Exhausted): // the disk is full for what registries send, too
		return "", archiveErr
	case archiveErr != nil:
		c.Log.Warn("cannot take what is damaged of an image from its archive in image.import_dirs; a registry is asked", "blob", info.Digest, "error", archiveErr)
	case len(fromRegistries) == 0:
		return "", fmt.Errorf("its images are pinned, such images come from archives, and no archive of image.import_dirs has them: %w", errs.Unsupported)
	}
	if len(fromRegistries) == 0 {
		fromRegistries = using
	}
	from, err = c.Store.FetchAgain(ctx, fromRegistries, descriptorOf(info, fromRegistries), to, begin("a registry of "+nameOf(fromRegistries[0])))
	if err != nil && ctx.Err() == nil && archiveErr != nil {
		err = store.Faults{archiveErr, err}
	}
	return from, err
}

// extract takes a blob from an archive. Nothing else fetches it meanwhile.
func (c *Checker) extract(ctx context.Context, info content.Info, using []store.Stored, to registry.Target, got func(int64)) (path string, err error) {
	unlock, err := c.Store.LockBlob(ctx, info.Digest)
	if err != nil {
		return "", err
	}
	defer unlock()
	var names []string
	for _, img := range using {
		names = append(append(append(names, img.ID), img.Tags...), img.Digests...)
	}
	return c.Archives.Extract(ctx, names, descriptorOf(info, using), to, got)
}

// descriptorOf describes a blob. A registry is asked for a manifest by its type.
func descriptorOf(info content.Info, using []store.Stored) imagespec.Descriptor {
	desc := imagespec.Descriptor{MediaType: "application/octet-stream", Digest: info.Digest, Size: info.Size}
	for _, img := range using {
		switch {
		case img.Target.Digest == info.Digest:
			desc.MediaType = img.Target.MediaType
		case slices.ContainsFunc(img.Digests, func(name string) bool { return strings.HasSuffix(name, "@"+info.Digest.String()) }):
			desc.MediaType = imagespec.MediaTypeImageManifest
		}
	}
	return desc
}

// readBlob reads a blob's file, and says what is wrong with it: "" if nothing is. read is called with the bytes
// as they are read.
func readBlob(ctx context.Context, paths database.Paths, info content.Info, read func(int64)) (problem string, err error) {
	f, err := paths.OpenBlob(info.Digest)
	if err != nil {
		return fmt.Sprintf("its file cannot be read: %v", err), nil
	}
	defer f.Close()
	verifier := info.Digest.Verifier()
	zero := &zeroes{only: true}
	_, err = io.Copy(io.MultiWriter(verifier, zero, counted(read)), &untilDone{ctx, f})
	// Reading everything must not push the files of containers out of memory.
	_ = unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_DONTNEED)
	switch {
	case ctx.Err() != nil:
		return "", context.Cause(ctx)
	case err != nil:
		return fmt.Sprintf("its file cannot be read: %v", err), nil
	case verifier.Verified():
		return "", nil
	case zero.only:
		return "its file has zeroes only", nil
	}
	return "its content has another digest", nil
}

// counted calls itself with the number of bytes of each write.
type counted func(int64)

func (c counted) Write(p []byte) (int, error) {
	c(int64(len(p)))
	return len(p), nil
}

// zeroes notes whether all bytes are 0.
type zeroes struct{ only bool }

func (z *zeroes) Write(p []byte) (int, error) {
	if z.only {
		z.only = !slices.ContainsFunc(p, func(b byte) bool { return b != 0 })
	}
	return len(p), nil
}

// untilDone reads until a context ends.
type untilDone struct {
	ctx  context.Context //nolint:containedctx // io.Reader has none
	from io.Reader
}

func (u *untilDone) Read(p []byte) (int, error) {
	if err := u.ctx.Err(); err != nil {
		return 0, err
	}
	return u.from.Read(p)
}
