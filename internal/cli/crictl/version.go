package crictl

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

func newVersion(s *settings) *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Show the version of the runtime",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return s.use(cmd, func(ctx context.Context, c *clients) error {
				resp, err := c.Runtime.Version(ctx, &runtimeapi.VersionRequest{Version: "v1"})
				if err != nil {
					return fmt.Errorf("cannot ask for the version of the runtime: %w", err)
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
