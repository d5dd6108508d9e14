//go:build integration

package server_test

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/require"
	"github.com/berthrun/berth/internal/supervisor"
	"github.com/berthrun/berth/internal/supervisor/server/shim/shimtest"
	"github.com/berthrun/berth/internal/sys/sysproc"
)

// overSandboxShim has a shim with the sandbox API, with a fault, make the sandboxes. real makes the containers, "" for none.
func (h *host) overSandboxShim(fault, real string) *host {
	h.t.Helper()
	program := filepath.Join(h.dir, "containerd-shim-runc-v2")
	if err := shimtest.Write(program, h.dir, real, fault); err != nil {
		h.t.Fatal(err)
	}
	return h.overSandboxAPI(program)
}

func (h *host) overSandboxAPI(program string) *host {
	h.overShim(program)
	h.handler.Protocol, h.handler.IsSandbox = supervisor.ProtocolSandbox, true
	return h
}

// sandbox returns the request of a sandbox.
func (h *host) sandbox(pod string) *supervisor.CreateRequest {
	return h.bundle(pod, []string{"sandbox"}, inPod(pod), func(s *specs.Spec, r *supervisor.CreateRequest) {
		s.Root.Path, s.Mounts, s.Linux.CgroupsPath = "/", nil, "/"+h.name+"/shim-"+pod
		r.LogDir, r.LogPath = "", ""
		r.Sandbox = &supervisor.Sandbox{Config: []byte("\x0a\x00"), ConfigType: "runtime.v1.PodSandboxConfig", NetNS: "/run/netns/one"}
	})
}

// runSandbox creates and starts a sandbox, and returns the pid of its process.
func (h *host) runSandbox(pod string) int {
	h.t.Helper()
	made, err := h.client.Create(h.ctx(), h.sandbox(pod))
	if err != nil {
		h.t.Fatal(err)
	}
	pid, err := h.client.Start(h.ctx(), pod)
	if err != nil || pid != made.Pid || !made.InSandbox {
		h.t.Fatalf("%d %v, after %+v", pid, err, made)
	}
	return pid
}

// wantRemoved removes a sandbox, and checks how its shim was ended: deleted says whether berth ran its program.
func (h *host) wantRemoved(pod string, deleted bool) {
	h.t.Helper()
	if err := h.client.Remove(h.ctx(), pod); err != nil {
		h.t.Error(err)
	}
	arguments := shimtest.Deleted(h.dir, pod)
	if (arguments != "") != deleted {
		h.t.Errorf("the program got %q", arguments)
	}
	if want := " -id " + pod + " -bundle " + filepath.Join(h.state, "shims", "pods", pod) + " delete"; deleted && !strings.HasSuffix(arguments, want) {
		h.t.Errorf("the program got %q, want %q", arguments, want)
	}
	if pids := h.shims(); len(pids) > 0 {
		h.t.Errorf("processes of the shim are left: %v", pids)
	}
	h.assertNoFake()
}

