package imagecmd

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berthrun/berth/internal/cli/show"
	"github.com/berthrun/berth/internal/criclient"
	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/image"
)

func (c *commands) newPrune() *cobra.Command {
	var dryRun bool
	cmd := &cobra.Command{
		Use:   "prune",
		Short: "Remove the images that no container uses and that are not pinned",
		Long: "prune removes all images that no container uses, as its root filesystem or as a volume, and that are not pinned. A\n" +
			"container that has exited uses its image until it is removed. prune does not ask: --dry-run shows what it would do.\n\n" +
			"It also removes images that have names, as `crictl rmi --prune` and `docker image prune -a` do. A kubelet removes the\n" +
			"same images when the disk is full, and pulls them again when a pod needs them. On a node that cannot pull, import\n" +
			"images with `berth image import --pin`.",
		Example: "  berth image prune --dry-run\n  berth image prune",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return c.endpoint.Use(cmd, func(ctx context.Context, conn *criclient.Conn) error { return prune(ctx, cmd, conn, dryRun) })
		},
	}
	cmd.Flags().BoolVar(&dryRun, "dry-run", false, "print what prune would remove, and remove nothing")
	return cmd
}

func prune(ctx context.Context, cmd *cobra.Command, conn *criclient.Conn, dryRun bool) error {
	unused, err := unusedImages(ctx, conn)
	if err != nil {
		return fmt.Errorf("cannot find the images that no container uses: %w", err)
	}
	out := cmd.OutOrStdout()
	if dryRun {
		frees, _, err := bounds(ctx, conn, unused)
		if err != nil {
			return fmt.Errorf("cannot find out what prune would free: %w", err)
		}
		for _, img := range unused {
			fmt.Fprintf(out, "would remove %s (%s)\n", strings.Join(namesOf(img), " "), show.ID(img.GetId()))
		}
		fmt.Fprintf(out, "would free %s of %d images\n", frees, len(unused))
		return nil
	}
	var freed freedBytes
	var failed []error
	removed := 0
	for _, img := range unused {
		frees, used, err := freedBy(ctx, conn, img)
		if err == nil && !used {
			used, err = pinned(ctx, conn, img.GetId())
		}
		if used { // since the list was made
			continue
		}
		if err == nil {
			_, err = conn.Images.RemoveImage(ctx, &runtimeapi.RemoveImageRequest{Image: &runtimeapi.ImageSpec{Image: img.GetId()}})
		}
		if err != nil {
			failed = append(failed, err)
			continue
		}
		removed++
		freed = freedBytes{freed.least + frees.least, freed.most + frees.most}
		fmt.Fprintf(out, "removed %s (%s)\n", strings.Join(namesOf(img), " "), show.ID(img.GetId()))
	}
	fmt.Fprintf(out, "freed %s of %d images\n", freed, removed)
	return errors.Join(failed...)
}

// unusedImages are the images that no container uses and that are not pinned.
func unusedImages(ctx context.Context, conn *criclient.Conn) ([]*runtimeapi.Image, error) {
	// Before the containers: an image that is pulled for a new container meanwhile is not among them.
	resp, err := conn.Images.ListImages(ctx, &runtimeapi.ListImagesRequest{})
	if err != nil {
		return nil, err
	}
	users, err := usersOf(ctx, conn)
	if err != nil {
		return nil, err
	}
	images := slices.DeleteFunc(resp.GetImages(), func(img *runtimeapi.Image) bool { return img.GetPinned() || len(users[img.GetId()]) > 0 })
	slices.SortFunc(images, func(a, b *runtimeapi.Image) int {
		return cmp.Or(slices.Compare(namesOf(a), namesOf(b)), cmp.Compare(a.GetId(), b.GetId()))
	})
	return images, nil
}

// namesOf are the names of an image: its tags, or its digests if it has no tag.
func namesOf(img *runtimeapi.Image) []string {
	switch {
	case len(img.GetRepoTags()) > 0:
		return img.GetRepoTags()
	case len(img.GetRepoDigests()) > 0:
		return img.GetRepoDigests()
	}
	return []string{show.Or("")}
}

// freedBytes has a bound below and one above of what removals free.
type freedBytes struct{ least, most int64 }

// freedBy is what the removal of one image frees. What the image shares with those that were removed before it is its own now.
// used reports whether a container uses it by now, also one that is being created.
func freedBy(ctx context.Context, conn *criclient.Conn, img *runtimeapi.Image) (frees freedBytes, used bool, err error) {
	frees, use, err := bounds(ctx, conn, []*runtimeapi.Image{img})
	if use == nil {
		return frees, false, err
	}
	for _, one := range use.Images {
		used = used || one.ID == img.GetId() && len(one.Containers) > 0
	}
	return freedBytes{frees.least, frees.least}, used, nil
}

// pinned reports whether an image is pinned.
func pinned(ctx context.Context, conn *criclient.Conn, id string) (bool, error) {
	resp, err := conn.Images.ImageStatus(ctx, &runtimeapi.ImageStatusRequest{Image: &runtimeapi.ImageSpec{Image: id}})
	return resp.GetImage().GetPinned(), err
}

// bounds returns the least and the most that the removal of all these images frees. Both differ by what the images share with
// each other and with images that stay. use is nil for a runtime that does not say who uses the disk.
func bounds(ctx context.Context, conn *criclient.Conn, images []*runtimeapi.Image) (frees freedBytes, use *image.DiskUse, err error) {
	use, err = conn.Berth.DiskUse(ctx)
	if errors.Is(err, errs.Unsupported) { // another runtime, or a Docker Engine
		var sizes int64
		for _, img := range images {
			sizes += int64(img.GetSize())
		}
		return freedBytes{0, sizes}, nil, nil
	}
	if err != nil {
		return freedBytes{}, nil, err
	}
	removed := map[string]bool{}
	for _, img := range images {
		removed[img.GetId()] = true
	}
	return boundsOf(use, removed), use, nil
}

// boundsOf is bounds of the images with the ids.
func boundsOf(use *image.DiskUse, removed map[string]bool) freedBytes {
	var own, all, stays, shared int64
	for _, one := range use.Images {
		if removed[one.ID] {
			own, all = own+one.Own, all+one.Own+one.Shared
			continue
		}
		stays, shared = stays+one.Own, max(shared, one.Shared)
	}
	for _, kept := range use.Kept {
		stays += kept.Bytes
	}
	// No more goes than the store has beside what stays.
	return freedBytes{own, max(own, min(all, use.Total-use.Unfinished-stays-shared))}
}

func (b freedBytes) String() string {
	least, most := show.Size(uint64(max(b.least, 0))), show.Size(uint64(max(b.most, 0)))
	switch {
	case least == most:
		return most
	case b.least <= 0:
		return "at most " + most
	}
	return least + " to " + most
}
