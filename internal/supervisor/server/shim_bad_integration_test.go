//go:build integration

package server_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	task "github.com/containerd/containerd/api/runtime/task/v2"
	tasktypes "github.com/containerd/containerd/api/types/task"
	"github.com/containerd/ttrpc"
	"google.golang.org/grpc/codes" //nolint:depguard // what shims answer with
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/emptypb"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/require"
	"github.com/berthrun/berth/internal/supervisor"
	"github.com/berthrun/berth/internal/supervisor/server/shim/taskapi"
)

// fakeShim is the first argument of the test's program as a shim that does not do what it should. The second
// one says what, and the others are those of a shim.
const fakeShim = "fake-shim"

// runFakeShim is the main function of a fake shim. Its `start` leaves a server, and prints its address.
func runFakeShim(fault string, args []string) {
	socket := filepath.Join(os.Getenv("FAKE_DIR"), "fake.sock")
	if args[0] == "serve" {
		serveFakeShim(fault)
		return
	}
	if isReal(fault) {
		runRealShim(args)
	}
	if args[len(args)-1] != "start" {
		return // delete
	}
	listener, err := net.Listen("unix", socket)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	f, err := listener.(*net.UnixListener).File()
	if err == nil {
		server := exec.Command("/proc/self/exe", fakeShim, fault, "serve")
		server.ExtraFiles = []*os.File{f}
		server.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
		err = server.Start()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	fmt.Print("unix://" + socket)
}

func serveFakeShim(fault string) {
	listener, err := net.FileListener(os.NewFile(3, "listener"))
	if err != nil {
		os.Exit(1)
	}
	if fault == "deaf" {
		time.Sleep(time.Hour)
	}
	if fault == "garbage" {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			fmt.Fprint(conn, "HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\nthis is no ttrpc")
			conn.Close()
		}
	}
	server, err := ttrpc.NewServer()
	if err != nil {
		os.Exit(1)
	}
	if isReal(fault) {
		task.RegisterTTRPCTaskService(server, realTasks(fault))
		_ = server.Serve(context.Background(), listener)
		return
	}
	task.RegisterTTRPCTaskService(server, &badTasks{fault: fault})
	_ = server.Serve(context.Background(), listener)
}

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

// The faults of a real shim behind a fake one: it does not find its execs, answers a start with another pid, or
// does not answer a start, an exec, a signal, a Wait or a deletion.
const (
	forgetful   = "forgetful"
	otherStart  = "other-start"
	hangsStart  = "hangs-start"
	hangsExec   = "hangs-exec"
	hangsKill   = "hangs-kill"
	hangsWait   = "hangs-wait"
	hangsDelete = "hangs-delete"
)

func isReal(fault string) bool {
	return slices.Contains([]string{forgetful, otherStart, hangsStart, hangsExec, hangsKill, hangsWait, hangsDelete}, fault)
}

// realAddress is the environment variable with the address of the real shim.
const realAddress = "FAKE_REAL_ADDRESS"

