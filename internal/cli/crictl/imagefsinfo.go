package crictl

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

func newImageFsInfo(s *settings) *cobra.Command {
	var format format
	cmd := &cobra.Command{
		Use:   "imagefsinfo",
		Short: "Show the disk that images and containers use",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return s.use(cmd, func(ctx context.Context, c *clients) error {
				if err := format.check(); err != nil {
					return err
				}
				resp, err := c.Images.ImageFsInfo(ctx, &runtimeapi.ImageFsInfoRequest{})
				if err != nil {
					return fmt.Errorf("cannot ask for the disk of images: %w", err)
				}
				status, err := message(resp)
				if err != nil {
					return err
				}
				return format.value(cmd.OutOrStdout(), withInfo(status, nil))
			})
		},
	}
	format.register(cmd, asJSON, asYAML, asTemplate)
	return cmd
}
