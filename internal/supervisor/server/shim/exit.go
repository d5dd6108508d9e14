package shim

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/supervisor/server/ociruntime"
	"github.com/berthrun/berth/internal/supervisor/server/shim/taskapi"
	"github.com/berthrun/berth/internal/sys/sysproc"
)

const (
	// answerTimeout is how long a shim may take to report a process that has ended.
	answerTimeout = 3 * time.Second
	// flushTimeout bounds the wait for a shim that copies the last output. runc's waits 10 seconds for
	// processes that have the output open.
	flushTimeout = 12 * time.Second
	// reconnects is how often in a row a connection that has ended is made again when the shim lives, and
	// reconnectPause the time between. A connection that lasted for steadyAfter begins another row.
	reconnects     = 30
	reconnectPause = time.Second
	steadyAfter    = time.Minute
)

// savedExit is the exit of a container's init, on disk: the shim forgets it with Flush.
type savedExit struct {
	Code int32     `json:"code"`
	At   time.Time `json:"at"`
	// Deleted is true of a container that is deleted without the shim. It is written before the deletion, and the
	// container's removal repeats that.
	Deleted bool `json:"deleted,omitempty"`
	// MayRun is true of such a container that was started, perhaps: it has ended when the deletion has.
	MayRun bool `json:"mayRun,omitempty"`
}

// deleted reports whether a container is deleted without the shim.
func (f files) deleted() bool {
	var saved savedExit
	return readJSON(filepath.Join(f.dir, exitName), &saved) == nil && saved.Deleted
}

// exited reports whether the exit of a container is on disk.
func (f files) exited() bool {
	_, err := os.Lstat(filepath.Join(f.dir, exitName))
	return err == nil
}

// shimExitName is the file of a bundle in which the shims of containerd 2.4 and later write how the init has ended.
const shimExitName = "exit.json"

// ofShim returns what a shim has written of the exit of a container's init, nil when it has written nothing.
func (f files) ofShim() *taskapi.Exit {
	var written struct {
		Timestamp time.Time
		Pid       int
		Status    int32
	}
	if readJSON(filepath.Join(f.dir, shimExitName), &written) != nil || written.Pid <= 0 || written.Status < 0 {
		return nil
	}
	return &taskapi.Exit{Code: written.Status, At: written.Timestamp}
}

// Await returns when a process has ended. The shim reports that, or the pidfd. When the shim is gone, or does not
// watch the container's init, Await kills the container: nothing copies its output or reaps its processes.
func (r *Runtime) Await(ctx context.Context, w *ociruntime.Watched) (*ociruntime.Ended, error) {
	f := r.all.files(w.ContainerID)
	st, err := f.read()
	if err != nil {
		return nil, err
	}
	ended, err := r.await(ctx, f, st, w)
	if err == nil && r.isGuest(st, w) {
		ended.Shared = true
	}
	return ended, err
}

// isGuest reports whether the process of a container is that of the pod's sandbox, which is another container.
func (r *Runtime) isGuest(st *state, w *ociruntime.Watched) bool {
	return r.handler.IsSandbox && w.ExecID == "" && st.Pod != w.ContainerID
}

// await is Await, which also kills a process whose relay was killed. The end of such a process has a message.
func (r *Runtime) await(ctx context.Context, f files, st *state, w *ociruntime.Watched) (*ociruntime.Ended, error) {
	var saved savedExit
	if path := filepath.Join(f.dir, exitName); w.ExecID == "" && readJSON(path, &saved) == nil {
		if !saved.MayRun || r.endByProgram(ctx, w.ContainerID, true) {
			return &ociruntime.Ended{Known: true, Code: saved.Code, At: saved.At}, nil
		}
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		if err := os.Remove(path); err != nil { // it may run: the shim reports its end
			return nil, err
		}
	}
	watching, stop := context.WithCancel(ctx)
	killed := make(chan string, 1)
	go func() {
		why := ""
		if f.relayDied(watching, w.ExecID) {
			why = r.endWithoutRelay(ctx, st, w)
		}
		killed <- why
	}()
	ended, err := r.awaitEnd(ctx, f, st, w)
	stop()
	if why := <-killed; err == nil && ended.Message == "" {
		ended.Message = why
	}
	return ended, err
}

