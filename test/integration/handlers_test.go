//go:build integration

package integration

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berthrun/berth/internal/require"
	"github.com/berthrun/berth/test/harness"
)

// TestHandlers: pods of several runtime handlers run side by side, through deaths of berth's processes and
// a reload that removes a handler.
func TestHandlers(t *testing.T) {
	runc := require.Binary(t, "runc")
	require.Binary(t, "containerd-shim-runc-v2")
	table := fmt.Sprintf("[handlers.runc]\nkind = \"oci\"\npath = %q\n", runc) +
		"[handlers.same]\nkind = \"builtin\"\nprivileged_without_host_devices = true\n" +
		"[handlers.shim]\nkind = \"shim\"\npath = \"io.containerd.runc.v2\"\n" +
		"[handlers.lost]\nkind = \"shim\"\npath = \"io.containerd.lost.v7\"\n" +
		"[handlers.gone]\nkind = \"oci\"\npath = \"/no/such/runtime\"\n"
	f := newFields(t, harness.Options{Config: table}, nil)
	b := f.Berth
	b.NeedsPart(t, harness.Supervisors)

	status, err := b.Runtime.Status(b.Ctx(), &runtimeapi.StatusRequest{Verbose: true})
	if err != nil {
		t.Fatal(err)
	}
	features := map[string]*runtimeapi.RuntimeHandlerFeatures{}
	for _, h := range status.RuntimeHandlers {
		features[h.Name] = h.Features
	}
	if len(features) != 6 || features["runc"] == nil || features["gone"].GetRecursiveReadOnlyMounts() ||
		features["runc"].GetRecursiveReadOnlyMounts() != features[""].GetRecursiveReadOnlyMounts() ||
		features["shim"].GetRecursiveReadOnlyMounts() != features["runc"].GetRecursiveReadOnlyMounts() {
		t.Errorf("handlers %v", features)
	}
	if info := b.MustCLI("info", "--endpoint", "unix://"+b.Socket); !strings.Contains(info, "runc version") || !strings.Contains(info, "/no/such/runtime") ||
		!strings.Contains(info, "containerd-shim-runc-v2 ") || !strings.Contains(info, "path: containerd-shim-lost-v7") {
		t.Errorf("berth info does not have the handlers: %s", info)
	}

	for handler, texts := range map[string][]string{
		"nobody": {"unable to get OCI runtime", `no runtime for "nobody" is configured (there are gone, lost, runc, same, shim)`},
		"lost":   {"unable to get OCI runtime", `handler "lost"`, "containerd-shim-lost-v7 is not in berth's PATH"},
		"gone":   {"unable to get OCI runtime", `handler "gone"`, "/no/such/runtime"},
	} {
		_, err := b.Runtime.RunPodSandbox(b.Ctx(), &runtimeapi.RunPodSandboxRequest{Config: b.Sandbox(handler), RuntimeHandler: handler})
		for _, text := range texts {
			if !strings.Contains(fmt.Sprint(err), text) {
				t.Errorf("handler %s: %v, want %q", handler, err, text)
			}
		}
	}

	pods := map[string]harness.Pod{}
	for _, handler := range []string{"", "runc", "same", "shim"} {
		pods[handler] = runHandler(b, handler, "echo ready; trap 'exit 7' TERM; while :; do sleep 0.05; done")
	}
	check := func(when string) {
		for handler, pod := range pods {
			if got := b.ExecOut(pod.Container, "echo here"); got != "here" {
				t.Errorf("%s, exec in a pod of %q: %q", when, handler, got)
			}
			if s := b.SandboxStatus(pod.Sandbox); s.State != runtimeapi.PodSandboxState_SANDBOX_READY || s.RuntimeHandler != handler {
				t.Errorf("%s, pod of %q: %v", when, handler, s)
			}
		}
	}
	check("at first")
	harness.Kill(t, b.SupervisorPid())
	check("after the death of the supervisor")
	b.KillDaemon()
	b.StartDaemon()
	check("after the death of the daemon")
	f.reload(t, "[log]\n", "handlers")
	check("after the handlers are gone")
	second := b.Container("second", "exit 4")
	id := b.Create(pods["runc"].Sandbox, second, pods["runc"].Config)
	b.StartContainer(id)
	if s := b.AwaitExit(id); s.ExitCode != 4 {
		t.Errorf("a container of a pod whose handler is gone: %v", s)
	}
	for handler, pod := range pods {
		if _, err := b.Runtime.StopContainer(b.Ctx(), &runtimeapi.StopContainerRequest{ContainerId: pod.Container, Timeout: 20}); err != nil {
			t.Errorf("stop in a pod of %q: %v", handler, err)
		}
		if s := b.AwaitExit(pod.Container); s.ExitCode != 7 {
			t.Errorf("exit in a pod of %q: %v", handler, s)
		}
		lines, err := harness.LogLines(pod.LogFile)
		if err != nil || len(lines) != 1 || !strings.HasSuffix(lines[0], "ready") {
			t.Errorf("log of %q: %q %v", handler, lines, err)
		}
		b.RemovePod(pod.Sandbox)
	}
	for _, pattern := range []string{"handlers/*/*", "supervisor/shims/*/*"} {
		if left, _ := filepath.Glob(filepath.Join(b.State, pattern)); len(left) > 0 {
			t.Errorf("state of the handlers is left: %v", left)
		}
	}
}

// runHandler runs a pod of a handler, whose container runs a script.
func runHandler(b *harness.Berth, handler, script string) harness.Pod {
	b.T.Helper()
	config := b.Sandbox("handler" + handler)
	answer, err := b.Runtime.RunPodSandbox(b.Ctx(), &runtimeapi.RunPodSandboxRequest{Config: config, RuntimeHandler: handler})
	if err != nil {
		b.T.Fatal(err)
	}
	pod := harness.Pod{Config: config, Sandbox: answer.PodSandboxId, LogFile: filepath.Join(config.LogDirectory, "c", "0.log")}
	pod.Container = b.Create(pod.Sandbox, b.Container("c", script), config)
	b.StartContainer(pod.Container)
	b.Await("the first line of "+handler, func() bool { lines, _ := harness.LogLines(pod.LogFile); return len(lines) > 0 })
	return pod
}
