package images

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berthrun/berth/internal/cli/crictl/connection"
	"github.com/berthrun/berth/internal/cli/crictl/selection"
	"github.com/berthrun/berth/internal/cli/crictl/verb"
	"github.com/berthrun/berth/internal/errs"
)

// NewRemoveImage returns `crictl rmi`.
func NewRemoveImage(s *connection.Settings) *cobra.Command {
	var all, prune bool
	cmd := &cobra.Command{
		Use:   "rmi IMAGE...",
		Short: "Remove images, each with all its names",
		RunE: func(cmd *cobra.Command, args []string) error {
			return s.Use(cmd, func(ctx context.Context, c *connection.Clients) error {
				switch {
				case all || prune:
					found, err := removable(ctx, c, prune)
					if err != nil {
						return err
					}
					args = append(args, found...)
				case len(args) == 0:
					return cmd.Help()
				}
				slices.Sort(args)
				return verb.Each(cmd.OutOrStdout(), slices.Compact(args), func(name string) (string, error) {
					done, err := removeImage(ctx, c, name)
					if prune {
						err = errs.IgnoreNotFound(err) // removed meanwhile
					}
					return done, err
				})
			})
		},
	}
	cmd.Flags().BoolVarP(&all, "all", "a", false, "all images")
	cmd.Flags().BoolVarP(&prune, "prune", "q", false, "all images that no container uses and that are not pinned")
	return cmd
}

// removable are all images, or the unused ones.
func removable(ctx context.Context, c *connection.Clients, unused bool) ([]string, error) {
	images, err := selection.Images(ctx, c, "", nil)
	if err != nil || !unused {
		return selection.IDs(images), err
	}
	containers, err := (&selection.Containers{All: true}).List(ctx, c)
	if err != nil {
		return nil, err
	}
	used := map[string]bool{}
	for _, container := range containers {
		resp, err := c.Images.ImageStatus(ctx, &runtimeapi.ImageStatusRequest{Image: container.GetImage()})
		if err != nil {
			return nil, fmt.Errorf("cannot find the image of %s: %w", container.Id, err)
		}
		used[resp.GetImage().GetId()] = true
	}
	images = slices.DeleteFunc(images, func(i *runtimeapi.Image) bool { return i.Pinned || used[i.Id] })
	return selection.IDs(images), nil
}

func removeImage(ctx context.Context, c *connection.Clients, name string) (done string, err error) {
	resp, err := findImage(ctx, c, name, false)
	if err != nil {
		return "", err
	}
	if _, err := c.Images.RemoveImage(ctx, &runtimeapi.RemoveImageRequest{Image: &runtimeapi.ImageSpec{Image: name}}); err != nil {
		return "", fmt.Errorf("cannot remove the image %s: %w", name, err)
	}
	names := resp.Image.RepoTags
	if len(names) == 0 {
		names = resp.Image.RepoDigests
	}
	var lines strings.Builder
	for _, name := range names {
		fmt.Fprintf(&lines, "Deleted: %s\n", name)
	}
	return lines.String(), nil
}
