package shimtest

import (
	"context"
	"fmt"
	"net"
	"os"
	"time"

	task "github.com/containerd/containerd/api/runtime/task/v2"
	tasktypes "github.com/containerd/containerd/api/types/task"
	"github.com/containerd/ttrpc"
	"google.golang.org/grpc/codes" //nolint:depguard // what shims answer with
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/emptypb"
)

// badTasks answers the calls that a create makes.
type badTasks struct {
	task.TTRPCTaskService
	fault string
}

func (b *badTasks) Create(ctx context.Context, _ *task.CreateTaskRequest) (*task.CreateTaskResponse, error) {
	switch b.fault {
	case "silent":
		<-ctx.Done()
		time.Sleep(time.Hour)
	case "dies":
		os.Exit(1)
	case "nopid":
		return &task.CreateTaskResponse{}, nil
	}
	return &task.CreateTaskResponse{Pid: uint32(os.Getpid())}, nil
}

func (b *badTasks) State(_ context.Context, r *task.StateRequest) (*task.StateResponse, error) {
	answer := &task.StateResponse{ID: r.ID, Pid: uint32(os.Getpid()), Status: tasktypes.Status_CREATED}
	switch b.fault {
	case "otherid":
		answer.ID = "another"
	case "otherpid":
		answer.Pid = 1
	case "runs":
		answer.Status = tasktypes.Status_RUNNING
	}
	return answer, nil
}

func (b *badTasks) Delete(context.Context, *task.DeleteRequest) (*task.DeleteResponse, error) {
	if b.fault == "nodelete" {
		time.Sleep(time.Hour)
	}
	return nil, fmt.Errorf("cannot delete")
}

func (b *badTasks) Shutdown(context.Context, *task.ShutdownRequest) (*emptypb.Empty, error) {
	return nil, fmt.Errorf("cannot shut down")
}

// The faults of a real shim behind one of this package: it does not find its execs, answers a start with another pid, or
// does not answer a start, an exec, a signal, a Wait or a deletion.
const (
	Forgetful   = "forgetful"
	OtherStart  = "other-start"
	HangsStart  = "hangs-start"
	HangsExec   = "hangs-exec"
	HangsKill   = "hangs-kill"
	HangsWait   = "hangs-wait"
	HangsDelete = "hangs-delete"
)

// faultyTasks passes calls to the real shim, but for the fault.
type faultyTasks struct {
	task.TTRPCTaskService
	fault string
}

// realTasks connects to the real shim, and ends with it.
func realTasks(fault string) (task.TTRPCTaskService, error) {
	conn, err := net.Dial("unix", os.Getenv(addressVariable)) //nolint:noctx // it returns at once
	if err != nil {
		return nil, err
	}
	return faultyTasks{task.NewTTRPCTaskClient(ttrpc.NewClient(conn, ttrpc.WithOnClose(func() { os.Exit(0) }))), fault}, nil
}

func (f faultyTasks) Start(ctx context.Context, r *task.StartRequest) (*task.StartResponse, error) {
	if f.fault == HangsStart {
		time.Sleep(time.Hour)
	}
	answer, err := f.TTRPCTaskService.Start(ctx, r)
	if err == nil && f.fault == OtherStart {
		answer.Pid = 1
	}
	return answer, err
}

func (f faultyTasks) Exec(ctx context.Context, r *task.ExecProcessRequest) (*emptypb.Empty, error) {
	if f.fault == HangsExec {
		time.Sleep(time.Hour)
	}
	return f.TTRPCTaskService.Exec(ctx, r)
}

func (f faultyTasks) Kill(ctx context.Context, r *task.KillRequest) (*emptypb.Empty, error) {
	if f.fault == HangsKill {
		time.Sleep(time.Hour)
	}
	return f.TTRPCTaskService.Kill(ctx, r)
}

func (f faultyTasks) Wait(ctx context.Context, r *task.WaitRequest) (*task.WaitResponse, error) {
	if f.fault == Forgetful && r.ExecID != "" {
		return nil, status.Error(codes.NotFound, "process does not exist: not found")
	}
	if f.fault == HangsWait {
		time.Sleep(time.Hour)
	}
	return f.TTRPCTaskService.Wait(ctx, r)
}

func (f faultyTasks) Delete(ctx context.Context, r *task.DeleteRequest) (*task.DeleteResponse, error) {
	if f.fault == HangsDelete {
		time.Sleep(time.Hour)
	}
	return f.TTRPCTaskService.Delete(ctx, r)
}
