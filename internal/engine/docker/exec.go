package docker

import (
	"context"
	"errors"
	"fmt"

	"github.com/berthrun/berth/internal/engine"
	"github.com/berthrun/berth/internal/engine/docker/execs"
	"github.com/berthrun/berth/internal/errs"
)

// Exec runs a command as the container's own process would run: same user, environment,
// directory and capabilities.
func (e *Engine) Exec(ctx context.Context, spec *engine.ExecSpec) (code int32, err error) {
	if len(spec.Command) == 0 || spec.Command[0] == "" {
		return 0, fmt.Errorf("cannot exec in container %s: no command specified: %w", spec.ContainerID, errs.Invalid)
	}
	obj, err := e.running(ctx, spec.ContainerID)
	if err != nil {
		return 0, err
	}
	c := &execs.Container{Client: e.client, Log: e.log, EngineID: obj.engineID, Cgroups: obj.cgroups}
	if code, err = c.Exec(ctx, spec); errors.Is(err, errs.State) {
		err = fmt.Errorf("cannot exec in container %s: %w", spec.ContainerID, err)
	}
	return code, err
}

// running returns a container that runs, with its process.
func (e *Engine) running(ctx context.Context, id string) (object, error) {
	got, err := e.objects.inspect(ctx, id)
	if err != nil {
		return object{}, err
	}
	switch {
	case got.State.Paused:
		return object{}, fmt.Errorf("container %s is paused: %w", id, errs.State)
	case !got.State.Running:
		return object{}, fmt.Errorf("container %s does not run: it is %s: %w", id, got.State.Status, errs.State)
	}
	return e.objects.started(id, got), nil
}