// TestSandboxAPI: a shim makes the sandbox by the sandbox API, and containers in it, through deaths of berth's processes.
func TestSandboxAPI(t *testing.T) {
	require.Binary(t, "runc")
	h := newHost(t).overSandboxShim(shimtest.Sandbox, require.Binary(t, "containerd-shim-runc-v2")).keep()
	pid := h.runSandbox("pod")
	if comm, err := os.ReadFile(fmt.Sprintf("/proc/%d/comm", pid)); string(comm) != "sleep\n" {
		t.Errorf("the process of the sandbox is %q, %v", comm, err)
	}
	got, err := shimtest.Request(h.dir, "pod")
	if err != nil || got.SandboxID != "pod" || got.BundlePath != filepath.Join(h.state, "shims", "pods", "pod") || len(got.Rootfs) > 0 ||
		got.NetnsPath != "/run/netns/one" || got.Options.GetTypeUrl() != "runtime.v1.PodSandboxConfig" || string(got.Options.GetValue()) != "\x0a\x00" ||
		got.Annotations["io.kubernetes.cri.sandbox-id"] != "pod" {
		t.Errorf("CreateSandbox got %v, %v", got, err)
	}
	h.run("box", "trap 'exit 5' TERM; echo ready; while :; do sleep 0.05; done", inPod("pod"))
	h.waitLine("box", "ready")
	check := func(when string) {
		t.Helper()
		if out, _, code, err := h.exec("box", "echo here; exit 3"); out != "here\n" || code != 3 || err != nil {
			t.Errorf("%s: exec %q %d %v", when, out, code, err)
		}
		all, err := h.client.List(h.ctx())
		at := slices.IndexFunc(all, func(c supervisor.Container) bool { return c.ID == "pod" })
		if err != nil || at < 0 || all[at].Pid != pid || all[at].State != supervisor.Running {
			t.Errorf("%s: %+v %v", when, all, err)
		}
	}
	check("at first")
	h.crash()
	check("after the death of the supervisor")
	h.loseAll()
	h.beginAgain()
	check("after the death of all")
	if err := h.client.Signal(h.ctx(), "box", syscall.SIGTERM, false); err != nil {
		t.Error(err)
	}
	h.wantExit("box", 5)
	if err := h.client.Signal(h.ctx(), "pod", syscall.SIGTERM, false); err == nil {
		t.Error("a sandbox took SIGTERM")
	}
	if err := h.client.Signal(h.ctx(), "pod", syscall.SIGKILL, true); err != nil {
		t.Error(err)
	}
	h.wantExit("pod", 137)
	// The container that has ended is removed last, as with a pod that has completed.
	h.wantRemoved("pod", false)
	if !shimtest.ShutDown(h.dir, "pod") {
		t.Error("the shim has not got ShutdownSandbox")
	}
}

// TestSandboxAPIEnds: the end of the sandbox, and that of its shim, are reported, and nothing is left. When the shim does not
// report the end, all processes that it has started end with it, before the removal.
func TestSandboxAPIEnds(t *testing.T) {
	const anyCode = -1 // whether the kernel has it depends on its version
	const reported = `the shim of handler "test" has reported the end of the sandbox`
	itself := func(pid int) int { return pid }
	parentOf := func(pid int) int {
		proc, err := sysproc.ReadProc(pid)
		if err != nil {
			t.Error(err)
		}
		return proc.PPid
	}
	for name, tc := range map[string]struct {
		fault   string
		kills   func(pid int) int
		code    int32
		text    string
		lost    bool
		deleted bool
	}{
		"sandbox":  {fault: shimtest.Sandbox, kills: itself, code: 137, text: reported},
		"shim":     {fault: shimtest.Sandbox, kills: parentOf, code: 137, text: `the shim of handler "test" has ended`, lost: true, deleted: true},
		"reported": {fault: shimtest.SandboxEarlyEnd, code: 3, text: reported},
		"unknown":  {fault: shimtest.SandboxNoWait, code: anyCode, text: `the shim of handler "test" does not report the exit`, lost: true, deleted: true},
		"no pid":   {fault: shimtest.SandboxNoPid, kills: itself, code: 137, text: `the shim of handler "test" has ended`, lost: true, deleted: true},
		"shutdown": {fault: shimtest.SandboxNoShutdown, kills: itself, code: 137, deleted: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := newHost(t).overSandboxShim(tc.fault, "").keep()
			pid := h.runSandbox("pod")
			if tc.kills != nil {
				if err := syscall.Kill(tc.kills(pid), syscall.SIGKILL); err != nil {
					t.Error(err)
				}
			}
			if e := h.exit("pod"); e.Code != tc.code && tc.code != anyCode || !strings.Contains(e.Message, tc.text) {
				t.Errorf("exit %+v, want %d and %q", e, tc.code, tc.text)
			}
			if tc.lost {
				h.assertNoFake()
			}
			h.wantRemoved("pod", tc.deleted)
		})
	}
}

