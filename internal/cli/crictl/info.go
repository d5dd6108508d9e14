package crictl

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berthrun/berth/internal/cli/crictl/connection"
	"github.com/berthrun/berth/internal/cli/crictl/output"
	"github.com/berthrun/berth/internal/cli/show"
)

func newInfo(s *connection.Settings) *cobra.Command {
	var format output.Format
	var quiet bool
	cmd := &cobra.Command{
		Use:   "info",
		Short: "Show the state of the runtime",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return s.Use(cmd, func(ctx context.Context, c *connection.Clients) error {
				if err := format.Check(); err != nil {
					return err
				}
				resp, err := c.Runtime.Status(ctx, &runtimeapi.StatusRequest{Verbose: !quiet})
				if err != nil {
					return fmt.Errorf("cannot read the status of the runtime: %w", err)
				}
				status, err := show.Message(resp.Status)
				if err != nil {
					return err
				}
				value := output.WithInfo(status, resp.Info)
				// crictl has these two under the names of the protocol's fields.
				if resp.RuntimeHandlers != nil {
					value["runtimeHandlers"] = resp.RuntimeHandlers
				}
				if resp.Features != nil {
					value["features"] = resp.Features
				}
				return format.Value(cmd.OutOrStdout(), value)
			})
		},
	}
	format.Register(cmd, output.JSON, output.YAML, output.GoTemplate)
	cmd.Flags().BoolVarP(&quiet, "quiet", "q", false, "CRI's fields only")
	return cmd
}
