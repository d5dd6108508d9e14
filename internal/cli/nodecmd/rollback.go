package nodecmd

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/provision"
	"github.com/berthrun/berth/internal/provision/journal"
	"github.com/berthrun/berth/internal/provision/node/nodefile"
)

// newRollback goes back to an earlier state.
func newRollback() *cobra.Command {
	var b backing
	cmd := &cobra.Command{
		Use:   "rollback [NUMBER]",
		Short: "Make the machine what it was after an entry of the history (default: the last good one before the newest)",
		Long: "rollback brings back files, units, packages and settings as they were. The node file is not touched: the\n" +
			"next apply does what it says. A rollback is an entry of its own, and can be rolled back, too. As with apply, a\n" +
			"unit that restarts is checked before and after, and what fails is undone.",
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return b.run(cmd, func(ctx context.Context, s *session) error {
				n, err := entryNumber(args, s.reconciler.Journal().History())
				if err != nil {
					return err
				}
				back, err := s.reconciler.PlanRollback(ctx, n, b.targetOf(ctx, s, n))
				if err != nil {
					return err
				}
				if back.Empty() {
					fmt.Fprintf(cmd.ErrOrStderr(), "Nothing was changed since entry %d.\n", n)
					return nil
				}
				if err := b.consent(ctx, cmd, s, back, fmt.Sprintf("Go back to entry %d?", n)); err != nil {
					return err
				}
				out, err := s.reconciler.Rollback(ctx, n, back, b.opts)
				return b.tell(ctx, cmd, s, back, out, err)
			})
		},
	}
	b.registerGuarded(cmd, false)
	return cmd
}

// targetOf is what an entry's node file makes of the machine as it is now. A file that is
// not kept, or does not fit any more, must not stand in the way back: then nothing guards
// it, and the user is told.
func (b *backing) targetOf(ctx context.Context, s *session, n int) provision.Target {
	target, err := s.kept(ctx, n)
	if err != nil {
		s.report.Note("rollback", fmt.Sprintf("no health check guards the restarts, and what they do to pods is not known: %s", errs.Message(err)))
		return provision.Target{}
	}
	return target
}

// kept is what an entry's node file makes of the machine as it is now.
func (s *session) kept(ctx context.Context, number int) (provision.Target, error) {
	wish := s.reconciler.Journal().NodeFile(number)
	if wish == "" {
		return provision.Target{}, fmt.Errorf("the history has no node file of entry %d: %w", number, errs.NotFound)
	}
	r, err := s.reconciler.Journal().Content(wish)
	if err != nil {
		return provision.Target{}, err
	}
	defer r.Close()
	text, err := io.ReadAll(io.LimitReader(r, maxFile))
	if err != nil {
		return provision.Target{}, fmt.Errorf("cannot read the node file of entry %d: %w", number, err)
	}
	name := fmt.Sprintf("node file of entry %d", number)
	wanted, err := nodefile.Load(name, text)
	if err != nil {
		return provision.Target{}, err
	}
	target, err := s.build(ctx, wanted, DefaultFile)
	return target, nodefile.Locate(err, name, text)
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
