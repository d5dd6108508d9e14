package clustercmd

import (
	"log/slog"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/berthrun/berth/internal/cluster/innode"
	"github.com/berthrun/berth/internal/cluster/storage/provision"
)

// newInNode has what runs inside of nodes, by their image and units.
func newInNode() *cobra.Command {
	cmd := &cobra.Command{
		Use:    "in-node",
		Short:  "What runs inside of nodes",
		Hidden: true,
		Args:   cobra.NoArgs,
		RunE:   func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(
		&cobra.Command{
			Use:   "start",
			Short: "Prepare the node and become systemd",
			Args:  cobra.NoArgs,
			RunE:  func(cmd *cobra.Command, _ []string) error { return innode.Start(cmd.Context(), os.LookupEnv) },
		},
		&cobra.Command{
			Use:   "cgroups",
			Short: "Make the groups that the kubelet keeps pods in",
			Args:  cobra.NoArgs,
			RunE:  func(*cobra.Command, []string) error { return innode.Cgroups() },
		},
		&cobra.Command{
			Use:   "provision",
			Short: "Make and remove the volumes of the node",
			Args:  cobra.NoArgs,
			RunE: func(cmd *cobra.Command, _ []string) error {
				ctx, stop := signal.NotifyContext(cmd.Context(), syscall.SIGINT, syscall.SIGTERM)
				defer stop()
				return provision.Run(ctx, os.Getenv("NODE_NAME"), slog.New(slog.NewTextHandler(cmd.ErrOrStderr(), nil)))
			},
		},
	)
	return cmd
}
