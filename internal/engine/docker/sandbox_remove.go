package docker

import (
	"context"
	"errors"
	"fmt"
	"os"
	"syscall"

	"github.com/berthrun/berth/internal/engine/docker/labels"
	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/sys/sysns"
)

// StopSandbox kills the pause container. The pin keeps the network namespace. The shared
// memory of the pod goes with the pause container.
func (e *Engine) StopSandbox(ctx context.Context, id string) error {
	if err := errs.IgnoreNotFound(e.kill(ctx, id, syscall.SIGKILL)); err != nil {
		return fmt.Errorf("cannot stop sandbox %s: %w", id, err)
	}
	return nil
}

// ReleaseSandbox removes what a pod that has completed does not need. Its pause container
// stays, so that List finds the sandbox.
func (e *Engine) ReleaseSandbox(ctx context.Context, id string) error {
	if err := e.endRevived(ctx, id); err != nil {
		return fmt.Errorf("cannot release sandbox %s: %w", id, err)
	}
	if err := e.release(ctx, id, false); err != nil {
		return fmt.Errorf("cannot release sandbox %s: %w", id, err)
	}
	e.meter.Forget(id)
	return nil
}

// endRevived kills the containers of a sandbox that run although their ends were reported: an engine that
// was killed may find a container again that it had lost. One whose disk is full may list a container as
// running whose process has gone.
func (e *Engine) endRevived(ctx context.Context, sandboxID string) error {
	running, err := e.runningIn(ctx, sandboxID)
	if err != nil {
		return err
	}
	var failed []error
	for i := range running {
		id := running[i].Labels[labels.ID]
		e.log.Warn("the engine lists a container of a stopped sandbox as running; ending it", "sandbox", sandboxID, "container", id, "dockerID", running[i].ID)
		failed = append(failed, errs.IgnoreNotFound(e.Signal(ctx, id, syscall.SIGKILL, true)))
	}
	return errors.Join(failed...)
}

// release removes the sandbox's namespace and cgroup, each nil when it is absent. last says
// that no containers remain.
func (e *Engine) release(ctx context.Context, id string, last bool) error {
	paths := e.sandboxPaths(id)
	return errors.Join(
		sysns.RemoveNetNS(paths.netns),
		e.podCgroups.RemoveParent(ctx, id, paths.ownCgroup, last),
	)
}

// RemoveSandbox removes all that a sandbox may have; what is absent is no error. It removes
// the sandbox's directory in the state directory last, because the directory records the
// rest.
func (e *Engine) RemoveSandbox(ctx context.Context, id string) error {
	if err := e.removeObject(ctx, id); err != nil {
		return fmt.Errorf("cannot remove sandbox %s: %w", id, err)
	}
	if err := e.release(ctx, id, true); err != nil {
		return fmt.Errorf("cannot remove sandbox %s: %w", id, err)
	}
	if err := e.removeCheckpoint(id); err != nil {
		return fmt.Errorf("cannot remove sandbox %s: %w", id, err)
	}
	if err := os.RemoveAll(e.sandboxPaths(id).dir); err != nil {
		return fmt.Errorf("cannot remove sandbox %s: %w", id, err)
	}
	e.objects.removed(id)
	e.meter.Forget(id)
	return nil
}

// removeObject removes the container with a CRI id from the Docker Engine. Nil when there is
// none.
func (e *Engine) removeObject(ctx context.Context, id string) error {
	for {
		obj, err := e.objects.find(ctx, id)
		if errors.Is(err, errs.NotFound) {
			return nil
		}
		if err != nil {
			return err
		}
		e.objects.remove(id)
		group := obj.cgroups
		if group.Check(obj.engineID) != nil { // its process was never seen
			if got, err := e.objects.inspect(ctx, id); err == nil {
				group = e.strays.CgroupOf(got)
			}
		}
		if err := errors.Join(e.remove(ctx, obj.engineID), e.strays.Kill(ctx, id, obj.engineID, group)); err != nil {
			return err
		}
		e.objects.forget(id) // the next round looks whether a lost create has made another one
	}
}
