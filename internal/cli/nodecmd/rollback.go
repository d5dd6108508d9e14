package nodecmd

import (
	"context"
	"fmt"
	"slices"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/provision/journal"
)

// newRollback goes back to an earlier state.
func newRollback() *cobra.Command {
	var b backing
	cmd := &cobra.Command{
		Use:   "rollback [NUMBER]",
		Short: "Make the machine what it was after an entry of the history (default: the last good one before the newest)",
		Long: "rollback brings back files, units, packages and settings as they were. The node file is not touched: the\n" +
			"next apply does what it says. A rollback is an entry of its own, and can be rolled back, too.",
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return b.run(cmd, func(ctx context.Context, s *session) error {
				n, err := entryNumber(args, s.engine.Journal().History())
				if err != nil {
					return err
				}
				back, err := s.engine.PlanRollback(ctx, n)
				if err != nil {
					return err
				}
				if back.Empty() {
					fmt.Fprintf(cmd.ErrOrStderr(), "Nothing was changed since entry %d.\n", n)
					return nil
				}
				if err := b.consent(cmd, back, fmt.Sprintf("Go back to entry %d?", n)); err != nil {
					return err
				}
				out, err := s.engine.Rollback(ctx, n, back)
				return b.tell(cmd, s, out, err)
			})
		},
	}
	b.register(cmd, false)
	return cmd
}

// entryNumber is the entry that the user names, or the last good one but the newest.
func entryNumber(args []string, history []journal.Entry) (int, error) {
	if len(args) == 1 {
		n, err := strconv.Atoi(args[0])
		if err != nil {
			return 0, fmt.Errorf("%q is not the number of an entry (see berth node history): %w", args[0], errs.Invalid)
		}
		return n, nil
	}
	for i, entry := range slices.Backward(history) {
		if i < len(history)-1 && entry.Result == journal.OK {
			return entry.Number, nil
		}
	}
	return 0, fmt.Errorf("the history has no earlier good entry; berth node reset goes back to before the first: %w", errs.NotFound)
}
