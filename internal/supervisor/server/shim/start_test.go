package shim

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	task "github.com/containerd/containerd/api/runtime/task/v2"
	tasktypes "github.com/containerd/containerd/api/types/task"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/supervisor/server/ociruntime"
	"github.com/berthrun/berth/internal/sys/sysproc"
)

// lyingTasks answers a start with a pid, and starts nothing.
type lyingTasks struct {
	task.TTRPCTaskService
	status tasktypes.Status
}

func (l *lyingTasks) Start(context.Context, *task.StartRequest) (*task.StartResponse, error) {
	return &task.StartResponse{Pid: uint32(os.Getpid())}, nil
}

func (l *lyingTasks) State(context.Context, *task.StateRequest) (*task.StateResponse, error) {
	return &task.StateResponse{ID: "box", Pid: uint32(os.Getpid()), Status: l.status}, nil
}

// TestStartThatStartsNothing: a shim that answers, and still has the container as created, has not started it.
func TestStartThatStartsNothing(t *testing.T) {
	pidfd, err := sysproc.OpenPidfd(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	defer pidfd.Close()
	for status, text := range map[tasktypes.Status]string{
		tasktypes.Status_CREATED: "start: it has answered, and has not started the container",
		tasktypes.Status_RUNNING: "", // the host is slow
	} {
		r := servedShim(t, &lyingTasks{status: status})
		err := r.Start(t.Context(), starting(pidfd))
		if text == "" && err != nil || text != "" && !strings.Contains(fmt.Sprint(err), text) {
			t.Errorf("status %s: %v", status, err)
		}
	}
}

func starting(pidfd *os.File) *ociruntime.Starting {
	return &ociruntime.Starting{ID: "box", Pidfd: pidfd, Hold: func(*os.File) error { return nil }}
}

// failingTasks fails a start. The container has the first status before, and the second one after.
type failingTasks struct {
	task.TTRPCTaskService
	before, after tasktypes.Status
}

func (f *failingTasks) Start(context.Context, *task.StartRequest) (*task.StartResponse, error) {
	f.before = f.after
	return nil, errors.New("no luck today")
}

func (f *failingTasks) State(context.Context, *task.StateRequest) (*task.StateResponse, error) {
	return &task.StateResponse{ID: "box", Pid: uint32(os.Getpid()), Status: f.before}, nil
}

// TestResume: a start that was under way when the supervisor died. An init that has ended while its runtime still has
// the file at which it waits has not executed the program, and its code is not the program's.
func TestResume(t *testing.T) {
	ended := endedProcess(t)
	const created, running, stopped = tasktypes.Status_CREATED, tasktypes.Status_RUNNING, tasktypes.Status_STOPPED
	for name, tc := range map[string]struct {
		pidfd         *os.File
		before, after tasktypes.Status
		waits         bool
		kind          error
		text          string
	}{
		"it was given up, and the init ended":       {ended, stopped, stopped, true, errs.State, "the start was not completed"},
		"it was completed, and the program ended":   {ended, stopped, stopped, false, nil, ""},
		"the init was reaped before it was started": {nil, stopped, stopped, true, errs.State, "the start was not completed"},
		"the program was reaped":                    {nil, stopped, stopped, false, nil, ""},
		"the shim has not noticed the end":          {nil, created, created, true, errs.State, "the start was not completed"},
		"it was completed":                          {ended, running, running, false, nil, ""},
		"the init ends during the second start":     {ended, created, stopped, true, errs.State, "the start was not completed"},
		"the program ends during the second start":  {ended, created, stopped, false, nil, ""},
		"the second start fails":                    {ended, created, created, true, nil, "start: no luck today"},
	} {
		t.Run(name, func(t *testing.T) {
			r := servedShim(t, &failingTasks{before: tc.before, after: tc.after})
			r.handler.Root = t.TempDir()
			fifo := filepath.Join(r.handler.Root, namespace, "box", fifoName)
			err := os.MkdirAll(filepath.Dir(fifo), 0o700)
			if err == nil && tc.waits {
				err = os.WriteFile(fifo, nil, 0o600)
			}
			if err != nil {
				t.Fatal(err)
			}
			err = r.Resume(t.Context(), starting(tc.pidfd))
			if tc.text == "" && err != nil || tc.text != "" && !strings.Contains(fmt.Sprint(err), tc.text) || tc.kind != nil && !errors.Is(err, tc.kind) {
				t.Errorf("%v, want %q", err, tc.text)
			}
		})
	}
}

// endedProcess is the pidfd of a process that has ended and is not reaped.
func endedProcess(t *testing.T) *os.File {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "sleep", "1000")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Wait() })
	pidfd, err := sysproc.OpenPidfd(cmd.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { pidfd.Close() })
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	if err := sysproc.AwaitExit(t.Context(), pidfd); err != nil {
		t.Fatal(err)
	}
	return pidfd
}
