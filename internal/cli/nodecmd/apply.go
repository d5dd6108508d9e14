package nodecmd

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/berthrun/berth/internal/cli/nodecmd/planview"
	"github.com/berthrun/berth/internal/cli/nodecmd/session"
	"github.com/berthrun/berth/internal/cli/nodecmd/source"
	"github.com/berthrun/berth/internal/cli/show"
	"github.com/berthrun/berth/internal/provision"
	"github.com/berthrun/berth/internal/provision/local"
	"github.com/berthrun/berth/internal/provision/node/nodefile"
	"github.com/berthrun/berth/internal/provision/reconciler"
)

// applyRun is one run of apply.
type applyRun struct {
	session.Flags
	output show.Flag
	yes    bool
	wait   bool
	prune  bool
	opts   reconciler.ApplyOptions
}

// newApply reconciles the machine with its node file.
func newApply() *cobra.Command {
	var a applyRun
	cmd := &cobra.Command{
		Use:   "apply",
		Short: "Reconcile the machine with its node file",
		Long: "apply shows the plan, asks, downloads what is needed, and changes the machine. It records each change before it\n" +
			"makes it. If a step fails, or if the runtime is not healthy after its restart, apply undoes all changes.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return session.Interruptible(cmd, func(ctx context.Context) error { return a.run(ctx, cmd) })
		},
	}
	a.Register(cmd, true)
	a.output.Register(cmd)
	flags := cmd.Flags()
	flags.BoolVarP(&a.yes, "yes", "y", false, "do not ask")
	flags.BoolVar(&a.wait, "wait", false, "wait while another apply runs")
	flags.DurationVar(&a.PackageWait, "package-wait", local.DefaultPackageWait, "how long to wait while another process uses the package manager")
	flags.DurationVar(&a.RetryFor, "retry-for", local.DefaultRetryFor, "how long to retry what fails for now, such as a download from an overloaded server; 0: do not retry")
	flags.DurationVar(&a.TaskFor, "task-timeout", 0, "timeout of one task, after which apply is undone; 0: 30m for packages, assets and images, 10m for units and commands, 5m for others")
	flags.BoolVar(&a.prune, "prune", false, "for what the node file no longer has, restore the state from before")
	flags.BoolVar(&a.opts.AllowDisruption, "allow-disruption", false, "allow the disruption of running pods that the plan shows")
	flags.BoolVar(&a.opts.KeepFailed, "keep-failed", false, "do not undo a failed apply")
	return cmd
}

func (a *applyRun) run(ctx context.Context, cmd *cobra.Command) error {
	s, err := a.Change(ctx, cmd, a.wait)
	if err != nil {
		return err
	}
	defer s.Close()
	target, text, err := a.Target(ctx, cmd, s)
	if err != nil {
		return err
	}
	plan, err := s.Reconciler.Plan(ctx, target)
	if err != nil {
		return err
	}
	if err := planview.Plan(cmd.ErrOrStderr(), plan); err != nil {
		return err
	}
	pruned := &reconciler.Back{}
	if a.prune && len(plan.Unwanted) > 0 {
		if pruned, err = s.Reconciler.PlanPrune(ctx, target); err == nil {
			fmt.Fprintln(cmd.ErrOrStderr(), "then prune:")
			err = planview.Back(cmd.ErrOrStderr(), pruned)
		}
		if err != nil {
			return err
		}
	}
	if !plan.Empty() || !pruned.Empty() {
		if err := session.Confirm(cmd, a.yes, "Apply?"); err != nil {
			return err
		}
	}
	a.opts.NodeFile = text
	out, err := s.Reconciler.Apply(ctx, target, a.opts)
	err = a.locateRequest(err, text)
	if err == nil && a.prune {
		err = a.pruneAfter(ctx, cmd, s, target, out)
	}
	s.Report.End()
	if out == nil {
		return err
	}
	return errors.Join(err, a.output.Print(cmd.OutOrStdout(), out, func(w io.Writer) error { return planview.Outcome(w, out) }))
}

// locateRequest adds to an error of a task the line of the node file that requires it.
func (a *applyRun) locateRequest(err error, text []byte) error {
	var task *reconciler.TaskError
	if !errors.As(err, &task) || !nodefile.Has(text, task.Why) {
		return err
	}
	line, column := nodefile.Place(text, task.Why)
	return fmt.Errorf("%w\n%s:%d:%d: this field requires it", err, source.Shown(a.File), line, column)
}

// pruneAfter prunes, and adds what it could not prune to the outcome of the apply. The user has
// seen what is reverted. The effect on pods is computed again, since the apply has changed what
// runs.
func (a *applyRun) pruneAfter(ctx context.Context, cmd *cobra.Command, s *session.Session, target provision.Target, out *reconciler.Outcome) error {
	back, err := s.Reconciler.PlanPrune(ctx, target)
	if err != nil || back.Empty() {
		return err
	}
	b := revertRun{Flags: a.Flags, yes: true, opts: reconciler.BackOptions{AllowDisruption: a.opts.AllowDisruption, KeepFailed: a.opts.KeepFailed}}
	if err := b.planEviction(ctx, s, back); err != nil {
		return err
	}
	if err := back.Consent(b.opts.AllowDisruption); err != nil {
		return fmt.Errorf("cannot prune: %w", errors.Join(err, planview.Back(cmd.ErrOrStderr(), back)))
	}
	pruned, err := s.Reconciler.Prune(ctx, back, b.opts)
	if pruned != nil {
		out.Left = append(out.Left, pruned.Left...)
		out.Warnings = append(out.Warnings, pruned.Warnings...)
	}
	if err = b.finishEviction(ctx, err); err != nil {
		return fmt.Errorf("cannot prune: %w", err)
	}
	return nil
}
