package crictl

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berthrun/berth/internal/cli/crictl/connection"
)

func newVersion(s *connection.Settings) *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Show the version of the runtime",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return s.Use(cmd, func(ctx context.Context, c *connection.Clients) error {
				resp, err := c.Runtime.Version(ctx, &runtimeapi.VersionRequest{Version: "v1"})
				if err != nil {
					return fmt.Errorf("cannot read the version of the runtime: %w", err)
				}
				for _, line := range [][2]string{
					{"Version", resp.Version},
					{"RuntimeName", resp.RuntimeName},
					{"RuntimeVersion", resp.RuntimeVersion},
					{"RuntimeApiVersion", resp.RuntimeApiVersion},
				} {
					fmt.Fprintf(cmd.OutOrStdout(), "%s:  %s\n", line[0], line[1])
				}
				return nil
			})
		},
	}
}
