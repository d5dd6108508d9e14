package shimtest

import (
	"context"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"time"

	sandbox "github.com/containerd/containerd/api/runtime/sandbox/v1"
	task "github.com/containerd/containerd/api/runtime/task/v2"
	"google.golang.org/grpc/codes" //nolint:depguard // what shims answer with
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/berthrun/berth/internal/supervisor/server/shim/taskapi"
)

// Sandbox is a shim with the sandbox API and without a fault. The process of its sandbox has a PID namespace of its own.
const Sandbox = "sandbox"

// The faults of shims with the sandbox API.
const (
	SandboxRefuses     = "sandbox-refuses"      // CreateSandbox fails
	SandboxDies        = "sandbox-dies"         // the shim ends in CreateSandbox
	SandboxHangs       = "sandbox-hangs"        // CreateSandbox does not answer
	SandboxHangsStart  = "sandbox-hangs-start"  // StartSandbox does not answer
	SandboxDiesStart   = "sandbox-dies-start"   // the shim ends in StartSandbox, and has started the process
	SandboxHangsState  = "sandbox-hangs-state"  // SandboxStatus does not answer
	SandboxEmpty       = "sandbox-empty"        // all answers are empty, as those of containerd 1.7's runc shim
	SandboxOther       = "sandbox-other"        // SandboxStatus answers with another sandbox
	SandboxNotReady    = "sandbox-not-ready"    // SandboxStatus answers with another state
	SandboxOtherPid    = "sandbox-other-pid"    // SandboxStatus answers with another pid
	SandboxForeign     = "sandbox-foreign"      // the process is not the shim's
	SandboxEnds        = "sandbox-ends"         // the process has ended
	SandboxNoPid       = "sandbox-no-pid"       // the answers have no pid
	SandboxNoWait      = "sandbox-no-wait"      // WaitSandbox fails
	SandboxEarlyEnd    = "sandbox-early-end"    // WaitSandbox answers, and the sandbox goes on
	SandboxStaysOn     = "sandbox-stays-on"     // StopSandbox answers, and does nothing
	SandboxHangsStop   = "sandbox-hangs-stop"   // StopSandbox does not answer
	SandboxNoShutdown  = "sandbox-no-shutdown"  // ShutdownSandbox fails
	SandboxLeavesAfter = "sandbox-leaves-after" // ShutdownSandbox ends nothing
)

func isSandbox(fault string) bool { return strings.HasPrefix(fault, Sandbox) }

// The files of a shim with the sandbox API: the request of CreateSandbox, the arguments of the program's `delete`, and
// one for a ShutdownSandbox.
const (
	requestName  = "request"
	deletedName  = "deleted"
	shutdownName = "shutdown"
)

// Request returns what the shim of a sandbox has got from CreateSandbox. dir is that of Write.
func Request(dir, id string) (*sandbox.CreateSandboxRequest, error) {
	data, err := os.ReadFile(fileIn(dir, id, requestName))
	if err != nil {
		return nil, err
	}
	request := &sandbox.CreateSandboxRequest{}
	return request, proto.Unmarshal(data, request)
}

// Deleted returns the arguments with which the program of a shim was to delete a sandbox, "" when it was not.
func Deleted(dir, id string) string {
	data, _ := os.ReadFile(fileIn(dir, id, deletedName))
	return string(data)
}

// ShutDown reports whether the shim of a sandbox has got ShutdownSandbox.
func ShutDown(dir, id string) bool {
	_, err := os.Stat(fileIn(dir, id, shutdownName))
	return err == nil
}

// sandboxes has the sandbox of a shim.
type sandboxes struct {
	sandbox.TTRPCSandboxService
	fault string
	tasks task.TTRPCTaskService

	mu  sync.Mutex
	cmd *exec.Cmd
	// ended is closed when the process has ended. Then exit is how.
	ended chan struct{}
	exit  *sandbox.WaitSandboxResponse
}

func newSandboxes(fault string, tasks task.TTRPCTaskService) *sandboxes {
	return &sandboxes{fault: fault, tasks: tasks, ended: make(chan struct{})}
}

func hang() { time.Sleep(time.Hour) }

func (s *sandboxes) CreateSandbox(_ context.Context, r *sandbox.CreateSandboxRequest) (*sandbox.CreateSandboxResponse, error) {
	switch s.fault {
	case SandboxRefuses:
		return nil, status.Error(codes.FailedPrecondition, "no memory for a machine")
	case SandboxDies:
		os.Exit(1)
	case SandboxHangs:
		hang()
	}
	data, err := proto.Marshal(r)
	if err == nil {
		err = os.WriteFile(file(r.SandboxID, requestName), data, 0o600)
	}
	return &sandbox.CreateSandboxResponse{}, err
}

