package crictl

import (
	"context"
	"fmt"
	"io"

	"github.com/spf13/cobra"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berthrun/berth/internal/errs"
)

func newInspectImage(s *settings) *cobra.Command {
	var i inspection
	var name string
	var conditions []string
	cmd := &cobra.Command{
		Use:   "inspecti [IMAGE...]",
		Short: "Show all that is known of images",
		RunE: func(cmd *cobra.Command, args []string) error {
			return s.use(cmd, func(ctx context.Context, c *clients) error {
				list := func() ([]string, error) {
					found, err := listImages(ctx, c, name, conditions)
					return ids(found), err
				}
				return i.print(cmd, args, list, func(id string, verbose bool) (*one, error) { return inspectImage(ctx, c, id, verbose) })
			})
		},
	}
	i.register(cmd)
	cmd.Flags().StringVar(&name, "name", "", "only the image of this name")
	registerConditions(cmd, &conditions)
	return cmd
}

func inspectImage(ctx context.Context, c *clients, name string, verbose bool) (*one, error) {
	resp, err := findImage(ctx, c, name, verbose)
	if err != nil {
		return nil, err
	}
	status, err := message(resp.Image)
	if err != nil {
		return nil, err
	}
	return &one{withInfo(status, resp.Info), func(w io.Writer) {
		field(w, "ID", resp.Image.Id)
		for _, tag := range resp.Image.RepoTags {
			field(w, "Tag", tag)
		}
		for _, digest := range resp.Image.RepoDigests {
			field(w, "Digest", digest)
		}
		field(w, "Size", size(resp.Image.Size, 3))
		if verbose {
			fmt.Fprintf(w, "Info: %v\n", resp.Info)
		}
	}}, nil
}

// findImage reports an image that is not there, which CRI does not take for an error.
func findImage(ctx context.Context, c *clients, name string, verbose bool) (*runtimeapi.ImageStatusResponse, error) {
	resp, err := c.Images.ImageStatus(ctx, &runtimeapi.ImageStatusRequest{Image: &runtimeapi.ImageSpec{Image: name}, Verbose: verbose})
	if err != nil {
		return nil, fmt.Errorf("cannot find the image %s: %w", name, err)
	}
	if resp.Image == nil {
		return nil, fmt.Errorf("no such image %q present: %w", name, errs.NotFound)
	}
	return resp, nil
}
