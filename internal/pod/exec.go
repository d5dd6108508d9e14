package pod

import (
	"context"
	"fmt"

	"github.com/berthrun/berth/internal/engine"
	"github.com/berthrun/berth/internal/errs"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// Exec runs a command in a running container; see engine.Engine.Exec.
func (s *Service) Exec(ctx context.Context, spec *engine.ExecSpec) (code int32, err error) {
	rec, err := s.running(spec.ContainerID)
	if err != nil {
		return 0, fmt.Errorf("cannot exec in container: %w", err)
	}
	whole := *spec
	whole.ContainerID = rec.ID
	return s.opts.Engine.Exec(ctx, &whole)
}

// CheckExec reports whether an Exec or Attach of this container would be allowed
// now, and returns its full id.
func (s *Service) CheckExec(_ context.Context, id string) (fullID string, config *runtimeapi.ContainerConfig, err error) {
	rec, err := s.running(id)
	if err != nil {
		return "", nil, err
	}
	return rec.ID, rec.Config.Get(), nil
}

// Attach connects streams to a running container; see engine.Engine.Attach.
func (s *Service) Attach(ctx context.Context, spec *engine.AttachSpec) error {
	rec, err := s.running(spec.ContainerID)
	if err != nil {
		return fmt.Errorf("cannot attach to container: %w", err)
	}
	whole := *spec
	whole.ContainerID = rec.ID
	return s.opts.Engine.Attach(ctx, &whole)
}

// ReopenContainerLog makes a running container's log go to a new file.
func (s *Service) ReopenContainerLog(ctx context.Context, id string) error {
	rec, err := s.running(id)
	if err != nil {
		return fmt.Errorf("cannot reopen container log: %w", err)
	}
	reopener, can := s.opts.Engine.(engine.LogReopener)
	if !can {
		return fmt.Errorf("cannot reopen the log of container %s: its engine cannot: %w", rec.ID, errs.Unsupported)
	}
	return reopener.ReopenLog(ctx, rec.ID)
}

// running finds a container in which commands can run.
func (s *Service) running(id string) (*ContainerRecord, error) {
	rec, err := s.container(id)
	if err != nil {
		return nil, err
	}
	if rec.State != ContainerRunning {
		return nil, fmt.Errorf("container %q is %s, not running: %w", rec.ID, rec.State, errs.State)
	}
	return rec, nil
}