// TestSandboxAPIEndsAlone: the shim is killed while no process of berth runs. What it has started ends once one does.
func TestSandboxAPIEndsAlone(t *testing.T) {
	h := newHost(t).overSandboxShim(shimtest.SandboxNoPid, "").keep()
	shim := h.runSandbox("pod")
	h.loseAll()
	if err := syscall.Kill(shim, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	h.beginAgain()
	if e := h.exit("pod"); !strings.Contains(e.Message, `the shim of handler "test" has ended`) {
		t.Errorf("exit %+v", e)
	}
	h.assertNoFake()
	h.wantRemoved("pod", true)
}

// TestSandboxAPICreateCutShort: the supervisor is killed after the shim has started the sandbox, and before it has recorded it.
// The removal of what was partly created ends both.
func TestSandboxAPICreateCutShort(t *testing.T) {
	h := newHost(t).overSandboxShim(shimtest.SandboxHangsState, "").keep()
	created := make(chan error, 1)
	go func() {
		_, err := h.client.Create(h.ctx(), h.sandbox("pod"))
		created <- err
	}()
	h.eventually("start of the sandbox", func() bool {
		_, err := shimtest.Request(h.dir, "pod")
		return err == nil && len(h.shims()) == 2 // the shim, and the process of the sandbox
	})
	h.crash()
	if err := <-created; err == nil {
		t.Error("the create has succeeded")
	}
	h.wantRemoved("pod", false)
}

// TestBadSandboxShims: shims that do not what they should when they create a sandbox. Each error names the handler and the
// stage, and nothing is left.
func TestBadSandboxShims(t *testing.T) {
	for fault, tc := range map[string]struct {
		kind error
		text string
	}{
		shimtest.SandboxRefuses:   {errs.State, "CreateSandbox: no memory for a machine"},
		shimtest.SandboxDies:      {errs.Unavailable, "CreateSandbox: the shim has ended, or has closed its connection"},
		shimtest.SandboxDiesStart: {errs.Unavailable, "StartSandbox: the shim has ended, or has closed its connection"},
		shimtest.SandboxEmpty:     {nil, `SandboxStatus: it has answered with the sandbox ""`},
		shimtest.SandboxOther:     {nil, `SandboxStatus: it has answered with the sandbox "another"`},
		shimtest.SandboxNotReady:  {nil, `SandboxStatus: it has answered with the state "SANDBOX_NOTREADY"`},
		shimtest.SandboxOtherPid:  {nil, "SandboxStatus: it has answered with the pids "},
		shimtest.SandboxForeign:   {nil, "StartSandbox: process 1 is not a descendant of the shim"},
		shimtest.SandboxEnds:      {nil, " of the sandbox has ended"},
		"outside":                 {errs.Unsupported, `CreateSandbox: the shim does not have the sandbox API (sandbox = "runtime" `},
	} {
		t.Run(fault, func(t *testing.T) {
			t.Parallel()
			checkBadSandboxShim(t, fault, patience, tc.kind, tc.text)
		})
	}
}

// checkBadSandboxShim checks the error of a sandbox that a shim with a fault does not create, with the kind if that is not
// nil, and what is left.
func checkBadSandboxShim(t *testing.T, fault string, within time.Duration, kind error, text string) {
	t.Helper()
	h := newHost(t).overSandboxShim(fault, "").keep()
	request := h.sandbox("pod")
	request.StartTimeout = within
	_, err := h.client.Create(h.ctx(), request)
	if err == nil || !strings.Contains(err.Error(), `handler "test"`) || !strings.Contains(err.Error(), text) || !strings.Contains(err.Error(), h.handler.Path) {
		t.Errorf("error %v, want one with handler, program and %q", err, text)
	}
	if kind != nil {
		wantKind(t, err, kind)
	}
	if pids := h.shims(); len(pids) > 0 {
		t.Errorf("processes of the shim are left: %v", pids)
	}
	h.assertNoFake()
}

// TestShimWithoutSandboxAPI: the shim of runc does not have the sandbox API, and the error names the other way.
func TestShimWithoutSandboxAPI(t *testing.T) {
	h := newHost(t).overSandboxAPI(shimProgram(t)).keep()
	_, err := h.client.Create(h.ctx(), h.sandbox("pod"))
	wantKind(t, err, errs.Unsupported)
	for _, text := range []string{`handler "test"`, "CreateSandbox", `sandbox = "runtime"`} {
		if !strings.Contains(fmt.Sprint(err), text) {
			t.Errorf("%v, want %q", err, text)
		}
	}
	if pids := h.shims(); len(pids) > 0 {
		t.Errorf("processes of the shim are left: %v", pids)
	}
}
