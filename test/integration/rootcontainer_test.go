//go:build integration

package integration

import (
	"encoding/json"
	"fmt"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berthrun/berth/internal/require"
	"github.com/berthrun/berth/test/harness"
)

// TestRootContainer: pods of a shim that makes the sandbox have a root container, through deaths of berth's
// processes. runc's shim serves the annotations, too.
func TestRootContainer(t *testing.T) {
	require.Binary(t, "runc")
	require.Binary(t, "containerd-shim-runc-v2")
	f := newFields(t, harness.Options{Config: "[handlers.root]\nkind = \"shim\"\npath = \"io.containerd.runc.v2\"\nsandbox = \"runtime\"\n"}, nil)
	b := f.Berth
	b.NeedsPart(t, harness.Supervisors)
	pods := map[runtimeapi.NamespaceMode]harness.Pod{}
	for _, mode := range []runtimeapi.NamespaceMode{runtimeapi.NamespaceMode_CONTAINER, runtimeapi.NamespaceMode_POD} {
		pods[mode] = runInSandboxOf(b, strings.ToLower(mode.String()), "root", mode, "echo ready; trap 'exit 7' TERM; while :; do sleep 0.05; done")
	}
	pod := pods[runtimeapi.NamespaceMode_POD]
	if got := b.ExecOut(pod.Container, "cat /proc/1/comm"); got != "pod-init" {
		t.Errorf("the first process of a shared PID namespace is %q", got)
	}
	checkRootContainers(b, pods)
	waits := b.Create(pod.Sandbox, b.Container("waits", "exit 0"), pod.Config)
	if _, err := b.Runtime.RemoveContainer(b.Ctx(), &runtimeapi.RemoveContainerRequest{ContainerId: waits}); err != nil {
		t.Errorf("a container that was not started: %v", err)
	}
	for _, pod := range pods {
		endAndRemove(b, pod)
	}
	checkNoHandlerState(b)
}

// checkRootContainers checks pods with root containers, while berth's processes die, and at the end of a root
// container. The first pod lives on.
func checkRootContainers(b *harness.Berth, pods map[runtimeapi.NamespaceMode]harness.Pod) {
	b.T.Helper()
	roots := map[string]int{}
	for _, pod := range pods {
		roots[pod.Sandbox] = rootPid(b, pod.Sandbox)
	}
	check := func(when string) {
		b.T.Helper()
		list, err := b.Runtime.ListContainers(b.Ctx(), &runtimeapi.ListContainersRequest{})
		if err != nil || len(list.GetContainers()) != len(pods) {
			b.T.Errorf("%s: %v %v", when, list, err)
		}
		for mode, pod := range pods {
			if got := b.ExecOut(pod.Container, "echo here"); got != "here" {
				b.T.Errorf("%s, exec with PIDs of the %v: %q", when, mode, got)
			}
			if s := b.SandboxStatus(pod.Sandbox); s.State != runtimeapi.PodSandboxState_SANDBOX_READY {
				b.T.Errorf("%s: %v", when, s)
			}
			if pid := rootPid(b, pod.Sandbox); pid == 0 || pid != roots[pod.Sandbox] {
				b.T.Errorf("%s: the root container had process %d, and has %d", when, roots[pod.Sandbox], pid)
			}
		}
	}
	check("at first")
	harness.Kill(b.T, b.SupervisorPid())
	check("after the death of the supervisor")
	harness.Kill(b.T, b.KeeperPid())
	check("after the death of the keeper")
	b.KillDaemon()
	b.StartDaemon()
	check("after the death of the daemon")

	lost := runInSandboxOf(b, "lost", b.SandboxStatus(pods[runtimeapi.NamespaceMode_CONTAINER].Sandbox).RuntimeHandler,
		runtimeapi.NamespaceMode_CONTAINER, "echo ready; sleep 1000")
	if err := syscall.Kill(rootPid(b, lost.Sandbox), syscall.SIGKILL); err != nil {
		b.T.Fatal(err)
	}
	b.Await("a sandbox whose root container has ended", func() bool {
		return b.SandboxStatus(lost.Sandbox).State == runtimeapi.PodSandboxState_SANDBOX_NOTREADY
	})
	if s := b.AwaitExit(lost.Container); s.Reason == "Unknown" {
		b.T.Errorf("the exit of a container whose sandbox has ended: %v", s)
	}
	answer, err := b.Runtime.PodSandboxStatus(b.Ctx(), &runtimeapi.PodSandboxStatusRequest{PodSandboxId: lost.Sandbox, Verbose: true})
	if err != nil || !strings.Contains(fmt.Sprint(answer.Info), "its own process ended with code") {
		b.T.Errorf("the reason: %v %v", answer, err)
	}
	b.RemovePod(lost.Sandbox)
}

