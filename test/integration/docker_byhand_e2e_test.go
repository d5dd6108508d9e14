//go:build integration && e2e

package integration

import (
	"os"
	"strings"
	"testing"

	"github.com/berthrun/berth/internal/docker/dockertest"
	"github.com/berthrun/berth/internal/engine"
	"github.com/berthrun/berth/test/harness"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// TestContainersByHandUnseen: what happened while berth was down is found.
func TestContainersByHandUnseen(t *testing.T) {
	b := harness.Start(t, harness.Options{Docker: &dockertest.Options{}})
	h := newByHand(b)
	t.Run("remove while berth is down", func(t *testing.T) {
		pod := runUntilBegun(b, "unseen", endsOn7)
		b.KillDaemon()
		h.remove(pod.Container)
		b.StartDaemon()
		if got := b.Status(pod.Container).GetState(); got != runtimeapi.ContainerState_CONTAINER_EXITED {
			t.Errorf("the first answer of the next berth: %v", got)
		}
		h.expect(pod, 255, "Unknown")
	})
	t.Run("restart while berth is down", func(t *testing.T) {
		pod := runUntilBegun(b, "unseen-restart", endsOn7)
		b.KillDaemon()
		h.verb(pod.Container, "restart?t=30")
		b.StartDaemon()
		h.expect(pod, 255, engine.ReasonRestarted)
	})
	t.Run("start while berth is down", func(t *testing.T) {
		pod := runUntilBegun(b, "unseen-start", endsOn7)
		stop(b, pod.Container, 30)
		b.KillDaemon()
		h.verb(pod.Container, "start")
		b.StartDaemon()
		h.expect(pod, 7, "Error")
	})
}

// TestPauseContainersByHand: a sandbox whose pause container ended is not ready, its network is
// detached, and the next attempt runs.
func TestPauseContainersByHand(t *testing.T) {
	b := harness.Start(t, harness.Options{Docker: &dockertest.Options{}})
	h := newByHand(b)
	for name, hand := range map[string]func(pod harness.Pod){
		"stop":    func(pod harness.Pod) { h.verb(pod.Sandbox, "stop?t=1") },
		"restart": func(pod harness.Pod) { h.verb(pod.Sandbox, "restart?t=1") },
		"remove":  func(pod harness.Pod) { h.remove(pod.Sandbox) },
		"unseen-restart": func(pod harness.Pod) {
			b.KillDaemon()
			h.verb(pod.Sandbox, "restart?t=1")
			b.StartDaemon()
		},
		"unseen-remove": func(pod harness.Pod) {
			b.KillDaemon()
			h.remove(pod.Sandbox)
			b.StartDaemon()
		},
	} {
		t.Run(name, func(t *testing.T) {
			pod := runUntilBegun(b, "pause-"+name, endsOn7)
			hand(pod)
			b.Await("the sandbox to be not ready", func() bool {
				return b.SandboxStatus(pod.Sandbox).GetState() == runtimeapi.PodSandboxState_SANDBOX_NOTREADY
			})
			if status := b.AwaitExit(pod.Container); status.GetExitCode() == 0 {
				t.Errorf("status %v", status)
			}
			b.Await("its end", func() bool { return !h.runs(pod.Sandbox) && !h.runs(pod.Container) && len(held(b, pod.Sandbox)) == 0 })
			pod.Config.Metadata.Attempt++
			next := b.RunSandbox(pod.Config)
			container := b.Create(next, b.Container("c", "sleep 10000"), pod.Config)
			b.StartContainer(container)
			if got := b.ExecOut(container, "echo next"); got != "next" {
				t.Errorf("exec: %q", got)
			}
			b.RemovePod(next)
			b.RemovePod(pod.Sandbox)
			if left := h.idOf(pod.Sandbox) + h.idOf(pod.Container); left != "" {
				t.Errorf("left in the engine: %s", left)
			}
		})
	}
	if left, err := os.ReadDir("/run/netns"); err == nil {
		for _, pin := range left {
			if strings.HasPrefix(pin.Name(), "berth-"+harness.InstanceOf(b.State)) {
				t.Errorf("pin %s is left", pin.Name())
			}
		}
	}
}