func (r *Runtime) awaitEnd(ctx context.Context, f files, st *state, w *ociruntime.Watched) (*ociruntime.Ended, error) {
	inner, stop := context.WithCancel(ctx)
	defer stop()
	type answer struct {
		exit *taskapi.Exit
		err  error
	}
	answers, ended := make(chan answer, 1), make(chan error, 1)
	go func() {
		exit, err := r.wait(inner, st, w)
		answers <- answer{exit, err}
	}()
	if w.Pidfd != nil {
		go func() { ended <- sysproc.AwaitExit(inner, w.Pidfd) }()
	}
	var late <-chan time.Time
	var byProgram <-chan struct{}
	if w.ExecID == "" {
		byProgram = r.all.ends.channel(w.ContainerID)
	}
	for {
		select {
		case <-byProgram:
			return &ociruntime.Ended{Known: true, Code: killedCode, At: time.Now()}, nil
		case a := <-answers:
			switch {
			case ctx.Err() != nil:
				return nil, ctx.Err()
			case a.err != nil:
				return r.lost(ctx, st, w, a.err)
			}
			end := r.known(f, w, a.exit)
			if r.isSandbox(st.Pod, w.ContainerID) {
				end.Message = fmt.Sprintf("the shim of handler %q has reported the end of the sandbox", r.handler.Name)
			}
			return end, nil
		case err := <-ended:
			if err != nil {
				return nil, err
			}
			late = time.After(answerTimeout)
		case <-late:
			if r.isGuest(st, w) {
				return &ociruntime.Ended{Message: "the sandbox has ended, and the container with it"}, nil
			}
			return &ociruntime.Ended{}, nil // the kernel may have the code
		}
	}
}

// known is what the shim says of an exit. That of an init is recorded.
func (r *Runtime) known(f files, w *ociruntime.Watched, exit *taskapi.Exit) *ociruntime.Ended {
	if w.ExecID == "" {
		if err := writeJSON(filepath.Join(f.dir, exitName), savedExit{Code: exit.Code, At: exit.At}); err != nil {
			r.all.log.Warn("cannot record what a shim says of an exit", "container", w.ContainerID, "error", err)
		}
	}
	return &ociruntime.Ended{Known: true, Code: exit.Code, At: exit.At}
}

// wait returns what the shim says of an exit. A connection that ends is made again.
func (r *Runtime) wait(ctx context.Context, st *state, w *ociruntime.Watched) (exit *taskapi.Exit, err error) {
	for try := 0; ; try++ {
		client, err := r.all.client(ctx, st.Pod)
		if err == nil {
			began := time.Now()
			if r.isSandbox(st.Pod, w.ContainerID) {
				exit, err = client.WaitSandbox(ctx, w.ContainerID)
			} else {
				exit, err = client.Wait(ctx, w.ContainerID, w.ExecID)
			}
			if time.Since(began) > steadyAfter {
				try = 0
			}
		}
		lost := errors.Is(err, taskapi.ErrClosed) || errors.Is(err, errs.Unavailable)
		if err == nil || ctx.Err() != nil || !lost || try == reconnects {
			return exit, err
		}
		found, readErr := r.all.readPod(st.Pod)
		if readErr != nil || !found.lives() {
			return nil, err
		}
		select {
		case <-ctx.Done():
		case <-time.After(reconnectPause):
		}
	}
}

