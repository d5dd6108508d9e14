package ctr

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berthrun/berth/internal/criclient"
	"github.com/berthrun/berth/internal/errs"
)

func newRemove(s *settings) *cobra.Command {
	cmd := &cobra.Command{
		Use:     "remove IMAGE...",
		Aliases: []string{"rm", "delete", "del"},
		Short:   "Remove images",
		Args:    cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return s.use(cmd, func(ctx context.Context, conn *criclient.Conn) error {
				var failed []error
				for _, ref := range args {
					if err := remove(ctx, conn, ref); err != nil {
						failed = append(failed, fmt.Errorf("cannot remove the image %s: %w", ref, err))
						continue
					}
					fmt.Fprintln(cmd.OutOrStdout(), ref)
				}
				return errors.Join(failed...)
			})
		},
	}
	accepted(cmd, "sync")
	return cmd
}

// remove removes an image that has no other tag: ctr would remove this one only, and berth
// removes an image with all of them.
func remove(ctx context.Context, conn *criclient.Conn, ref string) error {
	spec := &runtimeapi.ImageSpec{Image: ref}
	resp, err := conn.Images.ImageStatus(ctx, &runtimeapi.ImageStatusRequest{Image: spec})
	switch {
	case err != nil:
		return err
	case resp.Image == nil:
		return fmt.Errorf("there is no such image: %w", errs.NotFound)
	case len(resp.Image.RepoTags) > 1:
		return fmt.Errorf("it has other names: %s; crictl rmi removes it with all of them: %w", strings.Join(resp.Image.RepoTags, ", "), errs.State)
	}
	_, err = conn.Images.RemoveImage(ctx, &runtimeapi.RemoveImageRequest{Image: spec})
	return err
}
