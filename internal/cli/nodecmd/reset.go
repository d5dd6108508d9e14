package nodecmd

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/berthrun/berth/internal/cli/nodecmd/session"
)

// newReset restores the machine to its state before the first apply.
func newReset() *cobra.Command {
	var b revertRun
	cmd := &cobra.Command{
		Use:   "reset",
		Short: "Restore the machine to its state before the first apply",
		Long: "reset stops and removes what apply has installed, and restores files with their content, units, packages and\n" +
			"settings. It also removes the runtime's own data (images, containers) if there was none before. It keeps logs.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return b.run(cmd, func(ctx context.Context, s *session.Session) error {
				back, err := s.Reconciler.PlanReset(ctx)
				if err != nil {
					return err
				}
				if _, ok := s.Reconciler.Journal().Last(); !ok {
					fmt.Fprintln(cmd.ErrOrStderr(), "berth has not changed this machine.")
					return s.Reconciler.Journal().Erase()
				}
				if err := b.consent(ctx, cmd, s, back, "Reset?"); err != nil {
					return err
				}
				out, err := s.Reconciler.Reset(ctx, back, b.opts)
				return b.report(ctx, cmd, s, out, err)
			})
		},
	}
	b.register(cmd, false)
	return cmd
}