// runRealShim runs the program of the real shim. It returns after a `start`.
func runRealShim(args []string) {
	cmd := exec.Command(os.Getenv("FAKE_REAL"), args...)
	cmd.Stdin, cmd.Stderr = os.Stdin, os.Stderr
	output, err := cmd.Output()
	var address *taskapi.Address
	if err == nil && args[len(args)-1] == "start" {
		address, err = taskapi.ParseStart(output)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	if address == nil {
		os.Stdout.Write(output)
		os.Exit(0)
	}
	os.Setenv(realAddress, address.Socket)
}

// faultyTasks passes calls to the real shim, but for the fault.
type faultyTasks struct {
	task.TTRPCTaskService
	fault string
}

// realTasks connects to the real shim, and ends with it.
func realTasks(fault string) task.TTRPCTaskService {
	conn, err := net.Dial("unix", os.Getenv(realAddress))
	if err != nil {
		os.Exit(1)
	}
	return faultyTasks{task.NewTTRPCTaskClient(ttrpc.NewClient(conn, ttrpc.WithOnClose(func() { os.Exit(0) }))), fault}
}

func (f faultyTasks) Start(ctx context.Context, r *task.StartRequest) (*task.StartResponse, error) {
	if f.fault == hangsStart {
		time.Sleep(time.Hour)
	}
	answer, err := f.TTRPCTaskService.Start(ctx, r)
	if err == nil && f.fault == otherStart {
		answer.Pid = 1
	}
	return answer, err
}

func (f faultyTasks) Exec(ctx context.Context, r *task.ExecProcessRequest) (*emptypb.Empty, error) {
	if f.fault == hangsExec {
		time.Sleep(time.Hour)
	}
	return f.TTRPCTaskService.Exec(ctx, r)
}

func (f faultyTasks) Kill(ctx context.Context, r *task.KillRequest) (*emptypb.Empty, error) {
	if f.fault == hangsKill {
		time.Sleep(time.Hour)
	}
	return f.TTRPCTaskService.Kill(ctx, r)
}

func (f faultyTasks) Wait(ctx context.Context, r *task.WaitRequest) (*task.WaitResponse, error) {
	if f.fault == forgetful && r.ExecID != "" {
		return nil, status.Error(codes.NotFound, "process does not exist: not found")
	}
	if f.fault == hangsWait {
		time.Sleep(time.Hour)
	}
	return f.TTRPCTaskService.Wait(ctx, r)
}

func (f faultyTasks) Delete(ctx context.Context, r *task.DeleteRequest) (*task.DeleteResponse, error) {
	if f.fault == hangsDelete {
		time.Sleep(time.Hour)
	}
	return f.TTRPCTaskService.Delete(ctx, r)
}

// overFaultyShim has a real shim with a fault make the containers.
func (h *host) overFaultyShim(fault string) *host {
	h.t.Helper()
	require.Binary(h.t, "runc")
	real := require.Binary(h.t, "containerd-shim-runc-v2")
	self, err := os.Executable()
	if err != nil {
		h.t.Fatal(err)
	}
	program := filepath.Join(h.dir, "containerd-shim-runc-v2")
	text := fmt.Sprintf("#!/bin/sh\nexport FAKE_DIR=%s FAKE_REAL=%s\nexec %s %s %s \"$@\"\n", h.dir, real, self, fakeShim, fault)
	if err := os.WriteFile(program, []byte(text), 0o755); err != nil {
		h.t.Fatal(err)
	}
	return h.overShim(program)
}

// TestShimStartsAnother: a shim that answers a start with another process is refused, and nothing of its container
// is left.
func TestShimStartsAnother(t *testing.T) {
	h := newHost(t).overFaultyShim(otherStart).keep()
	pid := h.create("box", "sleep 1000", inPod("pod")).Pid
	_, err := h.client.Start(h.ctx(), "box")
	if want := fmt.Sprintf("start: it has started process 1, and created process %d", pid); err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), `handler "test"`) {
		t.Errorf("%v, want %q", err, want)
	}
	if e := h.exit("box"); !e.StartFailed {
		t.Errorf("exit %+v", e)
	}
}

// TestShimForgetsAnExec: the container of an exec that its shim does not find lives on, and so does the exec.
func TestShimForgetsAnExec(t *testing.T) {
	h := newHost(t).overFaultyShim(forgetful).keep()
	h.run("box", "sleep 1000", inPod("pod"))
	var out strings.Builder
	code, err := h.client.Exec(h.ctx(), execRequest("box", "read word; echo got $word; exit 7"),
		supervisor.Streams{Stdin: strings.NewReader("it\n"), Stdout: &out})
	// Whether the kernel has the code depends on its version.
	if known := err == nil && code == 7; !known && !errors.Is(err, errs.Unavailable) || out.String() != "got it\n" {
		t.Errorf("the command: %d %v %q", code, err, out.String())
	}
	all, err := h.client.List(h.ctx())
	if err != nil || len(all) != 1 || all[0].State != supervisor.Running {
		t.Errorf("the container: %+v %v", all, err)
	}
	if err := h.client.Signal(h.ctx(), "box", syscall.SIGKILL, false); err != nil {
		t.Error(err)
	}
	h.wantExit("box", 137)
}

