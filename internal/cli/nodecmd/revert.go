package nodecmd

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/berthrun/berth/internal/cli/nodecmd/planview"
	"github.com/berthrun/berth/internal/cli/nodecmd/session"
	"github.com/berthrun/berth/internal/cli/show"
	"github.com/berthrun/berth/internal/provision"
	"github.com/berthrun/berth/internal/provision/crisock"
	"github.com/berthrun/berth/internal/provision/kubelet"
	"github.com/berthrun/berth/internal/provision/node/handover"
	"github.com/berthrun/berth/internal/provision/reconciler"
)

// revertRun is one run of a command that restores an earlier state: prune, reset or rollback.
type revertRun struct {
	session.Flags
	output show.Flag
	yes    bool
	opts   reconciler.BackOptions
	// restartContainers starts docker's stopped containers again if docker stays.
	restartContainers func(context.Context) error
}

func (b *revertRun) register(cmd *cobra.Command, withFile bool) {
	b.Flags.Register(cmd, withFile)
	b.output.Register(cmd)
	flags := cmd.Flags()
	flags.BoolVarP(&b.yes, "yes", "y", false, "do not ask")
	flags.BoolVar(&b.opts.AllowDisruption, "allow-disruption", false, "allow the disruption of running pods that the plan shows; pods of a runtime that stops are stopped and removed")
}

// registerWithUndo is register for a command that is undone when it fails.
func (b *revertRun) registerWithUndo(cmd *cobra.Command, withFile bool) {
	b.register(cmd, withFile)
	cmd.Flags().BoolVar(&b.opts.KeepFailed, "keep-failed", false, "do not undo the command if it fails")
}

// run opens the machine for changes, and calls f.
func (b *revertRun) run(cmd *cobra.Command, f func(ctx context.Context, s *session.Session) error) error {
	return session.Interruptible(cmd, func(ctx context.Context) error {
		s, err := b.Change(ctx, cmd, false)
		if err != nil {
			return err
		}
		defer s.Close()
		return f(ctx, s)
	})
}

// consent shows what is restored and its effect on pods, and asks for consent.
func (b *revertRun) consent(ctx context.Context, cmd *cobra.Command, s *session.Session, back *reconciler.Back, question string) error {
	if err := b.planEviction(ctx, s, back); err != nil {
		return err
	}
	if err := planview.Back(cmd.ErrOrStderr(), back); err != nil {
		return err
	}
	if err := back.Consent(b.opts.AllowDisruption); err != nil {
		return err
	}
	return session.Confirm(cmd, b.yes, question)
}

// planEviction adds to back the pods whose runtime stops, and stops them before their runtime. The kubelet runs again after
// that, unless it stops, too.
func (b *revertRun) planEviction(ctx context.Context, s *session.Session, back *reconciler.Back) error {
	var endpoints []string
	for _, d := range back.Diffs {
		name, isService := strings.CutSuffix(d.Object.Name, ".service")
		if d.Object.Kind != "unit" || !isService || !d.Stops() {
			continue
		}
		socket := servedWith(s.Host.Files(), name)
		if pods := podsAt(ctx, s.Host.Files(), socket); len(pods) > 0 && !slices.Contains(endpoints, socket) {
			endpoints = append(endpoints, socket)
			back.Stops = append(back.Stops, fmt.Sprintf("%s stops; its pods (%d) are stopped and removed before: %s", d.Object.Name, len(pods), shortList(pods)))
		}
		if name == "docker" {
			b.planContainerStop(ctx, back, slices.Contains(endpoints, socket))
		}
	}
	if len(endpoints) == 0 {
		return nil
	}
	b.addEviction(func(ctx context.Context) error { return handover.Evict(ctx, s.Host, endpoints) })
	if slices.ContainsFunc(back.Diffs, func(d provision.Diff) bool {
		return d.Object.Kind == provision.KindUnit && d.Object.Name == kubelet.Unit && d.Stops()
	}) {
		return nil
	}
	return s.Reconciler.Keep(ctx, back, handover.RunningKubelet())
}

// podsAt lists the pods of a runtime. One that does not answer has no pods that could be stopped in
// order; nor has the socket "".
func podsAt(ctx context.Context, files provision.Files, socket string) []string {
	if socket == "" || !provision.Exists(files, socket) {
		return nil
	}
	pods, err := crisock.Sandboxes(ctx, socket)
	if err != nil {
		return nil
	}
	return pods
}

// servedWith is the CRI socket whose pods need a unit, NAME.service; "" if none do. The engine that
// berth runs pods with counts: berth itself may stay, with another engine.
func servedWith(files provision.Files, name string) string {
	needs := map[string]string{"native": "berth-supervisor", "docker": "docker"}[crisock.BerthsEngine(files)]
	if name == needs {
		name = "berth"
	}
	return crisock.Configured(files, name)
}

// planContainerStop does the same for docker's containers, except those of pods that are removed
// anyway. With live-restore they would outlive their engine, and could no longer be stopped.
func (b *revertRun) planContainerStop(ctx context.Context, back *reconciler.Back, withoutPods bool) {
	docker := handover.Containers{Socket: handover.DockerSocket}
	containers, err := docker.Running(ctx)
	containers = slices.DeleteFunc(containers, func(c handover.Container) bool { return c.OfPod && withoutPods })
	if err != nil || len(containers) == 0 {
		return // one that does not answer has none that could be stopped in order
	}
	names := make([]string, len(containers))
	for i, c := range containers {
		names[i] = c.Name
	}
	back.Stops = append(back.Stops, fmt.Sprintf("docker.service stops; its containers (%d) are stopped before: %s", len(containers), shortList(names)))
	b.addEviction(func(ctx context.Context) error {
		b.restartContainers = func(ctx context.Context) error { return docker.Start(ctx, containers) }
		return docker.Stop(ctx, containers)
	})
}

// addEviction adds a step before the restore.
func (b *revertRun) addEviction(more func(context.Context) error) {
	before := b.opts.Evict
	b.opts.Evict = func(ctx context.Context) error {
		if before != nil {
			if err := before(ctx); err != nil {
				return err
			}
		}
		return more(ctx)
	}
}

// shortList names the first of many.
func shortList(names []string) string {
	const most = 5
	if len(names) <= most {
		return strings.Join(names, ", ")
	}
	return fmt.Sprintf("%s and %d more", strings.Join(names[:most], ", "), len(names)-most)
}

// finishEviction starts docker's containers again if docker is back. err is the result of the restore.
func (b *revertRun) finishEviction(ctx context.Context, err error) error {
	if err != nil && b.restartContainers != nil {
		err = errors.Join(err, b.restartContainers(context.WithoutCancel(ctx)))
	}
	return err
}

// report shows the outcome.
func (b *revertRun) report(ctx context.Context, cmd *cobra.Command, s *session.Session, out *reconciler.Outcome, err error) error {
	err = b.finishEviction(ctx, err)
	if out == nil {
		return err
	}
	s.Report.End()
	return errors.Join(err, b.output.Print(cmd.OutOrStdout(), out, func(w io.Writer) error { return planview.Outcome(w, out) }))
}
