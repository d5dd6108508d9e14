package images

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berthrun/berth/internal/cli/crictl/connection"
	"github.com/berthrun/berth/internal/cli/crictl/output"
	"github.com/berthrun/berth/internal/cli/show"
)

// NewImageFsInfo returns `crictl imagefsinfo`.
func NewImageFsInfo(s *connection.Settings) *cobra.Command {
	var format output.Format
	cmd := &cobra.Command{
		Use:   "imagefsinfo",
		Short: "Show the disk usage of images and containers",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return s.Use(cmd, func(ctx context.Context, c *connection.Clients) error {
				if err := format.Check(); err != nil {
					return err
				}
				resp, err := c.Images.ImageFsInfo(ctx, &runtimeapi.ImageFsInfoRequest{})
				if err != nil {
					return fmt.Errorf("cannot read the disk usage of images: %w", err)
				}
				status, err := show.Message(resp)
				if err != nil {
					return err
				}
				return format.Value(cmd.OutOrStdout(), output.WithInfo(status, nil))
			})
		},
	}
	format.Register(cmd, output.JSON, output.YAML, output.GoTemplate)
	return cmd
}
