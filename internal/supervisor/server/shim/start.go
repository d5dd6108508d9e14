package shim

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
	"github.com/berthrun/berth/internal/supervisor/server/shim/taskapi"
	"github.com/berthrun/berth/internal/sys/sysproc"
)

// stateTimeout bounds a question for a state.
const stateTimeout = 10 * time.Second

// Start lets the init of a created container execute the user's program. Kind State when the init has
// ended without it.
func (r *Runtime) Start(ctx context.Context, s *ociruntime.Starting) error {
	st, err := r.all.files(s.ID).read()
	if err != nil || r.isSandbox(st.Pod, s.ID) { // a sandbox runs since its create
		return err
	}
	pid, err := sysproc.PidfdPid(s.Pidfd)
	if err != nil {
		return fmt.Errorf("its init has ended: %w", errs.State)
	}
	client, file, err := r.all.single(ctx, st.Pod)
	if err != nil {
		return r.handler.fault(ctx, stageStart, err)
	}
	defer client.Close()
	err = s.Hold(file)
	file.Close()
	if err != nil {
		return err
	}
	before := ociruntime.ExecutableOf(pid)
	started, err := client.Start(ctx, s.ID, "")
	if err != nil {
		err = r.handler.fault(ctx, stageStart, err)
		if errs.Kind(err) == nil && ociruntime.Dying(s.Pidfd) {
			return fmt.Errorf("%w: its init has ended: %w", err, errs.State)
		}
		return ociruntime.Classify(err, "") // gVisor finds the program now
	}
	if started != pid {
		return r.handler.fault(ctx, stageStart, fmt.Errorf("it has started process %d, and created process %d", started, pid))
	}
	// A sandbox is the same process before and after.
	if !r.handler.IsSandbox && ociruntime.AwaitReplaced(ctx, s, pid, before) {
		return nil
	}
	if now, err := client.State(ctx, s.ID, ""); err == nil && now.Status == taskapi.Created {
		return r.handler.fault(ctx, stageStart, errors.New("it has answered, and has not started the container"))
	}
	return nil
}

// Resume completes a Start that another process has begun. The shim has completed it, has given it up with its
// connection, or has not got it. Kind State when the init has ended without the program.
func (r *Runtime) Resume(ctx context.Context, s *ociruntime.Starting) error {
	st, err := r.all.files(s.ID).read()
	if err != nil || r.isSandbox(st.Pod, s.ID) {
		return err
	}
	now, err := r.stateOf(ctx, st.Pod, s.ID) // a shim answers when no start is under way
	if s.Pidfd == nil {
		return r.endedBeforeStart(s.ID)
	}
	if err != nil {
		return err
	}
	if now.Status == taskapi.Created {
		err = r.Start(ctx, s)
		if err == nil {
			return nil
		}
		// The start of the former supervisor may have been under way.
		var stateErr error
		if now, stateErr = r.stateOf(context.WithoutCancel(ctx), st.Pod, s.ID); stateErr != nil {
			return err
		}
	}
	switch now.Status {
	case taskapi.Created:
		return err
	case taskapi.Stopped:
		if r.handler.IsSandbox && now.Code == unknownCode {
			return fmt.Errorf("the start was not completed: %w", errs.State)
		}
		return r.endedBeforeStart(s.ID)
	default: // what was started stays
		return nil
	}
}

// unknownCode is what gVisor's shim reports of a container whose start it has given up. A program may end with it, too: then
// its exit is taken for a start that failed, and the container is started again where its pod restarts it.
const unknownCode = 128

// stateOf returns the shim's state of a container.
func (r *Runtime) stateOf(ctx context.Context, pod, id string) (*taskapi.State, error) {
	ctx, stop := context.WithTimeout(ctx, stateTimeout)
	defer stop()
	client, err := r.all.client(ctx, pod)
	var now *taskapi.State
	if err == nil {
		now, err = client.State(ctx, id, "")
	}
	if err != nil {
		return nil, r.handler.fault(ctx, stageState, err)
	}
	return now, nil
}

// fifoName is the file at which the inits of runc and crun wait for their start. The start removes it once the init goes on.
const fifoName = "exec.fifo"

// endedBeforeStart returns an error of kind State when the init of a container, which has ended, has not executed the program.
// Its exit code says nothing of the program then: the code of runc's init is 2 when its terminal is hung up, and 1 or
// 255 when the start was killed. A start that is killed between the end of the init's wait and the removal of the file
// is taken for one that did not complete. Nil when only the exit code can say.
func (r *Runtime) endedBeforeStart(id string) error {
	if _, err := os.Lstat(filepath.Join(r.handler.Root, namespace, id, fifoName)); err != nil {
		return nil
	}
	return fmt.Errorf("its init has ended, and the start was not completed: %w", errs.State)
}

// Holders returns the processes of a container's shim, which copies the output.
func (r *Runtime) Holders(id string) (pids []int) {
	st, err := r.all.files(id).read()
	if err != nil {
		return nil
	}
	found, err := r.all.readPod(st.Pod)
	if err != nil {
		return nil
	}
	for _, each := range found.Processes {
		if pidfd, err := each.open(); err == nil { // it has not ended
			pidfd.Close()
			pids = append(pids, each.Pid)
		}
	}
	return pids
}

// Update changes limits of a container. Limits that are nil or empty in res stay as they are.
func (r *Runtime) Update(ctx context.Context, id string, res *specs.LinuxResources) error {
	st, err := r.all.files(id).read()
	if err != nil {
		return err
	}
	data, err := json.Marshal(res)
	if err != nil {
		return fmt.Errorf("cannot encode the limits: %w", err)
	}
	client, err := r.all.client(ctx, st.Pod)
	if err == nil {
		err = client.Update(ctx, id, data)
	}
	if err != nil {
		return ociruntime.Classify(r.handler.fault(ctx, stageUpdate, err), "")
	}
	return nil
}
