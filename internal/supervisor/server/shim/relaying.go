package shim

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"time"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/supervisor/server/ociruntime"
	"github.com/berthrun/berth/internal/supervisor/server/shim/relay"
	"github.com/berthrun/berth/internal/supervisor/server/shim/taskapi"
	"github.com/berthrun/berth/internal/sys/sysfd"
	"github.com/berthrun/berth/internal/sys/sysproc"
)

// readerTimeout bounds the wait for a shim that opens an input.
const readerTimeout = 10 * time.Second

// streams are those of a process as the shim gets them: paths of files that this process has open until close.
type streams struct {
	paths taskapi.Stdio
	pod   *podState
	// input is what the shim reads, nil for none.
	input *os.File
	// begun is closed when the shim has opened its streams, nil without a relay.
	begun *os.File
	files []*os.File
}

// streamsOf prepares the streams of a process. It starts a relay for an input, and for a terminal.
func (r *Runtime) streamsOf(pod, id, execID string, io *ociruntime.StdIO) (_ *streams, err error) {
	s := &streams{paths: taskapi.Stdio{Stdout: pathOf(io.Stdout), Stderr: pathOf(io.Stderr)}}
	if io.Stdin == nil && io.Console == nil {
		return s, nil
	}
	defer func() {
		if err != nil {
			s.close()
		}
	}()
	if s.pod, err = r.all.readPod(pod); err != nil {
		return nil, err
	}
	toShim, input, err := sysfd.InputPipe(sysfd.Owner{})
	if err != nil {
		return nil, err
	}
	defer input.Close()
	s.input, s.files = toShim, append(s.files, toShim)
	s.paths.Stdin = pathOf(toShim)
	order := relay.Order{Address: s.pod.Address, Namespace: namespace, ID: id, Exec: execID, Terminal: io.Console != nil, Record: r.all.files(id).relay(execID)}
	given := []*os.File{nil, input, io.Stdin}
	if order.Terminal {
		output, fromShim, err := sysfd.InputPipe(sysfd.Owner{})
		if err != nil {
			return nil, err
		}
		defer output.Close()
		s.files = append(s.files, fromShim)
		s.paths.Terminal, s.paths.Stdout, s.paths.Stderr = true, pathOf(fromShim), ""
		given = []*os.File{nil, input, io.Console, output}
	}
	begun, ours, err := sysfd.InputPipe(sysfd.Owner{})
	if err != nil {
		return nil, err
	}
	defer begun.Close()
	given[0], s.begun = begun, ours
	started, err := startRelay(&order, given)
	if err == nil { // it does not end by itself before close
		err = writeJSON(order.Record, relayRecord{started, order.Terminal})
	}
	return s, err
}

// relayRecord names the process that a relay is. Terminal is true when the output goes through it.
type relayRecord struct {
	process
	Terminal bool `json:"terminal,omitempty"`
}

// relay is the file with the process that a relay is, by the id of an exec. The relay removes it before it ends by itself.
func (f files) relay(execID string) string {
	return filepath.Join(f.dir, "berth-relay-"+execID+".json")
}

// relayTimeout bounds the wait for the end of a relay: another process may have the terminal open.
const relayTimeout = 2 * time.Second

// awaitRelay returns when the relay of a process that has ended has passed on the whole output of its terminal.
func (f files) awaitRelay(ctx context.Context, execID string) {
	var started relayRecord
	if readJSON(f.relay(execID), &started) != nil || !started.Terminal {
		return // there is none, or it has ended
	}
	ctx, stop := context.WithTimeout(ctx, relayTimeout)
	defer stop()
	if pidfd, err := started.open(); err == nil {
		_ = sysproc.AwaitExit(ctx, pidfd) // the output goes on
		pidfd.Close()
	}
	if ctx.Err() == nil {
		_ = os.Remove(f.relay(execID)) // the last of it goes with the container
	}
}

