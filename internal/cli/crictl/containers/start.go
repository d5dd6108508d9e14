package containers

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berthrun/berth/internal/cli/crictl/connection"
	"github.com/berthrun/berth/internal/cli/crictl/verb"
)

// NewStart returns `crictl start`.
func NewStart(s *connection.Settings) *cobra.Command {
	return &cobra.Command{
		Use:   "start CONTAINER...",
		Short: "Start created containers",
		RunE: verb.OrHelp(func(cmd *cobra.Command, args []string) error {
			return s.Use(cmd, func(ctx context.Context, c *connection.Clients) error {
				return verb.Each(cmd.OutOrStdout(), args, func(id string) (string, error) {
					if _, err := c.Runtime.StartContainer(ctx, &runtimeapi.StartContainerRequest{ContainerId: id}); err != nil {
						return "", fmt.Errorf("cannot start the container %s: %w", id, err)
					}
					return id + "\n", nil
				})
			})
		}),
	}
}
