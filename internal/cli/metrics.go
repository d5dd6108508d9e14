package cli

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/berthrun/berth/internal/cli/connect"
	"github.com/berthrun/berth/internal/criclient"
	"github.com/berthrun/berth/internal/metrics"
)

func newMetrics() *cobra.Command {
	var endpoint connect.Flag
	cmd := &cobra.Command{
		Use:   "metrics",
		Short: "Print the daemon's metrics in Prometheus' text format",
		Long: "metrics prints what `metrics.listen` serves to Prometheus, also while that key is empty. docs/metrics.md explains\n" +
			"each metric. Other runtimes do not support this.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return endpoint.Use(cmd, func(ctx context.Context, conn *criclient.Conn) error {
				text, err := conn.Berth.Metrics(ctx)
				if err != nil {
					return err
				}
				_, err = cmd.OutOrStdout().Write(text)
				return err
			})
		},
	}
	cmd.AddCommand(&cobra.Command{
		Use:    "reference",
		Short:  "Print the reference page",
		Hidden: true,
		Args:   cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			fmt.Fprint(cmd.OutOrStdout(), metrics.Reference())
			return nil
		},
	})
	endpoint.Register(cmd)
	return cmd
}
