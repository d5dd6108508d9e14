package nodecmd

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"
)

// newReset makes the machine what it was before the first apply.
func newReset() *cobra.Command {
	var b backing
	cmd := &cobra.Command{
		Use:   "reset",
		Short: "Make the machine what it was before the first apply",
		Long: "reset stops and removes what apply brought, and brings back what was there before: files with their content,\n" +
			"units, packages, settings. What the runtime made by itself (images, containers) goes, too, where nothing was\n" +
			"before; logs stay.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return b.run(cmd, func(ctx context.Context, s *session) error {
				back, err := s.reconciler.PlanReset(ctx)
				if err != nil {
					return err
				}
				if _, ok := s.reconciler.Journal().Last(); !ok {
					fmt.Fprintln(cmd.ErrOrStderr(), "berth has not changed this machine.")
					return s.reconciler.Journal().Erase()
				}
				if err := b.consent(ctx, cmd, s, back, "Reset?"); err != nil {
					return err
				}
				out, err := s.reconciler.Reset(ctx, back, b.opts)
				return b.tell(ctx, cmd, s, back, out, err)
			})
		},
	}
	b.register(cmd, false)
	return cmd
}
