package docker

import (
	"context"
	"errors"
	"fmt"
	"syscall"
	"time"

	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/client"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berthrun/berth/internal/engine"
	"github.com/berthrun/berth/internal/engine/docker/faults"
	"github.com/berthrun/berth/internal/engine/docker/translate"
	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/ocispec/request"
)

// Start starts the container. A second Start of a running container returns its process.
func (e *Engine) Start(ctx context.Context, id string) (pid int, err error) {
	obj, err := e.objects.find(ctx, id)
	if err != nil {
		return 0, err
	}
	if exit, ended := e.unstarted.Of(id, ""); ended {
		return 0, fmt.Errorf("container %s has ended with code %d before its start: %w", id, exit.Code, errs.State)
	}
	running, err := e.startOnce(ctx, id, obj)
	if err != nil {
		return 0, e.startFault(ctx, id, err)
	}
	obj = e.objects.started(id, running)
	e.unstarted.Forget(id)
	if err := e.madeSources(id).Keep(); err != nil {
		return 0, err
	}
	e.meter.Watch(id, obj.cgroups)
	if obj.pid == 0 {
		// It has ended already, and its exit is on the way. The rules need the pid only of a
		// process that runs.
		return engine.PidEnded, nil
	}
	return obj.pid, nil
}

// outageEffect is how long after an outage of the engine a failed start is repeated.
const outageEffect = 2 * time.Minute

// startOnce starts a container and reads what has become of it. An end that is heard of meanwhile is
// delivered afterwards, unless it was that of a failed attempt.
func (e *Engine) startOnce(ctx context.Context, id string, obj object) (*container.InspectResponse, error) {
	var got *container.InspectResponse
	err := e.start(ctx, obj)
	if err == nil {
		got, err = e.objects.inspect(ctx, id)
	}
	if err != nil {
		e.endStart(id, obj, nil)
		return nil, err
	}
	e.endStart(id, obj, got.State)
	return got, nil
}

func (e *Engine) endStart(id string, obj object, state *container.State) {
	die, ended := obj.starting.End(state)
	if !ended {
		return
	}
	if die != nil || state != nil && !state.Running {
		obj.died.Store(true)
	}
	e.deliverEnd(id, die)
}

// start starts a container of the Docker Engine. An engine that was killed during a start may have
// left a task in its containerd. It then refuses the next start, as a conflict or as a failure of
// its own, and removes the task: the start after that succeeds.
func (e *Engine) start(ctx context.Context, obj object) error {
	obj.starting.Begin()
	_, err := e.client.ContainerStart(ctx, obj.engineID, client.ContainerStartOptions{})
	if err == nil || ctx.Err() != nil {
		return err
	}
	failed := errs.Kind(err) == nil && time.Since(time.Unix(0, e.subscribedAt.Load())) < outageEffect
	if !failed && !errors.Is(err, errs.Exists) {
		return err
	}
	e.log.Warn("the Docker engine cannot start a container; trying again", "dockerID", obj.engineID, "error", err)
	obj.starting.Begin()
	obj.died.Store(false) // the end that was heard of is that of the first attempt
	_, err = e.client.ContainerStart(ctx, obj.engineID, client.ContainerStartOptions{})
	return err
}

// startFault gives the error of a start its kind. The Docker Engine reports a program that
// cannot be executed as a fault of the request, and keeps the cause in the container's state.
func (e *Engine) startFault(ctx context.Context, id string, err error) error {
	if ctx.Err() != nil || errors.Is(err, errs.Unavailable) || errors.Is(err, errs.NotFound) && !e.exists(ctx, id) {
		return err
	}
	got, inspectErr := e.objects.inspect(ctx, id)
	if inspectErr != nil || got.State.Error == "" || got.State.Running {
		return err
	}
	requested := e.unstarted.RequestOf(id)
	e.deliverEnd(id, nil)
	return faults.Start(requested, got.State.Error)
}

func (e *Engine) exists(ctx context.Context, id string) bool {
	_, err := e.objects.inspect(ctx, id)
	return err == nil
}

// Signal sends sig to the container's first process, or to all its processes. A container that
// was not started has no process: it ends at once, and is not started any more.
func (e *Engine) Signal(ctx context.Context, id string, sig syscall.Signal, all bool) error {
	got, err := e.objects.inspect(ctx, id)
	if err != nil {
		return err
	}
	switch state := stateOf(got.State.Status); {
	case state == engine.StateCreated:
		e.unstarted.Kill(id, sig)
		e.deliverEnd(id, nil)
		return nil
	case state != engine.StateRunning:
		if sig == syscall.SIGKILL {
			if err := e.strays.Kill(ctx, id, got.ID, e.strays.CgroupOf(got)); err != nil {
				return err
			}
		}
		return fmt.Errorf("processes of container %s: %w", id, errs.NotFound)
	case !all:
		return e.kill(ctx, id, sig)
	}
	obj := e.objects.started(id, got)
	if sig == syscall.SIGKILL {
		// The engine kills the first process. The others end with it, or share the PID
		// namespace of the pod and are in the container's cgroup. An engine that has lost the
		// task of a container does not kill the first process either.
		err := e.kill(ctx, id, sig)
		if killErr := obj.cgroups.Kill(ctx); killErr != nil {
			return errors.Join(killErr, errs.IgnoreNotFound(err)) // something runs on
		}
		return err
	}
	return obj.cgroups.Signal(sig)
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

// Update changes the limits of a container.
func (e *Engine) Update(ctx context.Context, id string, res *runtimeapi.LinuxContainerResources) error {
	obj, err := e.objects.find(ctx, id)
	if err != nil {
		return err
	}
	limits, err := translate.Resources(request.FieldUpdate, res, *e.facts.Load())
	if err != nil {
		return err
	}
	updated, err := e.client.ContainerUpdate(ctx, obj.engineID, client.ContainerUpdateOptions{Resources: &limits})
	if err != nil {
		return faults.Update(request.FieldUpdate, err)
	}
	for _, warning := range updated.Warnings {
		e.log.Warn("warning of the Docker engine about new limits", "container", id, "warning", warning)
	}
	return nil
}

// ReopenLog implements engine.LogReopener.
func (e *Engine) ReopenLog(ctx context.Context, id string) error { return e.logs.Reopen(ctx, id) }

var _ engine.LogReopener = (*Engine)(nil)
