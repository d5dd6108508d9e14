package nodecmd

import (
	"io"

	"github.com/spf13/cobra"

	"github.com/berthrun/berth/internal/cli/exitcode"
	"github.com/berthrun/berth/internal/cli/show"
	"github.com/berthrun/berth/internal/provision/reconciler"
)

// newPlan shows what apply would do.
func newPlan() *cobra.Command {
	cmd := planCommand("plan", "Show what apply would change, and what it would restart", func(*reconciler.Plan) int { return 0 })
	return cmd
}

// driftCode is the exit code of diff when the machine is not as the file says.
const driftCode = 2

// newDiff looks for drift.
func newDiff() *cobra.Command {
	cmd := planCommand("diff", "Show what is not as the node file says; exit code 2 when there is any", func(plan *reconciler.Plan) int {
		if plan.Empty() && len(plan.Unwanted) == 0 {
			return 0
		}
		return driftCode
	})
	return cmd
}

func planCommand(use, short string, code func(*reconciler.Plan) int) *cobra.Command {
	var at places
	var output show.Flag
	cmd := &cobra.Command{
		Use:   use,
		Short: short,
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx, stop := untilSignal(cmd.Context())
			defer stop()
			s, err := at.open(cmd)
			if err != nil {
				return err
			}
			defer s.close()
			target, _, err := at.target(ctx, cmd, s)
			if err != nil {
				return err
			}
			plan, err := s.reconciler.Plan(ctx, target)
			if err != nil {
				return err
			}
			shown, err := s.reconciler.Shown(plan)
			if err != nil {
				return err
			}
			err = output.Print(cmd.OutOrStdout(), shown, func(w io.Writer) error { return printPlan(w, plan) })
			if err != nil {
				return err
			}
			return exitcode.Of(code(plan))
		},
	}
	at.register(cmd, true)
	output.Register(cmd)
	return cmd
}
