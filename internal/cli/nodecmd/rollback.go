package nodecmd

import (
	"context"
	"fmt"
	"slices"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/berthrun/berth/internal/cli/nodecmd/session"
	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/provision"
	"github.com/berthrun/berth/internal/provision/journal"
)

// newRollback restores an earlier state.
func newRollback() *cobra.Command {
	var b revertRun
	cmd := &cobra.Command{
		Use:   "rollback [NUMBER]",
		Short: "Restore the machine to its state after an entry of the history (default: the last successful one before the newest)",
		Long: "rollback restores files, units, packages and settings. It does not change the node file: the next apply applies\n" +
			"it. A rollback is an entry of the history, and can be rolled back. Like apply, it checks a unit before and after\n" +
			"its restart, and undoes its changes if a step fails.",
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return b.run(cmd, func(ctx context.Context, s *session.Session) error {
				n, err := entryNumber(args, s.Reconciler.Journal().History())
				if err != nil {
					return err
				}
				back, err := s.Reconciler.PlanRollback(ctx, n, b.targetOfEntry(ctx, s, n))
				if err != nil {
					return err
				}
				if back.Empty() {
					fmt.Fprintf(cmd.ErrOrStderr(), "Nothing has changed since entry %d.\n", n)
					return nil
				}
				if err := b.consent(ctx, cmd, s, back, fmt.Sprintf("Roll back to entry %d?", n)); err != nil {
					return err
				}
				out, err := s.Reconciler.Rollback(ctx, n, back, b.opts)
				return b.report(ctx, cmd, s, out, err)
			})
		},
	}
	b.registerWithUndo(cmd, false)
	return cmd
}

// targetOfEntry is the target of an entry's node file for the machine as it is now. A node file
// that is not kept, or no longer fits, must not prevent a rollback: then nothing checks the
// restarts, and a note says so.
func (b *revertRun) targetOfEntry(ctx context.Context, s *session.Session, n int) provision.Target {
	target, err := s.Kept(ctx, n)
	if err != nil {
		s.Report.Note("rollback", fmt.Sprintf("no health check guards the restarts, and what they do to pods is not known: %s", errs.Message(err)))
		return provision.Target{}
	}
	return target
}

// entryNumber is the entry that the user names, or the last successful one before the newest.
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
