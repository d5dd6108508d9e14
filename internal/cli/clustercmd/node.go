package clustercmd

import "github.com/spf13/cobra"

// newNode has the commands that add nodes to a cluster and remove them.
func newNode() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "node",
		Short: "Add nodes to a cluster, or remove them",
		Args:  cobra.NoArgs,
		RunE:  func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(newNodeAdd(), newNodeRemove())
	return cmd
}
