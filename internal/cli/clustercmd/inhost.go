package clustercmd

import (
	"context"
	"fmt"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/berthrun/berth/internal/cluster/provider/berth"
	"github.com/berthrun/berth/internal/cluster/provider/command"
)

// newInHost has what berth-cluster.service calls. Other engines start nodes by themselves.
func newInHost() *cobra.Command {
	cmd := &cobra.Command{
		Use:    "in-host",
		Short:  "Nodes whose provider is berth, when this host boots and goes down",
		Hidden: true,
		Args:   cobra.NoArgs,
		RunE:   func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	for _, verb := range []struct {
		name, short string
		do          func(*berth.Engine, context.Context) error
	}{
		{"up", "Start the nodes of all clusters that nobody has stopped", (*berth.Engine).Up},
		{"down", "Stop the nodes of all clusters; up starts them again", (*berth.Engine).Down},
	} {
		cmd.AddCommand(&cobra.Command{
			Use:   verb.name,
			Short: verb.short,
			Args:  cobra.NoArgs,
			RunE: func(cmd *cobra.Command, _ []string) error {
				ctx, stop := signal.NotifyContext(cmd.Context(), syscall.SIGINT, syscall.SIGTERM)
				defer stop()
				engine, err := berth.Open(ctx, berth.Options{Env: command.Host()})
				if err != nil {
					return fmt.Errorf("cannot use berth as provider: %w", err)
				}
				return verb.do(engine, ctx)
			},
		})
	}
	return cmd
}
