package inside

import (
	"context"
	"errors"
	"fmt"
	"os/signal"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/berthrun/berth/internal/cluster/provider/berth"
	"github.com/berthrun/berth/internal/cluster/provider/command"
	"github.com/berthrun/berth/internal/errs"
)

// NewInHost returns `in-host`, which berth-cluster.service runs. Other providers start nodes
// themselves.
func NewInHost() *cobra.Command {
	cmd := &cobra.Command{
		Use:    "in-host",
		Short:  "Start and stop the nodes of the provider berth with this host",
		Hidden: true,
		Args:   cobra.NoArgs,
		RunE:   func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	for _, verb := range []struct {
		name, short string
		wait        time.Duration
		do          func(*berth.Provider, context.Context) error
	}{
		{"up", "Start the nodes of all clusters that the user has not stopped", bootTime, (*berth.Provider).Up},
		{"down", "Stop the nodes of all clusters; up starts them again", 0, (*berth.Provider).Down},
	} {
		cmd.AddCommand(&cobra.Command{
			Use:   verb.name,
			Short: verb.short,
			Args:  cobra.NoArgs,
			RunE: func(cmd *cobra.Command, _ []string) error {
				ctx, stop := signal.NotifyContext(cmd.Context(), syscall.SIGINT, syscall.SIGTERM)
				defer stop()
				engine, err := awaitOwn(ctx, verb.wait)
				if err != nil {
					return err
				}
				return verb.do(engine, ctx)
			},
		})
	}
	return cmd
}

// bootTime is how long berth may take to start when the host boots.
const bootTime = time.Minute

// awaitOwn opens the berth of this host, as soon as it runs.
func awaitOwn(ctx context.Context, wait time.Duration) (*berth.Provider, error) {
	for deadline := time.Now().Add(wait); ; {
		engine, err := berth.Open(ctx, berth.Options{Env: command.Host()})
		if err == nil {
			return engine, nil
		}
		if !errors.Is(err, errs.Unavailable) || ctx.Err() != nil || time.Now().After(deadline) {
			return nil, fmt.Errorf("cannot use berth as provider: %w", err)
		}
		select {
		case <-ctx.Done():
		case <-time.After(time.Second):
		}
	}
}
