package clustercmd

import (
	"os"

	"github.com/spf13/cobra"

	"github.com/berthrun/berth/internal/cluster/innode"
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
	)
	return cmd
}
