package layers

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/containerd/containerd/v2/core/mount"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/image/tree"
	"github.com/berthrun/berth/internal/image/unpack"
	"github.com/berthrun/berth/internal/sys/sysfile"
)

// Into unpacks layer i, whose blob content has, into a snapshot that a proxy snapshotter has prepared with the mounts.
// The layer is written into the upper directory of the overlay: whiteouts are in the overlay's form, as in berth's own
// layers. own is set for a snapshot of berth's own: its root directory gets the attributes of that of the layer below, if the
// layer does not describe it. unpacked is as with Unpack. Kind Unsupported when the mounts are neither an overlay nor a directory.
func (u *Unpacker) Into(ctx context.Context, t *tree.Tree, i int, mounts []mount.Mount, own bool, unpacked func(n int64)) (err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("cannot unpack %s: %w", t.SourceOf(i), errs.OfDisk(err))
		}
	}()
	defer u.runner.Hold()()
	job, err := jobOfMounts(mounts, t.Layers[i].Size)
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
	switch {
	case !own || result.Root:
		return nil
	case len(job.Lower) > 0:
		return sysfile.CopyAttributes(filepath.Join(job.LowerRoot, job.Lower[0]), job.Upper)
	}
	return os.Chtimes(job.Upper, time.Unix(0, 0), time.Unix(0, 0)) // the same each time
}

// jobOfMounts returns the job of a layer of some bytes with the directories of a prepared snapshot. The mount of a lowest layer is
// its directory alone.
func jobOfMounts(mounts []mount.Mount, layer int64) (unpack.Job, error) {
	job := unpack.Job{LayerSize: layer}
	if len(mounts) == 1 && mounts[0].Type == "bind" {
		job.Upper = mounts[0].Source
		return job, nil
	}
	if len(mounts) == 1 && mounts[0].Type == "overlay" {
		for _, option := range mounts[0].Options {
			if upper, ok := strings.CutPrefix(option, "upperdir="); ok {
				job.Upper = upper
			}
			lower, ok := strings.CutPrefix(option, "lowerdir=")
			if !ok {
				continue
			}
			job.LowerRoot, job.Lower = relative(strings.Split(lower, ":"))
		}
	}
	if !filepath.IsAbs(job.Upper) || job.Lower == nil {
		return job, fmt.Errorf("the snapshotter has prepared it with %s; berth unpacks layers into overlays and directories alone: %w", describe(mounts), errs.Unsupported)
	}
	return job, nil
}

// relative returns the directory that all directories are in, or else /, and their paths from there. What is mounted below that
// directory is cloned for the unpacking.
func relative(dirs []string) (root string, names []string) {
	root = filepath.Dir(filepath.Clean(dirs[0]))
	for _, dir := range dirs {
		if filepath.Dir(filepath.Clean(dir)) != root {
			root = "/"
		}
	}
	for _, dir := range dirs {
		names = append(names, strings.TrimPrefix(strings.TrimPrefix(filepath.Clean(dir), root), "/"))
	}
	return root, names
}

// describe says of which types mounts are.
func describe(mounts []mount.Mount) string {
	types := make([]string, len(mounts))
	for i, m := range mounts {
		types[i] = m.Type
	}
	return fmt.Sprintf("%d mounts (%s)", len(mounts), strings.Join(types, ", "))
}
