package crictl

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

func newInfo(s *settings) *cobra.Command {
	var format format
	var quiet bool
	cmd := &cobra.Command{
		Use:   "info",
		Short: "Show the state of the runtime",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return s.use(cmd, func(ctx context.Context, c *clients) error {
				if err := format.check(); err != nil {
					return err
				}
				resp, err := c.Runtime.Status(ctx, &runtimeapi.StatusRequest{Verbose: !quiet})
				if err != nil {
					return fmt.Errorf("cannot ask for the state of the runtime: %w", err)
				}
				status, err := message(resp.Status)
				if err != nil {
					return err
				}
				value := withInfo(status, resp.Info)
				// crictl has these two under the names of the protocol's fields.
				if resp.RuntimeHandlers != nil {
					value["runtimeHandlers"] = resp.RuntimeHandlers
				}
				if resp.Features != nil {
					value["features"] = resp.Features
				}
				return format.value(cmd.OutOrStdout(), value)
			})
		},
	}
	format.register(cmd, asJSON, asYAML, asTemplate)
	cmd.Flags().BoolVarP(&quiet, "quiet", "q", false, "CRI's fields only")
	return cmd
}
