package nodecmd

import (
	"github.com/spf13/cobra"

	"github.com/berthrun/berth/internal/provision/engine"
)

// driftCode is the exit code of diff when the machine is not as the file says.
const driftCode = 2

// newDiff looks for drift.
func newDiff() *cobra.Command {
	cmd := planCommand("diff", "Show the drift from the node file; exit code 2 if there is any", func(plan *engine.Plan) int {
		if plan.Empty() && len(plan.Unwanted) == 0 {
			return 0
		}
		return driftCode
	})
	return cmd
}
