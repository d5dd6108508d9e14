// Package nodecmd is `berth node`, which makes a machine a node from one file.
package nodecmd

import (
	"github.com/spf13/cobra"

	"github.com/berthrun/berth/internal/cli/nodecmd/kubeadm"
	"github.com/berthrun/berth/internal/cli/nodecmd/render"
)

// New returns the command tree of `berth node`.
func New() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "node",
		Short: "Set up this machine as a Kubernetes node, from one file",
		Args:  cobra.NoArgs,
		RunE:  func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(
		newInit(), newValidate(), render.New(), newPlan(), newApply(), newDiff(), newPrune(), newReset(),
		newStatus(), newHistory(), newRollback(), newDoctor(), kubeadm.New(), newSchema(), newReference(),
	)
	return cmd
}
