package clustercmd

import "github.com/spf13/cobra"

// newNode has what adds nodes to a cluster and removes them.
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
