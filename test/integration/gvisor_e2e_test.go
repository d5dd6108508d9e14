//go:build integration && e2e

package integration

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berthrun/berth/internal/require"
	"github.com/berthrun/berth/test/harness"
)

// TestGVisor: pods in gVisor, whose shim is BERTH_RUNSC_SHIM (containerd-shim-runsc-v1) with the program runsc beside
// it, on the platforms that need no hardware.
func TestGVisor(t *testing.T) {
	shim := require.Given(t, "BERTH_RUNSC_SHIM", "containerd-shim-runsc-v1 with runsc beside it")
	for _, platform := range []string{"systrap", "ptrace"} {
		t.Run(platform, func(t *testing.T) {
			f := newFields(t, harness.Options{Config: harness.GVisorHandler(t, "gvisor", shim, platform, t.TempDir())}, nil)
			b := f.Berth
			b.NeedsPart(t, harness.Supervisors)
			pods := map[runtimeapi.NamespaceMode]harness.Pod{}
			for _, mode := range []runtimeapi.NamespaceMode{runtimeapi.NamespaceMode_CONTAINER, runtimeapi.NamespaceMode_POD} {
				pods[mode] = runInSandboxOf(b, strings.ToLower(mode.String()), "gvisor", mode, "echo ready; trap 'exit 7' TERM; while :; do sleep 0.05; done")
			}
			if got := b.ExecOut(pods[runtimeapi.NamespaceMode_CONTAINER].Container, "dmesg"); !strings.Contains(got, "Starting gVisor") {
				t.Errorf("the kernel's log: %q", got)
			}
			checkRootContainers(b, pods)
			checkInGVisor(b, pods[runtimeapi.NamespaceMode_POD])
			for _, pod := range pods {
				endAndRemove(b, pod)
			}
			checkNoHandlerState(b)
			for _, pod := range pods {
				// runsc keeps files of the container that was not started.
				left, _ := filepath.Glob("/run/containerd/runsc/berth/*" + pod.Sandbox + "*")
				for _, path := range left {
					if name := filepath.Base(path); strings.HasPrefix(name, pod.Sandbox) || strings.HasPrefix(name, "runsc-") {
						t.Errorf("state of runsc is left: %s", path)
					}
					if err := os.Remove(path); err != nil {
						t.Error(err)
					}
				}
			}
		})
	}
}

// checkInGVisor checks a second container of a pod, commands, exit codes and statistics.
func checkInGVisor(b *harness.Berth, pod harness.Pod) {
	b.T.Helper()
	second := b.Create(pod.Sandbox, b.Container("second", "echo out; echo err >&2; sleep 1; exit 4"), pod.Config)
	b.StartContainer(second)
	if s := b.AwaitExit(second); s.ExitCode != 4 {
		b.T.Errorf("the second container: %v", s)
	}
	waits := b.Create(pod.Sandbox, b.Container("waits", "exit 0"), pod.Config)
	if _, err := b.Runtime.RemoveContainer(b.Ctx(), &runtimeapi.RemoveContainerRequest{ContainerId: waits}); err != nil {
		b.T.Errorf("a container that was not started: %v", err)
	}
	lines, err := harness.LogLines(filepath.Join(pod.Config.LogDirectory, "second", "0.log"))
	if err != nil || len(lines) != 2 {
		b.T.Errorf("log %q %v", lines, err)
	}
	if got := b.Exec(pod.Container, "echo out; echo err >&2; exit 9"); got.ExitCode != 9 || string(got.Stdout) != "out\n" || string(got.Stderr) != "err\n" {
		b.T.Errorf("exec: %v", got)
	}
	short, stop := context.WithTimeout(b.Ctx(), 5*time.Second)
	defer stop()
	_, err = b.Runtime.ExecSync(short, &runtimeapi.ExecSyncRequest{ContainerId: pod.Container, Cmd: []string{"sleep", "1001"}, Timeout: 1})
	if err == nil || errors.Is(err, context.DeadlineExceeded) {
		b.T.Errorf("a command that takes too long: %v", err)
	}
	b.Await("the end of the command", func() bool {
		return !strings.Contains(b.ExecOut(pod.Container, "ps -o args"), "sleep 1001")
	})
	stats, err := b.Runtime.PodSandboxStats(b.Ctx(), &runtimeapi.PodSandboxStatsRequest{PodSandboxId: pod.Sandbox})
	if err != nil || stats.Stats.Linux.Memory.GetWorkingSetBytes().GetValue() < 1<<20 {
		b.T.Errorf("the pod's memory: %v %v", stats, err)
	}
}
