package nodecmd

import (
	"context"
	"io"

	"github.com/spf13/cobra"

	"github.com/berthrun/berth/internal/cli/exitcode"
	"github.com/berthrun/berth/internal/cli/nodecmd/planview"
	"github.com/berthrun/berth/internal/cli/nodecmd/session"
	"github.com/berthrun/berth/internal/cli/show"
	"github.com/berthrun/berth/internal/provision/reconciler"
)

// newPlan shows what apply would do.
func newPlan() *cobra.Command {
	cmd := planCommand("plan", "Show what apply would change, and what it would restart", func(*reconciler.Plan) int { return 0 })
	return cmd
}

func planCommand(use, short string, code func(*reconciler.Plan) int) *cobra.Command {
	var at session.Flags
	var output show.Flag
	cmd := &cobra.Command{
		Use:   use,
		Short: short,
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return session.Interruptible(cmd, func(ctx context.Context) error {
				s, err := at.Open(cmd)
				if err != nil {
					return err
				}
				defer s.Close()
				target, _, err := at.Target(ctx, cmd, s)
				if err != nil {
					return err
				}
				plan, err := s.Reconciler.Plan(ctx, target)
				if err != nil {
					return err
				}
				shown, err := s.Reconciler.Shown(plan)
				if err != nil {
					return err
				}
				err = output.Print(cmd.OutOrStdout(), shown, func(w io.Writer) error { return planview.Plan(w, plan) })
				if err != nil {
					return err
				}
				return exitcode.Of(code(plan))
			})
		},
	}
	at.Register(cmd, true)
	output.Register(cmd)
	return cmd
}
