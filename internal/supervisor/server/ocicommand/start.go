package ocicommand

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/supervisor/server/ociruntime"
	"github.com/berthrun/berth/internal/sys/sysproc"
)

// finishTimeout is how long a start may go on when its caller cancels it.
const finishTimeout = 4 * time.Second

// uninterrupted returns a context with the deadline of ctx that goes on for a while when ctx is cancelled. A
// program that is killed in its `start` may take the init with it: the init writes to a FIFO that only
// the program reads. The end of this process cancels all starts.
func uninterrupted(ctx context.Context) (context.Context, context.CancelFunc) {
	base := context.WithoutCancel(ctx)
	deadline, ok := ctx.Deadline()
	if !ok {
		deadline = time.Now().Add(unwatched)
	}
	out, cancel := context.WithDeadline(base, deadline)
	stop := context.AfterFunc(ctx, func() { time.AfterFunc(finishTimeout, cancel) })
	return out, func() { stop(); cancel() }
}

// Start lets the init of a created container execute the user's program. Kind State when the init has
// ended without it.
func (r *Runtime) Start(ctx context.Context, s *ociruntime.Starting) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	ctx, stop := uninterrupted(ctx)
	defer stop()
	st, err := r.all.files(s.ID).read()
	if err != nil {
		return err
	}
	if st.Restored {
		return goOn(ctx, st.Cgroups)
	}
	pid, err := sysproc.PidfdPid(s.Pidfd)
	if err != nil {
		return fmt.Errorf("its init has ended: %w", errs.State)
	}
	before := ociruntime.ExecutableOf(pid)
	if _, err := r.run(ctx, stageStart, st.Systemd, s.ID, "start", s.ID); err != nil {
		if errs.Kind(err) == nil && ociruntime.Dying(s.Pidfd) {
			return fmt.Errorf("%w: its init has ended: %w", err, errs.State)
		}
		return err
	}
	if ociruntime.AwaitReplaced(ctx, s, pid, before) {
		return nil
	}
	if status, err := r.status(ctx, s.ID, st); err == nil && status == specs.StateCreated {
		return r.fault(stageStart, errors.New("it ended without an error and has not started the container"))
	}
	return nil
}

// Resume completes a Start that another process has begun.
func (r *Runtime) Resume(ctx context.Context, s *ociruntime.Starting) error {
	st, err := r.all.files(s.ID).read()
	if err != nil {
		return err
	}
	if st.Restored {
		return goOn(ctx, st.Cgroups)
	}
	status, err := r.status(ctx, s.ID, st)
	if err != nil {
		return err
	}
	if status != specs.StateCreated {
		return nil
	}
	err = r.Start(ctx, s)
	if err == nil {
		return nil
	}
	// The `start` of the former supervisor may have been under way. What that has started stays, also when
	// the time for this one is over. If it has ended, only its exit code can say whether it was started.
	status, statusErr := r.status(context.WithoutCancel(ctx), s.ID, st)
	if statusErr == nil && (status == specs.StateRunning || status == specs.StateStopped) {
		return nil
	}
	return err
}

// status returns what the program says of a container, in a time of its own.
func (r *Runtime) status(ctx context.Context, id string, st *state) (specs.ContainerState, error) {
	ctx, stop := context.WithTimeout(ctx, stateTimeout)
	defer stop()
	output, err := r.run(ctx, stageState, st.Systemd, id, "state", id)
	if err != nil {
		return "", err
	}
	var shown specs.State
	if err := json.Unmarshal(output, &shown); err != nil {
		return "", r.fault(stageState, fmt.Errorf("its answer is not the state of a container: %.80q", lastLine(output)))
	}
	return shown.Status, nil
}

// Update changes limits of a container. Limits that are nil or empty in res stay as they are.
func (r *Runtime) Update(ctx context.Context, id string, res *specs.LinuxResources) error {
	f := r.all.files(id)
	st, err := f.read()
	if err != nil {
		return err
	}
	data, err := json.Marshal(res)
	if err != nil {
		return fmt.Errorf("cannot encode the limits: %w", err)
	}
	path := filepath.Join(f.dir, "update.json")
	if err := os.WriteFile(path, data, 0o600); err != nil {
		return fmt.Errorf("cannot write the limits: %w", err)
	}
	_, err = r.run(ctx, stageUpdate, st.Systemd, id, "update", "--resources", path, id)
	return errors.Join(ociruntime.Classify(err, ""), os.Remove(path))
}
