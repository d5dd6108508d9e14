package nodecmd

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/berthrun/berth/internal/cli/nodecmd/session"
)

// newPrune reverts objects that are no longer wanted.
func newPrune() *cobra.Command {
	var b revertRun
	cmd := &cobra.Command{
		Use:   "prune",
		Short: "Remove what the node file no longer has, and restore the state from before",
		Long: "prune shows what it restores and what restarts, and asks. Like apply, it checks a unit before and after its\n" +
			"restart, and undoes its changes if a step fails.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return b.run(cmd, func(ctx context.Context, s *session.Session) error {
				target, _, err := b.Target(ctx, cmd, s)
				if err != nil {
					return err
				}
				back, err := s.Reconciler.PlanPrune(ctx, target)
				if err != nil {
					return err
				}
				if back.Empty() {
					fmt.Fprintln(cmd.ErrOrStderr(), "Nothing to prune.")
					return nil
				}
				if err := b.consent(ctx, cmd, s, back, "Prune?"); err != nil {
					return err
				}
				out, err := s.Reconciler.Prune(ctx, back, b.opts)
				return b.report(ctx, cmd, s, out, err)
			})
		},
	}
	b.registerWithUndo(cmd, true)
	return cmd
}
