package images

import (
	"context"
	"fmt"
	"io"

	"github.com/spf13/cobra"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berthrun/berth/internal/cli/crictl/connection"
	"github.com/berthrun/berth/internal/cli/crictl/output"
	"github.com/berthrun/berth/internal/cli/crictl/selection"
	"github.com/berthrun/berth/internal/cli/crictl/verb"
	"github.com/berthrun/berth/internal/cli/show"
	"github.com/berthrun/berth/internal/errs"
)

// NewInspectImage returns `crictl inspecti`.
func NewInspectImage(s *connection.Settings) *cobra.Command {
	var i verb.Inspection
	var name string
	var conditions []string
	cmd := &cobra.Command{
		Use:   "inspecti [IMAGE...]",
		Short: "Show the details of images",
		RunE: func(cmd *cobra.Command, args []string) error {
			return s.Use(cmd, func(ctx context.Context, c *connection.Clients) error {
				list := func() ([]string, error) {
					found, err := selection.Images(ctx, c, name, conditions)
					return selection.IDs(found), err
				}
				return i.Print(cmd, args, list, func(id string, verbose bool) (*verb.Status, error) { return inspectImage(ctx, c, id, verbose) })
			})
		},
	}
	i.Register(cmd)
	cmd.Flags().StringVar(&name, "name", "", "only the image of this name")
	selection.RegisterConditions(cmd, &conditions)
	return cmd
}

func inspectImage(ctx context.Context, c *connection.Clients, name string, verbose bool) (*verb.Status, error) {
	resp, err := findImage(ctx, c, name, verbose)
	if err != nil {
		return nil, err
	}
	status, err := show.Message(resp.Image)
	if err != nil {
		return nil, err
	}
	return &verb.Status{Value: output.WithInfo(status, resp.Info), Table: func(w io.Writer) {
		output.Field(w, "ID", resp.Image.Id)
		for _, tag := range resp.Image.RepoTags {
			output.Field(w, "Tag", tag)
		}
		for _, digest := range resp.Image.RepoDigests {
			output.Field(w, "Digest", digest)
		}
		output.Field(w, "Size", output.Size(resp.Image.Size, 3))
		if verbose {
			fmt.Fprintf(w, "Info: %v\n", resp.Info)
		}
	}}, nil
}

// findImage returns an error for a missing image, which CRI does not treat as one.
func findImage(ctx context.Context, c *connection.Clients, name string, verbose bool) (*runtimeapi.ImageStatusResponse, error) {
	resp, err := c.Images.ImageStatus(ctx, &runtimeapi.ImageStatusRequest{Image: &runtimeapi.ImageSpec{Image: name}, Verbose: verbose})
	if err != nil {
		return nil, fmt.Errorf("cannot find the image %s: %w", name, err)
	}
	if resp.Image == nil {
		return nil, fmt.Errorf("no such image %q present: %w", name, errs.NotFound)
	}
	return resp, nil
}
