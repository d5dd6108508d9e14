package nodecmd

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"
)

// newPrune brings back what was there before of what is no longer wanted.
func newPrune() *cobra.Command {
	var b backing
	cmd := &cobra.Command{
		Use:   "prune",
		Short: "Remove what the node file no longer wants, and bring back what was there before",
		Long: "prune shows what it brings back and what restarts, and asks. As with apply, a unit that restarts is checked\n" +
			"before and after, and what fails is undone.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return b.run(cmd, func(ctx context.Context, s *session) error {
				target, _, err := b.target(ctx, cmd, s)
				if err != nil {
					return err
				}
				back, err := s.reconciler.PlanPrune(ctx, target)
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
				out, err := s.reconciler.Prune(ctx, back, b.opts)
				return b.tell(ctx, cmd, s, back, out, err)
			})
		},
	}
	b.registerGuarded(cmd, true)
	return cmd
}
