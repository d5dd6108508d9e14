package docker

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/client"

	"github.com/berthrun/berth/internal/engine/docker/faults"
	"github.com/berthrun/berth/internal/engine/docker/labels"
	"github.com/berthrun/berth/internal/errs"
)

// removalTimeout bounds the wait for a removal that is under way in the Docker Engine.
const removalTimeout = time.Minute

// createContainer creates a container and returns the Docker Engine's id of it.
//
// An engine that was restarted may still hold the name for a container that it has lost, or
// be removing it. So a container of this berth that has the name, and that berth does not know any
// more, is removed, and the name gets a random suffix when that does not help.
func (e *Engine) createContainer(ctx context.Context, options client.ContainerCreateOptions) (string, error) {
	made, err := e.client.ContainerCreate(ctx, options)
	holder, conflict := labels.Conflict(err)
	if !conflict {
		return e.created(options.Name, made, err)
	}
	e.log.Warn("the name of a container is in use in the Docker engine", "name", options.Name, "by", holder)
	if err := e.removeStale(ctx, holder); err == nil {
		made, err = e.client.ContainerCreate(ctx, options)
		if _, conflict = labels.Conflict(err); !conflict {
			return e.created(options.Name, made, err)
		}
	} else {
		e.log.Warn("cannot remove the container that has the name", "name", options.Name, "container", holder, "error", err)
	}
	options.Name = labels.WithSuffix(options.Name)
	made, err = e.client.ContainerCreate(ctx, options)
	return e.created(options.Name, made, err)
}

func (e *Engine) created(name string, made client.ContainerCreateResult, err error) (string, error) {
	if err != nil {
		return "", faults.Create(err)
	}
	for _, warning := range made.Warnings {
		e.log.Warn("warning of the Docker engine about a new container", "name", name, "warning", warning)
	}
	return made.ID, nil
}

// errHeld is the error of a name that a container has which berth must not remove.
var errHeld = errors.New("it belongs to a pod, or is not a container of this berth")

// removeStale removes the container that has a name, if this berth made it, and does not know it:
// the rules have removed all that a new container replaces.
func (e *Engine) removeStale(ctx context.Context, holder string) error {
	if holder == "" {
		return fmt.Errorf("the engine does not say which: %w", errs.NotFound)
	}
	found, err := e.client.ContainerInspect(ctx, holder, client.ContainerInspectOptions{})
	switch {
	case errors.Is(err, errs.NotFound):
		return nil // its removal is complete, or it is being created: an engine takes the name before that
	case err != nil:
		return err
	case !e.isLost(&found.Container):
		return errHeld
	}
	return e.remove(ctx, holder)
}

// isLost reports whether this berth made a container that does not run, and does not know it any more.
func (e *Engine) isLost(got *container.InspectResponse) bool {
	if got.State == nil || got.Config == nil || got.State.Running || got.Config.Labels[labels.Instance] != e.cfg.Instance {
		return false
	}
	return !e.objects.isHeld(got.Config.Labels[labels.ID], got.ID)
}

// remove removes a container of the Docker Engine with its anonymous volumes, and kills it if
// it runs. Nil when there is none. A removal that is under way already is awaited.
func (e *Engine) remove(ctx context.Context, engineID string) error {
	ctx, stop := context.WithTimeout(ctx, removalTimeout)
	defer stop()
	for pause := 10 * time.Millisecond; ; pause = min(2*pause, time.Second) {
		_, err := e.client.ContainerRemove(ctx, engineID, client.ContainerRemoveOptions{Force: true, RemoveVolumes: true})
		if err == nil || errors.Is(err, errs.NotFound) {
			return nil
		}
		if !errors.Is(err, errs.Exists) { // a conflict: "removal … is already in progress"
			return err
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%w: %w", err, context.Cause(ctx))
		case <-time.After(pause):
		}
	}
}
