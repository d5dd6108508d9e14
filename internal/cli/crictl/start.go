package crictl

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

func newStart(s *settings) *cobra.Command {
	return &cobra.Command{
		Use:   "start CONTAINER...",
		Short: "Start containers that were created",
		RunE: orHelp(func(cmd *cobra.Command, args []string) error {
			return s.use(cmd, func(ctx context.Context, c *clients) error {
				return each(cmd.OutOrStdout(), args, func(id string) (string, error) {
					if _, err := c.Runtime.StartContainer(ctx, &runtimeapi.StartContainerRequest{ContainerId: id}); err != nil {
						return "", fmt.Errorf("cannot start the container %s: %w", id, err)
					}
					return id + "\n", nil
				})
			})
		}),
	}
}
