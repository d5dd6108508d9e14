package layers

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"

	"github.com/containerd/containerd/v2/core/mount"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/image/tree"
	"github.com/berthrun/berth/internal/image/unpack"
	"github.com/berthrun/berth/internal/sys/sysfile"
)

// Into unpacks layer i, whose blob content has, into a snapshot that a proxy snapshotter has prepared with the mounts.
// The layer is written into the upper directory of the overlay: whiteouts are in the overlay's form, as in berth's own
// layers. unpacked is as with Unpack. Kind Unsupported when the mounts are neither an overlay nor a directory.
func (u *Unpacker) Into(ctx context.Context, t *tree.Tree, i int, mounts []mount.Mount, unpacked func(n int64)) (err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("cannot unpack %s: %w", t.SourceOf(i), errs.OfDisk(err))
		}
	}()
	defer u.runner.Hold()()
	job, err := jobOfMounts(mounts)
	if err != nil {
		return err
	}
	if job.MaxBytes, err = sysfile.DiskFree(job.Upper); err != nil {
		return err
	}
	job.MaxLayer = u.maxLayer.Load()
	blob, err := u.db.OpenBlob(t.Layers[i].Digest)
	if err != nil {
		return err
	}
	defer blob.Close()
	var seen int64
	result, err := u.runner.Run(ctx, job, blob, func(offset int64) { unpacked(offset - seen); seen = offset })
	if err != nil {
		unpacked(-seen)
		return err
	}
	unpacked(t.Layers[i].Size - seen)
	if want := t.Image.RootFS.DiffIDs[i].String(); result.DiffID != want {
		return fmt.Errorf("its content has digest %s, the image's config says %s: %w", result.DiffID, want, errs.Invalid)
	}
	return nil
}

// jobOfMounts returns the directories of a prepared snapshot. The mount of a lowest layer is its directory alone.
func jobOfMounts(mounts []mount.Mount) (unpack.Job, error) {
	if len(mounts) == 1 && mounts[0].Type == "bind" {
		return unpack.Job{Upper: mounts[0].Source}, nil
	}
	var job unpack.Job
	if len(mounts) == 1 && mounts[0].Type == "overlay" {
		for _, option := range mounts[0].Options {
			if upper, ok := strings.CutPrefix(option, "upperdir="); ok {
				job.Upper = upper
			}
			lower, ok := strings.CutPrefix(option, "lowerdir=")
			if !ok {
				continue
			}
			job.LowerRoot = "/"
			for dir := range strings.SplitSeq(lower, ":") {
				job.Lower = append(job.Lower, strings.TrimPrefix(filepath.Clean(dir), "/"))
			}
		}
	}
	if !filepath.IsAbs(job.Upper) || job.Lower == nil {
		return job, fmt.Errorf("the snapshotter has prepared it with %s; berth unpacks layers into overlays and directories alone: %w", describe(mounts), errs.Unsupported)
	}
	return job, nil
}

// describe says of which types mounts are.
func describe(mounts []mount.Mount) string {
	types := make([]string, len(mounts))
	for i, m := range mounts {
		types[i] = m.Type
	}
	return fmt.Sprintf("%d mounts (%s)", len(mounts), strings.Join(types, ", "))
}
