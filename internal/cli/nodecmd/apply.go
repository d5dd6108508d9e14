package nodecmd

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/berthrun/berth/internal/cli/show"
	"github.com/berthrun/berth/internal/provision"
	"github.com/berthrun/berth/internal/provision/node/nodefile"
	"github.com/berthrun/berth/internal/provision/reconciler"
)

// applying is one run of apply.
type applying struct {
	places
	output show.Flag
	yes    bool
	wait   bool
	prune  bool
	opts   reconciler.ApplyOptions
}

// newApply makes the machine what the file says.
func newApply() *cobra.Command {
	var a applying
	cmd := &cobra.Command{
		Use:   "apply",
		Short: "Make the machine what the node file says",
		Long: "apply shows the plan, asks, fetches what is needed, and changes the machine. What it changes is written\n" +
			"down before; if a step fails or the runtime is not healthy after its restart, all is undone.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx, stop := untilSignal(cmd.Context())
			defer stop()
			return a.run(ctx, cmd)
		},
	}
	a.register(cmd, true)
	a.output.Register(cmd)
	flags := cmd.Flags()
	flags.BoolVarP(&a.yes, "yes", "y", false, "do not ask")
	flags.BoolVar(&a.wait, "wait", false, "wait while another apply runs")
	flags.DurationVar(&a.packageWait, "package-wait", packageWait, "wait so long while another process uses the package manager")
	flags.DurationVar(&a.retryFor, "retry-for", retryFor, "try again for so long what does not work for now, as a server of assets that is overloaded; 0 is one try")
	flags.DurationVar(&a.taskFor, "task-timeout", 0, "end a task that takes longer, and undo the apply; 0 is 30m for packages, assets and images, 10m for units and commands, 5m for others")
	flags.BoolVar(&a.prune, "prune", false, "bring back what was there before of what is no longer wanted")
	flags.BoolVar(&a.opts.AllowDisruption, "allow-disruption", false, "consent to what the plan says happens to running pods")
	flags.BoolVar(&a.opts.KeepFailed, "keep-failed", false, "do not undo what a failed apply changed")
	return cmd
}

func (a *applying) run(ctx context.Context, cmd *cobra.Command) error {
	s, err := a.change(ctx, cmd, a.wait)
	if err != nil {
		return err
	}
	defer s.close()
	target, text, err := a.target(ctx, cmd, s)
	if err != nil {
		return err
	}
	plan, err := s.reconciler.Plan(ctx, target)
	if err != nil {
		return err
	}
	if err := printPlan(cmd.ErrOrStderr(), plan); err != nil {
		return err
	}
	pruned := &reconciler.Back{}
	if a.prune && len(plan.Unwanted) > 0 {
		if pruned, err = s.reconciler.PlanPrune(ctx, target); err == nil {
			fmt.Fprintln(cmd.ErrOrStderr(), "then prune:")
			err = printBack(cmd.ErrOrStderr(), pruned)
		}
		if err != nil {
			return err
		}
	}
	if !plan.Empty() || !pruned.Empty() {
		if err := confirm(cmd, a.yes, "Apply?"); err != nil {
			return err
		}
	}
	a.opts.NodeFile = text
	out, err := s.reconciler.Apply(ctx, target, a.opts)
	err = a.asked(err, text)
	if err == nil && a.prune {
		err = a.pruneAfter(ctx, cmd, s, target, out)
	}
	s.report.end()
	if out == nil {
		return err
	}
	return errors.Join(err, a.output.Print(cmd.OutOrStdout(), out, func(w io.Writer) error { return printOutcome(w, out) }))
}

// asked adds to an error of a task where the node file asks for it.
func (a *applying) asked(err error, text []byte) error {
	var task *reconciler.TaskError
	if !errors.As(err, &task) || !nodefile.Has(text, task.Why) {
		return err
	}
	line, column := nodefile.Place(text, task.Why)
	return fmt.Errorf("%w\n%s:%d:%d: here it is asked for", err, shownFile(a.file), line, column)
}

// pruneAfter prunes and adds what could not be to the outcome of the apply. The user has
// seen what goes; what it does to pods is looked at anew, since the apply has changed what
// runs.
func (a *applying) pruneAfter(ctx context.Context, cmd *cobra.Command, s *session, target provision.Target, out *reconciler.Outcome) error {
	back, err := s.reconciler.PlanPrune(ctx, target)
	if err != nil || back.Empty() {
		return err
	}
	b := backing{places: a.places, yes: true, opts: reconciler.BackOptions{AllowDisruption: a.opts.AllowDisruption, KeepFailed: a.opts.KeepFailed}}
	b.watchPods(ctx, s, back)
	if err := back.Consent(b.opts.AllowDisruption); err != nil {
		return fmt.Errorf("cannot prune: %w", errors.Join(err, printBack(cmd.ErrOrStderr(), back)))
	}
	pruned, err := s.reconciler.Prune(ctx, back, b.opts)
	if pruned != nil {
		out.Left = append(out.Left, pruned.Left...)
		out.Warnings = append(out.Warnings, pruned.Warnings...)
	}
	if err = b.resumed(ctx, back, err); err != nil {
		return fmt.Errorf("cannot prune: %w", err)
	}
	return nil
}