func (s *sandboxes) StartSandbox(context.Context, *sandbox.StartSandboxRequest) (*sandbox.StartSandboxResponse, error) {
	switch s.fault {
	case SandboxHangsStart:
		hang()
	case SandboxForeign:
		return &sandbox.StartSandboxResponse{Pid: 1}, nil
	case SandboxEmpty:
		return &sandbox.StartSandboxResponse{}, nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.cmd = exec.CommandContext(context.Background(), "/bin/sleep", "1000")
	s.cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Cloneflags: syscall.CLONE_NEWPID}
	if err := s.cmd.Start(); err != nil {
		return nil, err
	}
	go s.watch()
	switch s.fault {
	case SandboxEnds:
		_ = s.cmd.Process.Kill()
		<-s.ended
	case SandboxDiesStart:
		os.Exit(1)
	}
	return &sandbox.StartSandboxResponse{Pid: s.pid(), CreatedAt: timestamppb.Now()}, nil
}

func (s *sandboxes) watch() {
	_ = s.cmd.Wait()
	code := s.cmd.ProcessState.ExitCode()
	if wait := s.cmd.ProcessState.Sys().(syscall.WaitStatus); wait.Signaled() {
		code = 128 + int(wait.Signal())
	}
	s.exit = &sandbox.WaitSandboxResponse{ExitStatus: uint32(code), ExitedAt: timestamppb.Now()} //nolint:gosec // a code
	close(s.ended)
}

func (s *sandboxes) pid() uint32 {
	if s.cmd == nil || s.fault == SandboxNoPid {
		return 0
	}
	return uint32(s.cmd.Process.Pid) //nolint:gosec // a pid
}

func (s *sandboxes) SandboxStatus(_ context.Context, r *sandbox.SandboxStatusRequest) (*sandbox.SandboxStatusResponse, error) {
	if s.fault == SandboxHangsState {
		hang()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	answer := &sandbox.SandboxStatusResponse{SandboxID: r.SandboxID, Pid: s.pid(), State: taskapi.SandboxReady}
	switch s.fault {
	case SandboxEmpty:
		return &sandbox.SandboxStatusResponse{}, nil
	case SandboxOther:
		answer.SandboxID = "another"
	case SandboxNotReady:
		answer.State = "SANDBOX_NOTREADY"
	case SandboxOtherPid, SandboxForeign:
		answer.Pid = 1
	}
	return answer, nil
}

func (s *sandboxes) WaitSandbox(ctx context.Context, _ *sandbox.WaitSandboxRequest) (*sandbox.WaitSandboxResponse, error) {
	if s.fault == SandboxNoWait || s.fault == SandboxEarlyEnd {
		time.Sleep(300 * time.Millisecond) // until the start has returned
	}
	switch s.fault {
	case SandboxNoWait:
		return nil, status.Error(codes.Unimplemented, "this shim does not have WaitSandbox")
	case SandboxEarlyEnd:
		return &sandbox.WaitSandboxResponse{ExitStatus: 3}, nil
	}
	select {
	case <-s.ended:
		return s.exit, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func (s *sandboxes) StopSandbox(context.Context, *sandbox.StopSandboxRequest) (*sandbox.StopSandboxResponse, error) {
	switch s.fault {
	case SandboxHangsStop:
		hang()
	case SandboxStaysOn:
	default:
		s.kill()
	}
	return &sandbox.StopSandboxResponse{}, nil
}

func (s *sandboxes) kill() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.cmd != nil {
		_ = s.cmd.Process.Kill() // it may have ended
	}
}

func (s *sandboxes) ShutdownSandbox(ctx context.Context, r *sandbox.ShutdownSandboxRequest) (*sandbox.ShutdownSandboxResponse, error) {
	if err := os.WriteFile(file(r.SandboxID, shutdownName), nil, 0o600); err != nil {
		return nil, err
	}
	switch s.fault {
	case SandboxNoShutdown:
		return nil, status.Error(codes.Internal, "cannot shut down")
	case SandboxLeavesAfter:
		return &sandbox.ShutdownSandboxResponse{}, nil
	}
	s.kill()
	if os.Getenv(realVariable) != "" {
		_, _ = s.tasks.Shutdown(ctx, &task.ShutdownRequest{ID: r.SandboxID}) // with which this process ends
	}
	time.AfterFunc(20*time.Millisecond, func() { os.Exit(0) })
	return &sandbox.ShutdownSandboxResponse{}, nil
}
