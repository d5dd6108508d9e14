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
)

func (c *commands) newPrune() *cobra.Command {
	var dryRun bool
	cmd := &cobra.Command{
		Use:   "prune",
		Short: "Remove the images that no container uses and that are not pinned",
		Long: "prune removes all images that no container uses, as its root filesystem or as a volume, and that are not pinned. A\n" +
			"container that has exited uses its image until it is removed. prune does not ask: --dry-run shows what it would do.\n\n" +
			"Images with names go, too, as with `crictl rmi --prune` and `docker image prune -a`: a kubelet removes the same images\n" +
			"when the disk is full, and pulls them again when a pod needs them. On a node that cannot pull, import images with\n" +
			"`berth image import --pin`.",
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
	var freed freedBytes
	var failed []error
	out := cmd.OutOrStdout()
	done := "removed"
	if dryRun {
		done = "would remove"
	}
	for _, img := range unused {
		frees, err := freedBy(ctx, conn, img, dryRun)
		if err == nil && !dryRun {
			_, err = conn.Images.RemoveImage(ctx, &runtimeapi.RemoveImageRequest{Image: &runtimeapi.ImageSpec{Image: img.GetId()}})
		}
		if err != nil {
			failed = append(failed, err)
			continue
		}
		freed = freedBytes{freed.least + frees.least, freed.most + frees.most}
		fmt.Fprintf(out, "%s %s (%s)\n", done, strings.Join(namesOf(img), " "), show.ID(img.GetId()))
	}
	if dryRun {
		done = "would free"
	} else {
		done = "freed"
	}
	fmt.Fprintf(out, "%s %s of %d images\n", done, freed, len(unused)-len(failed))
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

// freedBy is what the removal of an image frees at this moment. What it shares with images that are removed before it is its
// own then; images that stay for a dry run hide that.
func freedBy(ctx context.Context, conn *criclient.Conn, img *runtimeapi.Image, stays bool) (freedBytes, error) {
	use, err := conn.Berth.DiskUse(ctx)
	if errors.Is(err, errs.Unsupported) { // another runtime, or a Docker Engine
		return freedBytes{0, int64(img.GetSize())}, nil
	}
	if err != nil {
		return freedBytes{}, err
	}
	for _, one := range use.Images {
		switch {
		case one.ID == img.GetId() && stays:
			return freedBytes{one.Own, one.Own + one.Shared}, nil
		case one.ID == img.GetId():
			return freedBytes{one.Own, one.Own}, nil
		}
	}
	return freedBytes{}, nil
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