// TestBadShims: shims that do not what they should. Each error names the handler and the stage, and nothing is
// left: see host.end.
func TestBadShims(t *testing.T) {
	require.Binary(t, "runc")
	sleeper := sleeperOf()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	fake := func(fault string) string { return fmt.Sprintf("exec %s %s %s \"$@\"", self, fakeShim, fault) }
	start := func(script string) string {
		return fmt.Sprintf("for a in \"$@\"; do [ \"$a\" = start ] && { %s; }; done", script)
	}
	for name, tc := range map[string]struct {
		script string
		kind   error
		text   string
	}{
		"fails":      {start("echo one; echo no luck today >&2; exit 3"), nil, "start of the shim: no luck today"},
		"prints":     {start("echo soup"), nil, `start of the shim: it has printed "soup", which is not an address`},
		"nothing":    {start("exit 0"), nil, "start of the shim: it has printed no address"},
		"noprocess":  {start("echo unix://$0.sock"), nil, "start of the shim: it has left no process"},
		"nolistener": {start("echo unix://$0.sock; setsid " + sleeper + " >/dev/null 2>&1 & true"), errs.Unavailable, "start of the shim: cannot connect to the shim"},
		"foreign":    {start("echo unix:///etc/passwd; setsid " + sleeper + " >/dev/null 2>&1 & true"), errs.Unavailable, "start of the shim: cannot connect to the shim"},
		"vsock":      {start("echo vsock://3:1024; setsid " + sleeper + " >/dev/null 2>&1 & true"), errs.Unsupported, `start of the shim: it has the address "vsock://3:1024"`},
		"hangs":      {start("(setsid " + sleeper + " &); " + sleeper), errs.Deadline, "start of the shim: it took too long"},
		"noprogram":  {"", errs.Unavailable, "is not an executable file"},
		"garbage":    {fake("garbage"), errs.Unavailable, "create: the shim has ended, or has closed its connection"},
		"silent":     {fake("silent"), errs.Deadline, "create: it took too long"},
		"deaf":       {fake("deaf"), errs.Deadline, "create: it took too long"},
		"dies":       {fake("dies"), errs.Unavailable, "create: the shim has ended, or has closed its connection"},
		"nopid":      {fake("nopid"), nil, "create: it has answered with the pid 0"},
		"otherid":    {fake("otherid"), nil, `create: it has answered with the state of "another"`},
		"otherpid":   {fake("otherpid"), nil, "create: it has answered with the pids "},
		"runs":       {fake("runs"), nil, "create: it has answered with the status 2"},
		"outside":    {fake("outside"), nil, "is not in the container's cgroup"},
		"leaves":     {start("setsid "+sleeper+" >/dev/null 2>&1 & true") + "; " + fake("outside"), nil, "is not in the container's cgroup"},
		"nodelete":   {fake("nodelete"), nil, "is not in the container's cgroup"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := newHost(t)
			program := filepath.Join(h.dir, "containerd-shim-bad-v2")
			mode := os.FileMode(0o755)
			if tc.script == "" {
				mode = 0o644
			}
			text := fmt.Sprintf("#!/bin/sh\nexport FAKE_DIR=%s\n%s\n", h.dir, tc.script)
			if err := os.WriteFile(program, []byte(text), mode); err != nil {
				t.Fatal(err)
			}
			h.overShim(program).keep()
			request := h.bundle("bad", []string{"/bin/sleep", "1000"})
			request.StartTimeout = patience
			if tc.kind == errs.Deadline { //nolint:errorlint // a kind of the table
				request.StartTimeout = 2 * time.Second
			}
			_, err := h.client.Create(h.ctx(), request)
			if err == nil || !strings.Contains(err.Error(), `handler "test"`) || !strings.Contains(err.Error(), tc.text) || !strings.Contains(err.Error(), program) {
				t.Errorf("error %v, want one with handler, program and %q", err, tc.text)
			}
			if tc.kind != nil {
				wantKind(t, err, tc.kind)
			}
			if pids := h.shims(); len(pids) > 0 {
				t.Errorf("processes of the shim are left: %v", pids)
			}
			h.assertNoFake()
		})
	}
}

// assertNoFake checks that no process is left that a script of this host has started.
func (h *host) assertNoFake() {
	h.t.Helper()
	find := func() (found string) {
		dirs, _ := filepath.Glob("/proc/[0-9]*/environ")
		for _, at := range dirs {
			data, _ := os.ReadFile(at)
			if strings.Contains(string(data), "FAKE_DIR="+h.dir+"\x00") {
				found += at + " "
			}
		}
		return found
	}
	h.eventually("end of the shim's processes", func() bool { return find() == "" })
}
