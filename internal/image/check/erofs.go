package check

import (
	"context"
	"fmt"
	"maps"
	"slices"

	"github.com/opencontainers/go-digest"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/image"
	"github.com/berthrun/berth/internal/image/snapshotters"
)

// checkErofs reads the EROFS image of each layer that berth's own snapshotter has, and compares it with its digest.
func (r *run) checkErofs(ctx context.Context) error {
	own := r.Snapshotters.Own(image.ErofsSnapshotter)
	if own == nil {
		return nil
	}
	sizes := own.Sizes()
	for i, chain := range slices.Sorted(maps.Keys(sizes)) {
		r.stages.Say("compare EROFS images", fmt.Sprintf("the disk, %d of %d images are compared", i, len(sizes)))
		problem, err := own.Check(ctx, chain)
		switch {
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case err != nil:
			r.unchecked("the EROFS image of layer %s: %s", chain, errs.Message(err))
			continue
		}
		r.report.Layers++
		r.report.Bytes += sizes[chain]
		if problem == "" {
			continue
		}
		damage := image.Damage{Object: "layer", Digest: digest.Digest(chain), Problem: problem, Images: []string{}, Containers: []string{}}
		for _, img := range r.images {
			if img.Tree == nil || !slices.Contains(snapshotters.Chains(img.Tree.Layers), chain) {
				continue
			}
			damage.Images = append(damage.Images, nameOf(img))
			damage.Containers = append(damage.Containers, r.Rootfs.Users()[snapshotters.TopChain(img.Tree.Layers)]...)
		}
		if !r.repair {
			damage.Advice = "run the check with --repair, which drops the layer, and pull its images again"
		} else {
			own.Forget(chain)
			r.Snapshotters.Wake() // its images are not there any more
			damage.Repaired, damage.Repair = true, "the layer is dropped, and its images are pulled again when they are needed; containers keep it until they end"
		}
		r.found(damage)
	}
	return nil
}
