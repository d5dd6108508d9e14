package imagecmd

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

func (c *commands) newRemove() *cobra.Command {
	var handler string
	cmd := &cobra.Command{
		Use:   "rm IMAGE...",
		Short: "Remove images, with all their names",
		Long: "The command removes images with all their names, also pinned ones.\n\n" +
			"It also removes an image that containers use, running or not. The containers go on. The command names them: the\n" +
			"unpacked layers stay on disk until the last of these containers is removed. A kubelet that starts such a container\n" +
			"again pulls the image.\n\n" +
			"For a name that the node does not have, the command removes what failed pulls have left of it, and fails.",
		Args:              cobra.MinimumNArgs(1),
		ValidArgsFunction: c.complete,
		RunE: func(cmd *cobra.Command, args []string) error {
			return c.endpoint.Use(cmd, func(ctx context.Context, conn *criclient.Conn) error {
				users, err := usersOf(ctx, conn)
				if err != nil {
					fmt.Fprintf(cmd.ErrOrStderr(), "cannot find out which containers use the images: %s\n", errs.Message(err))
				}
				var failed []error
				for _, ref := range args {
					id, err := remove(ctx, conn, &runtimeapi.ImageSpec{Image: ref, RuntimeHandler: handler})
					if err != nil {
						failed = append(failed, err)
						continue
					}
					fmt.Fprintln(cmd.OutOrStdout(), ref)
					if using := users[id]; len(using) > 0 {
						fmt.Fprintf(cmd.ErrOrStderr(), "%s: its layers stay on disk until the containers that use it are removed: %s\n", ref, strings.Join(using, ", "))
					}
				}
				return errors.Join(failed...)
			})
		},
	}
	registerHandler(cmd, &handler)
	return cmd
}

// remove returns the id of the image. It reports an image that does not exist: for a user that is a mistyped name, though CRI
// reports success. It removes then what failed pulls of the name have left.
func remove(ctx context.Context, conn *criclient.Conn, spec *runtimeapi.ImageSpec) (id string, err error) {
	found, err := find(ctx, conn, spec)
	if err != nil && !errors.Is(err, errs.NotFound) {
		return "", err
	}
	_, removeErr := conn.Images.RemoveImage(ctx, &runtimeapi.RemoveImageRequest{Image: spec})
	return found.GetImage().GetId(), errors.Join(err, removeErr)
}
