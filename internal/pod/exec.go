package pod

import (
	"context"
	"fmt"
	"io"

	"github.com/berthrun/berth/internal/engine"
	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/pod/record"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// Sessions run commands in containers, connect clients to them and reopen their logs. They
// read records and change none.
type Sessions struct {
	engine  engine.Engine
	records *record.Store
}

// Exec runs a command in a running container; see engine.Engine.Exec.
func (s *Sessions) Exec(ctx context.Context, spec *engine.ExecSpec) (code int32, err error) {
	rec, err := s.records.RunningContainer(spec.ContainerID)
	if err != nil {
		return 0, fmt.Errorf("cannot exec in container: %w", err)
	}
	whole := *spec
	whole.ContainerID = rec.ID
	return s.engine.Exec(ctx, &whole)
}

// CheckExec reports whether an Exec or Attach of this container would be allowed
// now, and returns its full id.
func (s *Sessions) CheckExec(_ context.Context, id string) (fullID string, config *runtimeapi.ContainerConfig, err error) {
	rec, err := s.records.RunningContainer(id)
	if err != nil {
		return "", nil, err
	}
	return rec.ID, rec.Config.Get(), nil
}

// Attach connects streams to a running container; see engine.Engine.Attach. A container whose config has no stdin gets
// nothing of the client's input, also if it has a terminal: the input is read and dropped.
func (s *Sessions) Attach(ctx context.Context, spec *engine.AttachSpec) error {
	rec, err := s.records.RunningContainer(spec.ContainerID)
	if err != nil {
		return fmt.Errorf("cannot attach to container: %w", err)
	}
	whole := *spec
	whole.ContainerID = rec.ID
	if spec.Stdin != nil && !rec.Config.Get().GetStdin() {
		if spec.Stdout == nil && spec.Stderr == nil {
			return fmt.Errorf("cannot attach to the input of container %s: its config has stdin false; attach to its output: %w", rec.ID, errs.State)
		}
		whole.Stdin = nil
		go func() {
			// Input that nobody reads holds up the other streams of the client's connection.
			_, _ = io.Copy(io.Discard, spec.Stdin) // until the client leaves
		}()
	}
	return s.engine.Attach(ctx, &whole)
}

// ReopenContainerLog makes a running container's log go to a new file.
func (s *Sessions) ReopenContainerLog(ctx context.Context, id string) error {
	rec, err := s.records.RunningContainer(id)
	if err != nil {
		return fmt.Errorf("cannot reopen container log: %w", err)
	}
	reopener, can := s.engine.(engine.LogReopener)
	if !can {
		return fmt.Errorf("cannot reopen the log of container %s: its engine cannot: %w", rec.ID, errs.Unsupported)
	}
	return reopener.ReopenLog(ctx, rec.ID)
}
