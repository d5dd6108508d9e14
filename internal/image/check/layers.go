package check

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"

	"github.com/opencontainers/go-digest"
	"golang.org/x/sys/unix"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/image"
	"github.com/berthrun/berth/internal/image/store"
	"github.com/berthrun/berth/internal/image/tree"
)

// checkLayers unpacks every layer again, lowest first, and compares the files.
func (r *run) checkLayers(ctx context.Context) error {
	all, total := r.layers()
	r.meter.Stage(image.CheckComparing, total)
	var done int64
	for i, at := range all {
		r.stages.Say("compare layers", fmt.Sprintf("the disk, %d of %d layers are compared", i, len(all)))
		if err := r.checkLayer(ctx, at.image, at.index, at.chain); err != nil {
			return err
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		done += at.image.Tree.SizeOf(at.index)
		r.meter.Set(image.Progress{Stage: image.CheckComparing, Done: done, Total: total})
	}
	return nil
}

// layerOf is a layer of an image that has it.
type layerOf struct {
	image store.Stored
	index int
	chain string
}

// layers lists the layers of all images that are unpacked, each once, the lowest of an image first, and adds up the sizes of
// their blobs.
func (r *run) layers() (all []layerOf, total int64) {
	seen := map[string]bool{}
	for _, img := range r.images {
		if img.Tree == nil || img.Lazy { // another image may have unpacked the chain that the config of a lazy one names
			continue
		}
		for i, chain := range img.Tree.Chains() {
			if seen[chain] {
				continue
			}
			seen[chain] = true
			all = append(all, layerOf{img, i, chain})
			total += img.Tree.SizeOf(i)
		}
	}
	return all, total
}

// errLeft keeps a layer that stays damaged from being recorded as the content of its blob.
var errLeft = errors.New("the layer stays damaged")

// checkLayer checks one layer, and repairs it if it may.
func (r *run) checkLayer(ctx context.Context, img store.Stored, i int, chain string) error {
	t := img.Tree
	dir, _, err := r.DB.LayerFiles(ctx, chain)
	if err != nil {
		return nil //nolint:nilerr // it was removed meanwhile
	}
	if fi, err := os.Lstat(dir); err == nil && fi.Mode()&os.ModeSymlink != 0 {
		if whole, err := r.Layers.Whole(ctx, t, i); err != nil || whole {
			return err // a preloaded layer is used in place
		}
	}
	for _, n := range t.LayersOf(i) {
		if r.broken[t.Layers[n].Digest] {
			r.unchecked("layer %s of %s: its blob %s is damaged", chain, nameOf(img), t.Layers[n].Digest)
			return nil
		}
	}
	damage := image.Damage{Object: "layer", Digest: digest.Digest(chain), Images: []string{}, Containers: []string{}}
	err = r.Layers.Again(ctx, t, i, r.meter.Add, func(again string, root bool) error {
		r.report.Layers++
		r.report.Bytes += t.SizeOf(i)
		problem, err := compareTrees(ctx, dir, again)
		if err != nil || problem == "" {
			return err
		}
		damage.Problem = problem
		if damage.Containers, err = r.users(ctx, chain); err != nil {
			return err
		}
		if err := r.mendLayer(ctx, t, i, unpackedAgain{dir, again, root}, &damage); err != nil || damage.Repaired {
			return err
		}
		return errLeft
	})
	switch {
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case err != nil && damage.Problem == "":
		if _, _, gone := r.DB.LayerFiles(ctx, chain); gone == nil {
			r.unchecked("layer %s of %s: %s", chain, nameOf(img), errs.Message(err))
		}
		return nil
	case damage.Problem == "":
		return nil
	case err != nil && !damage.Repaired && !errors.Is(err, errLeft):
		damage.Advice = fmt.Sprintf("it cannot be repaired: %s", errs.Message(err))
	}
	for _, other := range r.images {
		if other.Tree != nil && slices.Contains(other.Tree.Chains(), chain) {
			damage.Images = append(damage.Images, nameOf(other))
		}
	}
	if damage.Repaired {
		from := fmt.Sprintf("unpacked again from blob %s", t.Layers[i].Digest)
		if t.Artifact != nil {
			from = "copied again from the blobs of the artifact"
		}
		damage.Repair = from + "; " + damage.Repair
	}
	r.found(damage)
	return nil
}

// unpackedAgain is a layer that was unpacked a second time: its files in dir, and those at again. root is set if the latter have
// the attributes of the image's root directory.
type unpackedAgain struct {
	dir, again string
	root       bool
}

// mendLayer exchanges the files of a layer. Containers that use it keep those that they have. The repair is what became of
// what was found.
func (r *run) mendLayer(ctx context.Context, t *tree.Tree, i int, files unpackedAgain, damage *image.Damage) error {
	if !r.repair {
		damage.Advice = "run the check with --repair"
		return nil
	}
	chain := t.Chains()[i]
	whole, err := r.Layers.Whole(ctx, t, i)
	if err != nil {
		return err
	}
	damage.Repair = "what was found is removed"
	if !whole { // the directory is gone, and nothing can be kept
		if len(damage.Containers) > 0 {
			damage.Advice = "remove these containers: files that they use are gone"
		}
		err := r.DB.RestoreFiles(ctx, chain, files.again, files.root)
		damage.Repaired = err == nil
		return err
	}
	unused, err := r.Store.WhileUnused(ctx, chain, func() error { return exchange(files) })
	if err == nil && !unused {
		isBelow := func(top string) (bool, error) { return r.DB.IsBelow(ctx, chain, top) }
		err = r.Rootfs.ReplaceLayer(ctx, chain, files.dir, files.again, isBelow)
		damage.Repair = "what was found stays for the containers that use it, and new containers get the repaired layer"
		damage.Advice = "remove these containers: until then they have what was found"
	}
	damage.Repaired = err == nil
	return err
}

// exchange puts the files at again in the place of those at dir, and the other way round, at once.
func exchange(files unpackedAgain) error {
	err := unix.Renameat2(unix.AT_FDCWD, files.again, unix.AT_FDCWD, files.dir, unix.RENAME_EXCHANGE)
	if err != nil {
		return fmt.Errorf("cannot replace the files of a layer: %w", errs.OfDisk(err))
	}
	return nil
}
