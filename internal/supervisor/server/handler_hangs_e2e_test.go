//go:build integration && e2e

package server_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/require"
	"github.com/berthrun/berth/internal/supervisor"
	"github.com/berthrun/berth/internal/supervisor/server/shim/shimtest"
)

// TestHandlerHangs: an OCI runtime that hangs in one of its commands, after its container runs. Each call ends,
// the container lives on and is removed, and no process of the runtime is left.
func TestHandlerHangs(t *testing.T) {
	runc := require.Binary(t, "runc")
	for _, command := range []string{"exec", "update", "delete", "state", "kill"} {
		t.Run(command, func(t *testing.T) {
			t.Parallel()
			h := newHost(t)
			program := filepath.Join(h.dir, "program")
			text := fmt.Sprintf("#!/bin/sh\nfor a in \"$@\"; do [ \"$a\" = %s ] && { (setsid %s &) ; %[2]s; }; done\nexec %s \"$@\"\n", command, sleeperOf(), runc)
			if err := os.WriteFile(program, []byte(text), 0o755); err != nil {
				t.Fatal(err)
			}
			h.over(program).keep()
			h.run("box", "trap 'exit 5' TERM; echo ready; while :; do sleep 0.05; done")
			h.waitLine("box", "ready")
			if command == "exec" {
				short, stop := context.WithTimeout(h.ctx(), 2*time.Second)
				_, err := h.client.Exec(short, execRequest("box", "true"), supervisor.Streams{})
				stop()
				if !errors.Is(err, context.DeadlineExceeded) && !errors.Is(err, errs.Deadline) {
					t.Errorf("exec: %v", err)
				}
			}
			h.crash()
			if err := h.client.Signal(h.ctx(), "box", syscall.SIGTERM, false); err != nil {
				t.Error(err)
			}
			h.wantExit("box", 5)
			if err := h.client.Remove(h.ctx(), "box"); err != nil {
				t.Errorf("remove: %v", err)
			}
		})
	}
	t.Cleanup(func() { newHost(t).assertNoSleeper() })
}

// TestShimHangs: a shim that does not answer one of its calls. Each call ends, the exit is true, and nothing is left.
func TestShimHangs(t *testing.T) {
	for _, fault := range []string{shimtest.HangsStart, shimtest.HangsExec, shimtest.HangsWait, shimtest.HangsDelete} {
		t.Run(fault, func(t *testing.T) {
			t.Parallel()
			h := newHost(t).overFaultyShim(fault).keep()
			request := h.bundle("box", []string{"/bin/sh", "-c", "trap 'exit 5' TERM; echo ready; while :; do sleep 0.05; done"}, inPod("pod"))
			request.StartTimeout = 3 * time.Second
			if _, err := h.client.Create(h.ctx(), request); err != nil {
				t.Fatal(err)
			}
			_, err := h.client.Start(h.ctx(), "box")
			if fault == shimtest.HangsStart {
				wantKind(t, err, errs.Deadline)
				for _, text := range []string{`handler "test"`, "start: it took too long"} {
					if !strings.Contains(fmt.Sprint(err), text) {
						t.Errorf("%v, want %q", err, text)
					}
				}
				if e := h.exit("box"); !e.StartFailed {
					t.Errorf("exit %+v", e)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			h.waitLine("box", "ready")
			if fault == shimtest.HangsExec {
				short, stop := context.WithTimeout(h.ctx(), 2*time.Second)
				_, err := h.client.Exec(short, execRequest("box", "true"), supervisor.Streams{})
				stop()
				if !errors.Is(err, context.DeadlineExceeded) && !errors.Is(err, errs.Deadline) {
					t.Errorf("exec: %v", err)
				}
			}
			h.crash()
			if err := h.client.Signal(h.ctx(), "box", syscall.SIGTERM, false); err != nil {
				t.Error(err)
			}
			h.wantExit("box", 5)
		})
	}
}

// TestSandboxShimHangs: a shim that makes the sandbox, and does not answer signals. The error has handler and stage, and
// berth kills the sandbox itself.
func TestSandboxShimHangs(t *testing.T) {
	h := newHost(t).overFaultyShim(shimtest.HangsKill)
	h.handler.IsSandbox = true
	h.keep()
	h.run("pod", "sleep 1000", inPod("pod"))
	guest := h.run("box", "sleep 1000", inPod("pod"))
	err := h.client.Signal(h.ctx(), "box", syscall.SIGTERM, false)
	wantKind(t, err, errs.Deadline)
	for _, text := range []string{`handler "test"`, "signal: it took too long"} {
		if !strings.Contains(fmt.Sprint(err), text) {
			t.Errorf("%v, want %q", err, text)
		}
	}
	if err := h.client.Signal(h.ctx(), "pod", syscall.SIGKILL, false); err != nil {
		t.Error(err)
	}
	h.wantExit("pod", 137)
	// With a real sandbox, the guest has ended with it.
	if err := syscall.Kill(guest, syscall.SIGKILL); err != nil {
		t.Error(err)
	}
	h.wantExit("box", 137)
}

// TestSandboxAPIHangs: shims with the sandbox API that do not end the sandbox, or themselves. berth kills both, runs the
// program's delete, and nothing is left.
func TestSandboxAPIHangs(t *testing.T) {
	for _, fault := range []string{shimtest.SandboxHangsStop, shimtest.SandboxStaysOn, shimtest.SandboxLeavesAfter} {
		t.Run(fault, func(t *testing.T) {
			t.Parallel()
			h := newHost(t).overSandboxShim(fault, "").keep()
			h.runSandbox("pod")
			h.crash()
			if err := h.client.Signal(h.ctx(), "pod", syscall.SIGKILL, true); err != nil {
				t.Error(err)
			}
			h.wantExit("pod", 137)
			h.wantRemoved("pod", true)
		})
	}
}

// TestSandboxAPIHangsInCreate: shims with the sandbox API that hang while they create the sandbox. The error names the call.
func TestSandboxAPIHangsInCreate(t *testing.T) {
	for fault, call := range map[string]string{
		shimtest.SandboxHangs: "CreateSandbox", shimtest.SandboxHangsStart: "StartSandbox", shimtest.SandboxHangsState: "SandboxStatus",
	} {
		t.Run(fault, func(t *testing.T) {
			t.Parallel()
			checkBadSandboxShim(t, fault, require.Patience(10*time.Second), errs.Deadline, call+": it took too long")
		})
	}
}
