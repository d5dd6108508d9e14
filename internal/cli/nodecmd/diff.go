package nodecmd

import (
	"github.com/spf13/cobra"

	"github.com/berthrun/berth/internal/provision/reconciler"
)

// driftCode is the exit code of diff when the machine differs from the file.
const driftCode = 2

// newDiff reports drift.
func newDiff() *cobra.Command {
	cmd := planCommand("diff", "Show the drift from the node file; exit code 2 if there is any", func(plan *reconciler.Plan) int {
		if plan.Empty() && len(plan.Unwanted) == 0 {
			return 0
		}
		return driftCode
	})
	return cmd
}
