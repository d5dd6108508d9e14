//go:build integration

package server_test

import (
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

// overFaultyShim has a real shim with a fault make the containers.
func (h *host) overFaultyShim(fault string) *host {
	h.t.Helper()
	require.Binary(h.t, "runc")
	real := require.Binary(h.t, "containerd-shim-runc-v2") // the fake shim speaks version 2 of the task API
	program := filepath.Join(h.dir, "containerd-shim-runc-v2")
	if err := shimtest.Write(program, h.dir, real, fault); err != nil {
		h.t.Fatal(err)
	}
	return h.overShim(program)
}

// TestShimStartsAnother: a shim that answers a start with another process is refused, and nothing of its container
// is left.
func TestShimStartsAnother(t *testing.T) {
	h := newHost(t).overFaultyShim(shimtest.OtherStart).keep()
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
	h := newHost(t).overFaultyShim(shimtest.Forgetful).keep()
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
	fake := func(fault string) string { return fmt.Sprintf("exec %s %s %s \"$@\"", self, shimtest.Role, fault) }
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

// TestDeletionOutlivesSupervisor: a deletion by a shim's program goes on when the supervisor dies, and the removal of the
// next supervisor waits for its end.
func TestDeletionOutlivesSupervisor(t *testing.T) {
	require.Binary(t, "runc")
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	h := newHost(t)
	program := filepath.Join(h.dir, "containerd-shim-bad-v2")
	text := fmt.Sprintf(`#!/bin/sh
export FAKE_DIR=%s
for a in "$@"; do [ "$a" = delete ] && {
	mkdir $0.busy || echo two at once >> $0.log
	echo begin >> $0.log; sleep 0.5; echo end >> $0.log
	rmdir $0.busy; exit 0
}; done
exec %s %s outside "$@"
`, h.dir, self, shimtest.Role)
	if err := os.WriteFile(program, []byte(text), 0o755); err != nil {
		t.Fatal(err)
	}
	log := func() string { data, _ := os.ReadFile(program + ".log"); return string(data) }
	h.overShim(program).keep()
	go func() { _, _ = h.client.Create(h.ctx(), h.bundle("bad", []string{"/bin/sleep", "1000"})) }() // it fails, or is lost
	h.eventually("begin of the deletion", func() bool { return log() == "begin\n" })
	h.crash()
	h.eventually("removal", func() bool { return h.client.Remove(h.ctx(), "bad") == nil })
	if got := log(); strings.Contains(got, "two") || strings.Count(got, "begin") != strings.Count(got, "end") {
		t.Errorf("the deletions: %q", got)
	}
	h.assertNoFake()
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