// lost ends the processes of a container whose shim does not report their exit any more. A shim that lives may
// have forgotten an exec, or fail to watch it: then only that one's exit code is in doubt, and lost waits for its
// end.
func (r *Runtime) lost(ctx context.Context, st *state, w *ociruntime.Watched, cause error) (*ociruntime.Ended, error) {
	message := fmt.Sprintf("the shim of handler %q has ended, and the container with it", r.handler.Name)
	found, err := r.all.readPod(st.Pod)
	lives := err == nil && found.lives()
	// A shim that lives may be another one, which a later container of the pod has got. It does not find this container.
	if w.ExecID == "" && (!lives || errors.Is(cause, errs.NotFound)) {
		if exit := r.all.files(w.ContainerID).ofShim(); exit != nil {
			return r.known(r.all.files(w.ContainerID), w, exit), nil // it had ended before the shim
		}
	}
	if lives && w.ExecID != "" {
		r.all.log.Warn("a shim does not watch an exec; its exit code may be unknown",
			"container", w.ContainerID, "exec", w.ExecID, "handler", r.handler.Name, "error", cause)
		return &ociruntime.Ended{}, awaitPidfd(ctx, w)
	}
	if lives {
		message = fmt.Sprintf("the shim of handler %q does not report the exit of the container, which was killed: %v", r.handler.Name, cause)
	}
	if w.ExecID == "" {
		r.all.log.Error("a shim does not watch a container any more; killing the container",
			"container", w.ContainerID, "pod", st.Pod, "handler", r.handler.Name, "error", cause)
	}
	killing, stop := context.WithTimeout(ctx, killTimeout)
	defer stop()
	if err := st.Cgroups.Kill(killing); err != nil {
		r.all.log.Error("cannot kill a container whose shim has ended", "container", w.ContainerID, "error", err)
	}
	if w.ExecID == "" {
		if err := r.endSandbox(killing, st, w, found); err != nil {
			r.all.log.Error("a shim has ended, and its container has not", "container", w.ContainerID, "error", err)
		}
	}
	if r.isGuest(st, w) { // what ended it is the end of the sandbox
		return &ociruntime.Ended{Known: true, Code: killedCode, At: time.Now(), Message: message}, awaitPidfd(ctx, w)
	}
	return &ociruntime.Ended{Message: message}, awaitPidfd(ctx, w)
}

// endSandbox kills the sandbox of a container whose shim does not report its end: nothing else ends the container, and the
// pod goes with it. Nil when the container is no sandbox, and in none.
func (r *Runtime) endSandbox(ctx context.Context, st *state, w *ociruntime.Watched, found *podState) error {
	switch {
	case r.isSandbox(st.Pod, w.ContainerID):
		return r.all.killStarted(ctx, st.Pod, found)
	case r.handler.IsSandbox && w.Pidfd != nil:
		return killSandbox(w.Pidfd)
	}
	return nil
}

// awaitPidfd waits for the end of a process. It returns at once when there is no pidfd.
func awaitPidfd(ctx context.Context, w *ociruntime.Watched) error {
	if w.Pidfd == nil {
		return nil
	}
	return sysproc.AwaitExit(ctx, w.Pidfd)
}

// Flush returns when the whole output of a process that has ended is in its streams, and lets the shim forget
// the process. The shim then says a last time how it has ended, also when it was too late for Await.
func (r *Runtime) Flush(ctx context.Context, w *ociruntime.Watched) (*ociruntime.Ended, error) {
	f, end := r.all.files(w.ContainerID), &ociruntime.Ended{}
	st, err := f.read()
	if err != nil {
		return end, err
	}
	if w.ExecID == "" && (f.deleted() || r.isSandbox(st.Pod, w.ContainerID)) {
		return end, nil
	}
	ctx, stop := context.WithTimeout(ctx, flushTimeout)
	defer stop()
	client, err := r.all.client(ctx, st.Pod)
	var exit *taskapi.Exit
	if err == nil {
		exit, err = client.Delete(ctx, w.ContainerID, w.ExecID)
	}
	if err == nil {
		end = r.known(f, w, exit)
	}
	f.awaitRelay(ctx, w.ExecID)
	if errs.IgnoreNotFound(err) != nil {
		return end, r.handler.fault(ctx, stageDelete, err)
	}
	return end, nil
}
