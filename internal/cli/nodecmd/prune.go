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
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return b.run(cmd, func(ctx context.Context, s *session) error {
				target, _, err := b.target(ctx, cmd, s)
				if err != nil {
					return err
				}
				back, err := s.engine.PlanPrune(ctx, target)
				if err != nil {
					return err
				}
				if back.Empty() {
					fmt.Fprintln(cmd.ErrOrStderr(), "Nothing to prune.")
					return nil
				}
				if err := b.consent(cmd, back, "Prune?"); err != nil {
					return err
				}
				out, err := s.engine.Prune(ctx, back)
				return b.tell(cmd, s, out, err)
			})
		},
	}
	b.register(cmd, true)
	return cmd
}
