// Package clustercmd is `berth cluster`: clusters of several nodes on one machine.
package clustercmd

import (
	"github.com/spf13/cobra"
)

// New returns the command and all below it.
func New() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "cluster",
		Short: "Clusters of several nodes on one machine",
		Long: "A cluster is described in one file, in berth's own format or in kind's\n" +
			"(kind.x-k8s.io/v1alpha4).",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(newCreate(), newApply(), newDelete(), newList(), newNodes(), newNode(), newKubeconfig(), newLoad(), newLogs())
	cmd.AddCommand(newPower()...)
	cmd.AddCommand(newBuildImage(), newRegistry(), newDoctor(), newInNode(), newValidate(), newSample(), newSchema(), newReference())
	return cmd
}
