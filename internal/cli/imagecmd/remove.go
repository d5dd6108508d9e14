package imagecmd

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berthrun/berth/internal/criclient"
	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/image"
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
			"If the node has lost the image (the condition ImageStoreIntact of `berth info`), the command removes its name from the\n" +
			"list of lost images, and says so.\n\n" +
			"If the node does not know the name, the command fails. It still removes what failed pulls of the name have left.",
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
					id, lost, err := remove(ctx, conn, &runtimeapi.ImageSpec{Image: ref, RuntimeHandler: handler})
					if err != nil {
						failed = append(failed, err)
						continue
					}
					fmt.Fprintln(cmd.OutOrStdout(), ref)
					if len(lost) > 0 {
						fmt.Fprintf(cmd.ErrOrStderr(), "%s: the node had lost this image; these names are removed, and berth does not bring them back: %s\n", ref, strings.Join(lost, ", "))
					}
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

// remove returns the id of the image, or the names of one that the node has lost. It reports an image that does not exist: for a
// user that is a mistyped name, though CRI reports success. It removes then what failed pulls of the name have left.
func remove(ctx context.Context, conn *criclient.Conn, spec *runtimeapi.ImageSpec) (id string, lost []string, err error) {
	// A verbose answer needs the image's content, which may be damaged.
	found, err := conn.Images.ImageStatus(ctx, &runtimeapi.ImageStatusRequest{Image: spec})
	if err != nil {
		return "", nil, err
	}
	var absent error
	if found.Image == nil {
		if lost, err = lostNames(ctx, conn, spec); err != nil {
			return "", nil, err
		}
		if len(lost) == 0 {
			absent = absentError(spec)
		}
	}
	_, err = conn.Images.RemoveImage(ctx, &runtimeapi.RemoveImageRequest{Image: spec})
	return found.GetImage().GetId(), lost, errors.Join(absent, err)
}

// lostNames are the names of an image that berth has lost, none if it has not.
func lostNames(ctx context.Context, conn *criclient.Conn, spec *runtimeapi.ImageSpec) ([]string, error) {
	found, err := conn.Images.ImageStatus(ctx, &runtimeapi.ImageStatusRequest{Image: spec, Verbose: true})
	if err != nil || found.Image != nil {
		return nil, err
	}
	data, ok := found.GetInfo()[image.InfoLostNames]
	if !ok {
		return nil, nil
	}
	var lost []string
	if err := json.Unmarshal([]byte(data), &lost); err != nil {
		return nil, fmt.Errorf("cannot read whether image %q is lost: %w", spec.Image, err)
	}
	return lost, nil
}
