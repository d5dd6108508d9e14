package shim

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	task "github.com/containerd/containerd/api/runtime/task/v2"
	"github.com/containerd/ttrpc"
	"google.golang.org/grpc/codes" //nolint:depguard // what shims answer with
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/emptypb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/supervisor/server/ociruntime"
	"github.com/berthrun/berth/internal/supervisor/server/shim/taskapi"
	"github.com/berthrun/berth/internal/sys/cgroup"
	"github.com/berthrun/berth/internal/sys/sysfd"
	"github.com/berthrun/berth/internal/sys/sysproc"
)

// deadTasks knows how its processes have ended, and says so only when it deletes them.
type deadTasks struct {
	task.TTRPCTaskService
	at time.Time
}

func (d *deadTasks) Wait(context.Context, *task.WaitRequest) (*task.WaitResponse, error) {
	return nil, status.Error(codes.NotFound, "not found")
}

func (d *deadTasks) Delete(_ context.Context, r *task.DeleteRequest) (*task.DeleteResponse, error) {
	if r.ExecID == "gone" {
		return nil, status.Error(codes.NotFound, "not found")
	}
	return &task.DeleteResponse{Pid: 1, ExitStatus: 7, ExitedAt: timestamppb.New(d.at)}, nil
}

// servedShim has a container "box", whose shim is tasks in this process.
func servedShim(t *testing.T, tasks task.TTRPCTaskService) *Runtime {
	t.Helper()
	s, err := New(t.TempDir(), nil, nil, slog.New(slog.DiscardHandler), nil)
	if err != nil {
		t.Fatal(err)
	}
	socket := filepath.Join(t.TempDir(), "s")
	listener, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	server, err := ttrpc.NewServer()
	if err != nil {
		t.Fatal(err)
	}
	task.RegisterTTRPCTaskService(server, tasks)
	t.Cleanup(func() { server.Close() })
	go func() { _ = server.Serve(context.Background(), listener) }()
	self, err := sysproc.ReadProc(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	for _, dir := range []string{s.podDir("pod"), s.files("box").dir} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	found := &podState{Address: taskapi.Address{Socket: socket, Version: 2}, Processes: []process{{os.Getpid(), self.Start}}}
	if err := writeJSON(filepath.Join(s.podDir("pod"), podName), found); err != nil {
		t.Fatal(err)
	}
	st := &state{Pod: "pod", Cgroups: cgroup.Paths{}}
	if err := writeJSON(filepath.Join(s.files("box").dir, stateName), st); err != nil {
		t.Fatal(err)
	}
	return s.Of(Handler{Name: "test", Path: "/shim"})
}

// An exec that a living shim does not find ends as one whose code is not known. The container is not ended: the
// message would say so.
func TestAwaitForgottenExec(t *testing.T) {
	r := servedShim(t, &deadTasks{})
	end, err := r.Await(t.Context(), &ociruntime.Watched{ContainerID: "box", ExecID: "gone"})
	if err != nil || *end != (ociruntime.Ended{}) {
		t.Errorf("%+v %v", end, err)
	}
}

// Flush has the exit that a shim reports with the deletion. That of an init outlives the shim's.
func TestFlushHasTheExit(t *testing.T) {
	at := time.Unix(1700000000, 0).UTC()
	r := servedShim(t, &deadTasks{at: at})
	for exec, known := range map[string]bool{"": true, "one": true, "gone": false} {
		end, err := r.Flush(t.Context(), &ociruntime.Watched{ContainerID: "box", ExecID: exec})
		if err != nil || end.Known != known || known && (end.Code != 7 || !end.At.Equal(at)) {
			t.Errorf("exec %q: %+v %v", exec, end, err)
		}
	}
	end, err := r.Await(t.Context(), &ociruntime.Watched{ContainerID: "box"})
	if err != nil || !end.Known || end.Code != 7 || !end.At.Equal(at) {
		t.Errorf("after the deletion: %+v %v", end, err)
	}
}

// hangingTasks starts nothing. ended is closed when it has given up the start.
type hangingTasks struct {
	task.TTRPCTaskService
	begun func()
	ended chan struct{}
}

func (h *hangingTasks) Start(ctx context.Context, _ *task.StartRequest) (*task.StartResponse, error) {
	h.begun()
	<-ctx.Done()
	close(h.ended)
	return nil, ctx.Err()
}

// A shim gives up a start with its caller, though the keeper has the connection: the removal of the exec waits
// for the start.
func TestStartThatHangsIsGivenUp(t *testing.T) {
	ctx, stop := context.WithCancel(t.Context())
	tasks := &hangingTasks{begun: stop, ended: make(chan struct{})}
	r := servedShim(t, tasks)
	keeper, own, err := sysfd.SocketPair()
	if err != nil {
		t.Fatal(err)
	}
	defer own.Close()
	defer keeper.Close() // which has the connection in its queue until then
	if _, err := r.startExec(ctx, "pod", &ociruntime.Exec{ContainerID: "box", ID: "one", Pidfd: own}); !errors.Is(err, context.Canceled) {
		t.Errorf("start: %v", err)
	}
	<-tasks.ended
}

// TestExitsOfADeadShim: a shim that has ended may have written how its container has ended. A container in a sandbox ends
// with the sandbox, whose status is not the container's.
func TestExitsOfADeadShim(t *testing.T) {
	at := time.Unix(1700000000, 0).UTC()
	for name, tc := range map[string]struct {
		id        string
		isSandbox bool
		written   string
		want      ociruntime.Ended
		// another: the pod has another shim by now.
		another bool
	}{
		"written":      {"box", false, `{"Timestamp":"2023-11-14T22:13:20Z","Pid":7,"Status":36}`, ociruntime.Ended{Known: true, Code: 36, At: at}, false},
		"another":      {"box", false, `{"Timestamp":"2023-11-14T22:13:20Z","Pid":7,"Status":36}`, ociruntime.Ended{Known: true, Code: 36, At: at}, true},
		"not written":  {"box", false, "", ociruntime.Ended{Message: "the shim of handler \"test\" has ended, and the container with it"}, false},
		"no process":   {"box", false, `{"Timestamp":"2023-11-14T22:13:20Z","Status":36}`, ociruntime.Ended{Message: "the shim of handler \"test\" has ended, and the container with it"}, false},
		"garbage":      {"box", false, `{`, ociruntime.Ended{Message: "the shim of handler \"test\" has ended, and the container with it"}, false},
		"in a sandbox": {"box", true, "", ociruntime.Ended{Known: true, Code: 137, Shared: true, Message: "the shim of handler \"test\" has ended, and the container with it"}, false},
		"the sandbox":  {"pod", true, "", ociruntime.Ended{Message: "the shim of handler \"test\" has ended, and the container with it"}, false},
	} {
		t.Run(name, func(t *testing.T) {
			r := servedShim(t, &deadTasks{at: at})
			r.handler.IsSandbox = tc.isSandbox
			f := r.all.files(tc.id)
			found, err := r.all.readPod("pod")
			if err == nil {
				if !tc.another {
					found.Processes = nil
				}
				err = errors.Join(os.MkdirAll(f.dir, 0o700), writeJSON(filepath.Join(r.all.podDir("pod"), podName), found),
					writeJSON(filepath.Join(f.dir, stateName), &state{Pod: "pod", Cgroups: cgroup.Paths{}}))
			}
			if err == nil && tc.written != "" {
				err = os.WriteFile(filepath.Join(f.dir, shimExitName), []byte(tc.written), 0o600)
			}
			if err != nil {
				t.Fatal(err)
			}
			end, err := r.Await(t.Context(), &ociruntime.Watched{ContainerID: tc.id, Pidfd: endedProcess(t)})
			if err != nil {
				t.Fatal(err)
			}
			if tc.want.At.IsZero() {
				end.At = time.Time{}
			}
			if *end != tc.want {
				t.Errorf("%+v, want %+v", *end, tc.want)
			}
		})
	}
}

// deafTasks does not answer for its container, as gVisor's shim while it waits for the container's output.
type deafTasks struct{ task.TTRPCTaskService }

func (deafTasks) State(ctx context.Context, _ *task.StateRequest) (*task.StateResponse, error) {
	<-ctx.Done()
	return nil, ctx.Err()
}

func (deafTasks) Kill(ctx context.Context, _ *task.KillRequest) (*emptypb.Empty, error) {
	<-ctx.Done()
	return nil, ctx.Err()
}

func (deafTasks) Wait(ctx context.Context, _ *task.WaitRequest) (*task.WaitResponse, error) {
	<-ctx.Done()
	return nil, ctx.Err()
}

// TestKillWithoutAnswer: a container in a sandbox, whose shim does not answer for it, is killed by the shim's program.
func TestKillWithoutAnswer(t *testing.T) {
	t.Parallel()
	r := servedShim(t, deafTasks{})
	r.handler.IsSandbox, r.handler.Path = true, filepath.Join(t.TempDir(), "shim")
	script := "#!/bin/sh\necho \"$@\" >> $0.log\n"
	if err := os.WriteFile(r.handler.Path, []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	ends := make(chan *ociruntime.Ended, 1)
	go func() {
		end, _ := r.Await(t.Context(), &ociruntime.Watched{ContainerID: "box"})
		ends <- end
	}()
	short, stop := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer stop()
	if done, err := r.Signal(short, &ociruntime.Signalled{ContainerID: "box", Signal: syscall.SIGTERM}); !done || !errors.Is(err, errs.Deadline) {
		t.Errorf("SIGTERM: %t %v", done, err)
	}
	if done, err := r.Signal(t.Context(), &ociruntime.Signalled{ContainerID: "box", Signal: syscall.SIGKILL}); !done || err != nil {
		t.Errorf("SIGKILL: %t %v", done, err)
	}
	if log, err := os.ReadFile(r.handler.Path + ".log"); err != nil || !strings.HasSuffix(strings.TrimSpace(string(log)), "delete") || strings.Count(string(log), "\n") != 1 {
		t.Errorf("the program was run as %q, %v", log, err)
	}
	if end := <-ends; end == nil || !end.Known || end.Code != killedCode {
		t.Errorf("the end %+v", end)
	}
}
