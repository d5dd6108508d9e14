package nodecmd

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/berthrun/berth/internal/cli/show"
	"github.com/berthrun/berth/internal/provision"
	"github.com/berthrun/berth/internal/provision/crisock"
	"github.com/berthrun/berth/internal/provision/dockersock"
	"github.com/berthrun/berth/internal/provision/node/handover"
	"github.com/berthrun/berth/internal/provision/reconciler"
)

// backing is one run of a command that brings back what was there before.
type backing struct {
	places
	output show.Flag
	yes    bool
	opts   reconciler.BackOptions
	// resume ends what the pods' end needed; nil while none was stopped.
	resume func(context.Context) error
	// again starts docker's containers that were stopped, where docker stays after all.
	again func(context.Context) error
}

func (b *backing) register(cmd *cobra.Command, withFile bool) {
	b.places.register(cmd, withFile)
	b.output.Register(cmd)
	flags := cmd.Flags()
	flags.BoolVarP(&b.yes, "yes", "y", false, "do not ask")
	flags.BoolVar(&b.opts.AllowDisruption, "allow-disruption", false, "consent to what the plan says happens to running pods; those of a runtime that stops are stopped and removed")
}

// registerGuarded is register for a way back that is undone when it fails.
func (b *backing) registerGuarded(cmd *cobra.Command, withFile bool) {
	b.register(cmd, withFile)
	cmd.Flags().BoolVar(&b.opts.KeepFailed, "keep-failed", false, "do not undo what failed")
}

// run opens the machine to be changed, and lets f go back.
func (b *backing) run(cmd *cobra.Command, f func(ctx context.Context, s *session) error) error {
	ctx, stop := untilSignal(cmd.Context())
	defer stop()
	s, err := b.change(ctx, cmd, false)
	if err != nil {
		return err
	}
	defer s.close()
	return f(ctx, s)
}

// consent shows the way back and what it does to pods, and asks.
func (b *backing) consent(ctx context.Context, cmd *cobra.Command, s *session, back *reconciler.Back, question string) error {
	b.watchPods(ctx, s, back)
	if err := printBack(cmd.ErrOrStderr(), back); err != nil {
		return err
	}
	if err := back.Consent(b.opts.AllowDisruption); err != nil {
		return err
	}
	return confirm(cmd, b.yes, question)
}

// watchPods tells of the pods whose runtime stops, and has them stopped before it does.
func (b *backing) watchPods(ctx context.Context, s *session, back *reconciler.Back) {
	var endpoints []string
	for _, d := range back.Diffs {
		name, isService := strings.CutSuffix(d.Object.Name, ".service")
		if d.Object.Kind != "unit" || !isService || !d.Stops() {
			continue
		}
		if name == "docker" {
			b.watchDocker(ctx, back)
			continue
		}
		socket := crisock.Configured(s.host.Files(), name)
		if socket == "" {
			continue // no runtime
		}
		if _, err := s.host.Files().Stat(socket); err != nil {
			continue
		}
		pods, err := crisock.Sandboxes(ctx, socket)
		if err != nil || len(pods) == 0 {
			continue // one that does not answer has no pods that could be stopped in order
		}
		endpoints = append(endpoints, socket)
		back.Stops = append(back.Stops, fmt.Sprintf("%s stops; its pods (%d) are stopped and removed before: %s", d.Object.Name, len(pods), shortList(pods)))
	}
	if len(endpoints) > 0 {
		b.evicts(func(ctx context.Context) (err error) {
			b.resume, err = handover.Evict(ctx, s.host, endpoints)
			return err
		})
	}
}

// watchDocker does the same for docker's containers. With live-restore they would outlive
// their engine, and nobody could stop them any more.
func (b *backing) watchDocker(ctx context.Context, back *reconciler.Back) {
	containers, err := dockersock.Running(ctx)
	if err != nil || len(containers) == 0 {
		return // one that does not answer has none that could be stopped in order
	}
	names := make([]string, len(containers))
	for i, c := range containers {
		names[i] = c.Name
	}
	back.Stops = append(back.Stops, fmt.Sprintf("docker.service stops; its containers (%d) are stopped before: %s", len(containers), shortList(names)))
	b.evicts(func(ctx context.Context) error {
		b.again = func(ctx context.Context) error { return dockersock.Each(ctx, dockersock.Start, containers) }
		return dockersock.Each(ctx, dockersock.Stop, containers)
	})
}

// evicts adds to what is done before anything goes back.
func (b *backing) evicts(more func(context.Context) error) {
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

// resumed starts again what was stopped for the pods' end and shall run: the kubelet, and
// docker's containers where docker is there again. err is how the way back ended.
func (b *backing) resumed(ctx context.Context, back *reconciler.Back, err error) error {
	if err != nil && b.again != nil {
		err = errors.Join(err, b.again(context.WithoutCancel(ctx)))
	}
	stops := slices.ContainsFunc(back.Diffs, func(d provision.Diff) bool { return d.Object.Name == "kubelet.service" && d.Stops() })
	if b.resume == nil || stops && err == nil {
		return err
	}
	// Also when the user has lost patience: the node would have no kubelet.
	return errors.Join(err, b.resume(context.WithoutCancel(ctx)))
}

// tell shows what became of it.
func (b *backing) tell(ctx context.Context, cmd *cobra.Command, s *session, back *reconciler.Back, out *reconciler.Outcome, err error) error {
	err = b.resumed(ctx, back, err)
	if out == nil {
		return err
	}
	s.report.end()
	return errors.Join(err, b.output.Print(cmd.OutOrStdout(), out, func(w io.Writer) error { return printOutcome(w, out) }))
}
