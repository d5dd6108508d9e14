package pod

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/pod/record"
)

// retireGrace is how long a container may take to stop when its pod has another engine from
// now on, at most. A kubelet waits meanwhile.
const retireGrace = 30 * time.Second

// graceAnnotation is the annotation of a container with its pod's grace period in seconds. The
// kubelet sets it.
const graceAnnotation = "io.kubernetes.pod.terminationGracePeriod"

// retireParallel is how many pods are retired at a time.
const retireParallel = 16

// Retire stops every pod and removes its objects from the engine, for a node that gets another
// engine. The records stay, with the exits of the containers: a kubelet reads them, and
// starts the pods again on the other engine.
func (s *Service) Retire(ctx context.Context) error {
	var g errgroup.Group
	g.SetLimit(retireParallel)
	failed := make(chan error)
	for _, rec := range s.Sandboxes.records.Sandboxes.All() {
		g.Go(func() error {
			if err := s.retireSandbox(ctx, rec); err != nil {
				failed <- fmt.Errorf("pod %s: %w", rec.Name(), err)
			}
			return nil
		})
	}
	go func() {
		_ = g.Wait() // each has sent its own error
		close(failed)
	}()
	var all error
	for err := range failed {
		all = errors.Join(all, err)
	}
	return all
}

func (s *Service) retireSandbox(ctx context.Context, rec *record.Sandbox) error {
	var containers []*record.Container
	for _, id := range s.Sandboxes.records.ContainersOf(rec.ID) {
		c, err := s.Sandboxes.records.Containers.Get(id)
		if err != nil {
			continue // removed meanwhile
		}
		containers = append(containers, c)
	}
	if rec.State == record.SandboxReady {
		s.log.Warn("stopping a pod: the node's engine has changed, and the kubelet starts the pod again",
			"pod", rec.Name(), "sandbox", rec.ID)
		var g errgroup.Group
		for _, c := range containers {
			g.Go(func() error { return s.Containers.stopAndWait(ctx, c, retireGraceOf(c)) })
		}
		if err := g.Wait(); err != nil {
			return err
		}
	}
	if err := s.StopSandbox(ctx, rec.ID); err != nil {
		return err
	}
	for _, c := range containers {
		if err := s.Containers.call(ctx, c.ID, "remove container "+c.ID, s.engine.Remove); err != nil {
			return err
		}
	}
	return errs.IgnoreNotFound(s.Sandboxes.call(ctx, rec.ID, "remove sandbox "+rec.ID, s.engine.RemoveSandbox))
}

// retireGraceOf is the grace period of a container's pod, up to retireGrace.
func retireGraceOf(rec *record.Container) time.Duration {
	text := rec.Config.Get().GetAnnotations()[graceAnnotation]
	period, err := strconv.ParseInt(text, 10, 32)
	if err != nil || period < 0 {
		return retireGrace
	}
	return min(time.Duration(period)*time.Second, retireGrace)
}
