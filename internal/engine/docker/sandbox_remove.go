package docker

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/client"

	"github.com/berthrun/berth/internal/engine/docker/killtree"
	"github.com/berthrun/berth/internal/engine/podcgroup"
	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/sys/cgroup"
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
	if err := e.release(ctx, id, false); err != nil {
		return fmt.Errorf("cannot release sandbox %s: %w", id, err)
	}
	e.meter.Forget(id)
	return nil
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
				group = e.cgroupOf(got)
			}
		}
		if err := errors.Join(e.remove(ctx, obj.engineID), e.killStrays(ctx, id, obj.engineID, group)); err != nil {
			return err
		}
		e.objects.forget(id) // the next round looks whether a lost create has made another one
	}
}

// cgroupOf returns the cgroup that a container has while it runs, nil for one with the engine's own
// parent.
func (e *Engine) cgroupOf(got *container.InspectResponse) cgroup.Paths {
	parent := got.HostConfig.CgroupParent
	if parent == "" {
		return nil
	}
	parents, err := e.podCgroups.Paths(parent)
	if err != nil {
		return nil
	}
	group := cgroup.Paths{}
	for controller, dir := range parents {
		group[controller] = filepath.Join(dir, e.cgroupName(got.ID))
	}
	return group
}

// cgroupName returns the last part of the path of a container's cgroup.
func (e *Engine) cgroupName(engineID string) string {
	if e.facts.Load().CgroupDriver == podcgroup.Systemd {
		return "docker-" + engineID + ".scope"
	}
	return engineID
}

// strayTimeout bounds the kill of processes that the engine has lost.
const strayTimeout = 10 * time.Second

// killStrays kills what runs in the cgroup of a container that does not run any more.
func (e *Engine) killStrays(ctx context.Context, id, engineID string, group cgroup.Paths) error {
	if len(group) == 0 {
		return nil
	}
	ctx, stop := context.WithTimeout(ctx, strayTimeout)
	defer stop()
	killed, err := killtree.Strays(ctx, engineID, group)
	if err != nil {
		return fmt.Errorf("cannot end processes that the Docker engine has lost: %w", err)
	}
	if killed {
		e.log.Warn("processes of a container ran on after its end; they were killed", "container", id, "dockerID", engineID)
	}
	return nil
}

// kill sends a signal to the first process of a container. NotFound when it does not run.
func (e *Engine) kill(ctx context.Context, id string, sig syscall.Signal) error {
	obj, err := e.objects.find(ctx, id)
	if err != nil {
		return err
	}
	_, err = e.client.ContainerKill(ctx, obj.engineID, client.ContainerKillOptions{Signal: fmt.Sprint(int(sig))})
	if errors.Is(err, errs.Exists) || errors.Is(err, errs.State) { // a conflict: it is not running
		return fmt.Errorf("processes of container %s: %w", id, errs.NotFound)
	}
	return err
}