// relayDied returns true when the relay of a process has been killed, and false when ctx ends, or when the relay has ended by
// itself. Without a relay it returns false at once.
func (f files) relayDied(ctx context.Context, execID string) bool {
	var started relayRecord
	if readJSON(f.relay(execID), &started) != nil {
		return false
	}
	if pidfd, err := started.open(); err == nil {
		err = sysproc.AwaitExit(ctx, pidfd)
		pidfd.Close()
		if err != nil {
			return false
		}
	}
	_, err := os.Lstat(f.relay(execID))
	return err == nil
}

// endWithoutRelay kills a process whose relay was killed, and returns why, for people. The rest of its output and of its
// input would be lost, and the process might wait for them forever. "" when it has ended.
func (r *Runtime) endWithoutRelay(ctx context.Context, st *state, w *ociruntime.Watched) string {
	if w.Pidfd != nil {
		if ended, err := sysproc.PidfdEnded(w.Pidfd); ended && err == nil {
			return ""
		}
	}
	r.all.log.Error("the relay of a process was killed; killing the process", "container", w.ContainerID, "exec", w.ExecID, "handler", r.handler.Name)
	ctx, stop := context.WithTimeout(ctx, killTimeout)
	defer stop()
	done, err := r.Signal(ctx, &ociruntime.Signalled{
		ContainerID: w.ContainerID, ExecID: w.ExecID, Pidfd: w.Pidfd, Signal: syscall.SIGKILL, All: true,
	})
	if !done && err == nil {
		group := st.Cgroups
		if w.ExecID != "" {
			group = ociruntime.ExecGroup(st.Cgroups, w.ExecID)
		}
		if err = group.Kill(ctx); w.Pidfd != nil {
			err = errors.Join(err, errs.IgnoreNotFound(sysproc.SignalPidfd(w.Pidfd, syscall.SIGKILL)))
		}
	}
	if errs.IgnoreNotFound(err) != nil {
		r.all.log.Error("cannot kill a process whose relay was killed", "container", w.ContainerID, "exec", w.ExecID, "error", err)
	}
	return fmt.Sprintf("berth-supervisor %s, which passed on the input or the terminal of the container, was killed, and the container with it",
		relay.Role)
}

// startRelay starts a relay, which ends by itself.
func startRelay(order *relay.Order, files []*os.File) (process, error) {
	text, err := json.Marshal(order)
	if err != nil {
		return process{}, err
	}
	cmd := exec.Command("/proc/self/exe", relay.Role, string(text)) //nolint:noctx // it outlives the call
	cmd.ExtraFiles, cmd.Env, cmd.Stderr = files, []string{"GOMAXPROCS=2"}, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		return process{}, fmt.Errorf("cannot start a relay: %w", err)
	}
	proc, err := sysproc.ReadProc(cmd.Process.Pid) // it is not reaped yet
	go func() { _ = cmd.Wait() }()                 // it logs its own errors
	return process{cmd.Process.Pid, proc.Start}, err
}

// null is the stream of a process that has none.
const null = "/dev/null"

// pathOf returns a path at which a shim can open a stream, while that is open in this process.
func pathOf(f *os.File) string {
	if f == nil {
		return null
	}
	return "/proc/" + strconv.Itoa(os.Getpid()) + "/fd/" + strconv.Itoa(int(f.Fd()))
}

// opened returns when the shim reads the input, and lets the relay begin to close it. Without a reader the relay would
// take the process for one that has ended. A shim of runc first holds the pipe with O_PATH, and opens it later.
func (s *streams) opened(ctx context.Context) {
	if s.input == nil {
		return
	}
	id, err := sysfd.PipeID(s.input)
	if err != nil {
		return
	}
	ctx, stop := context.WithTimeout(ctx, readerTimeout)
	defer stop()
	for ctx.Err() == nil {
		for _, each := range s.pod.Processes {
			if sysproc.ReadsPipe(each.Pid, id) == nil {
				return
			}
		}
		time.Sleep(time.Millisecond)
	}
}

// close closes the files of this process.
func (s *streams) close() {
	closeAll(append(s.files, s.begun))
}

func closeAll(files []*os.File) {
	for _, f := range files {
		if f != nil {
			f.Close()
		}
	}
}