// runInSandboxOf runs a pod of a handler, whose containers have PID namespaces as mode says.
func runInSandboxOf(b *harness.Berth, name, handler string, mode runtimeapi.NamespaceMode, script string) harness.Pod {
	b.T.Helper()
	config := b.Sandbox(name)
	config.Linux.SecurityContext.NamespaceOptions = &runtimeapi.NamespaceOption{Pid: mode}
	answer, err := b.Runtime.RunPodSandbox(b.Ctx(), &runtimeapi.RunPodSandboxRequest{Config: config, RuntimeHandler: handler})
	if err != nil {
		b.T.Fatal(err)
	}
	pod := harness.Pod{Config: config, Sandbox: answer.PodSandboxId, LogFile: filepath.Join(config.LogDirectory, "c", "0.log")}
	container := b.Container("c", script)
	container.Linux.SecurityContext.NamespaceOptions = config.Linux.SecurityContext.NamespaceOptions
	pod.Container = b.Create(pod.Sandbox, container, config)
	b.StartContainer(pod.Container)
	b.Await("the first line", func() bool { lines, _ := harness.LogLines(pod.LogFile); return len(lines) > 0 })
	return pod
}

// rootPid returns the process of a sandbox's root container, 0 when it does not run.
func rootPid(b *harness.Berth, sandbox string) int {
	b.T.Helper()
	answer, err := b.Runtime.PodSandboxStatus(b.Ctx(), &runtimeapi.PodSandboxStatusRequest{PodSandboxId: sandbox, Verbose: true})
	if err != nil {
		b.T.Fatal(err)
	}
	var info struct{ Pid int }
	if err := json.Unmarshal([]byte(answer.Info["info"]), &info); err != nil {
		b.T.Fatal(err)
	}
	if info.Pid <= 1 || syscall.Kill(info.Pid, 0) != nil {
		return 0
	}
	return info.Pid
}

// endAndRemove checks that a container ends by SIGTERM with code 7, and removes its pod.
func endAndRemove(b *harness.Berth, pod harness.Pod) {
	b.T.Helper()
	if _, err := b.Runtime.StopContainer(b.Ctx(), &runtimeapi.StopContainerRequest{ContainerId: pod.Container, Timeout: 20}); err != nil {
		b.T.Error(err)
	}
	if s := b.AwaitExit(pod.Container); s.ExitCode != 7 {
		b.T.Errorf("exit %v", s)
	}
	if lines, err := harness.LogLines(pod.LogFile); err != nil || len(lines) != 1 || !strings.HasSuffix(lines[0], "ready") {
		b.T.Errorf("log %q %v", lines, err)
	}
	b.RemovePod(pod.Sandbox)
}

// checkNoHandlerState checks that nothing is left of handlers and their shims.
func checkNoHandlerState(b *harness.Berth) {
	b.T.Helper()
	for _, pattern := range []string{"handlers/*/*", "supervisor/shims/*/*"} {
		if left, _ := filepath.Glob(filepath.Join(b.State, pattern)); len(left) > 0 {
			b.T.Errorf("state of the handlers is left: %v", left)
		}
	}
}
