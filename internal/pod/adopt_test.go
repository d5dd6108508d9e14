package pod_test

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berthrun/berth/internal/engine"
	"github.com/berthrun/berth/internal/engine/enginetest"
	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/network"
	"github.com/berthrun/berth/internal/pod"
	"github.com/berthrun/berth/internal/pod/podtest"
)

// formerID is an id as a Docker Engine makes it.
func formerID(name string) string { return strings.Repeat(name, 64) }

// formerPods are a pod that runs, with containers in each state, and one that has ended.
func formerPods(w *podtest.World) *engine.Former {
	container := func(name, sandbox string, state engine.State) *engine.FormerContainer {
		c := &engine.FormerContainer{
			ID: formerID(name), SandboxID: formerID(sandbox), State: state, Config: w.ContainerConfig(name, w.Programs.Sleep),
			ImageID: "sha256:1111", LogPath: w.LogDir + "/" + name + ".log", CreatedAt: 10, StartedAt: 20,
		}
		if state == engine.StateRunning {
			c.Pid = 4711
		}
		return c
	}
	ended := container("2", "a", engine.StateStopped)
	ended.Exit = enginetest.FormerExit(ended.ID, 3)
	clean := container("4", "b", engine.StateStopped)
	clean.Exit = enginetest.FormerExit(clean.ID, 0)
	sandbox := func(name string, running bool) *engine.FormerSandbox {
		config := w.SandboxConfig("former-" + name)
		config.PortMappings = []*runtimeapi.PortMapping{{ContainerPort: 80, HostPort: 8080}}
		sb := &engine.Sandbox{CgroupParent: "/kubepods/" + name}
		if running {
			sb.NetNS = "/run/netns/" + name
		}
		return &engine.FormerSandbox{ID: formerID(name), Config: config, CreatedAt: 5, Running: running, Sandbox: sb}
	}
	return &engine.Former{
		Sandboxes: []*engine.FormerSandbox{sandbox("a", true), sandbox("b", false)},
		Containers: []*engine.FormerContainer{
			container("1", "a", engine.StateRunning), ended, container("3", "a", engine.StateCreated), clean,
		},
	}
}

// assertAdopted checks that a daemon shows the former pods as they are.
func assertAdopted(t *testing.T, s *pod.Service, where string) {
	t.Helper()
	for id, want := range map[string]struct {
		state  runtimeapi.ContainerState
		code   int32
		reason string
	}{
		formerID("1"): {running, 0, ""}, formerID("2"): {exited, 3, "Error"},
		formerID("3"): {created, 0, ""}, formerID("4"): {exited, 0, "Completed"},
	} {
		got, _, err := s.ContainerStatus(t.Context(), id, false)
		if err != nil {
			t.Fatalf("%s: %v", where, err)
		}
		if got.GetState() != want.state || got.GetExitCode() != want.code || got.GetReason() != want.reason || got.GetCreatedAt() != 10 {
			t.Errorf("%s: container %v, want %v", where, got, want)
		}
	}
	up, err := s.SandboxStatus(t.Context(), formerID("a"), false)
	if err != nil {
		t.Fatalf("%s: %v", where, err)
	}
	if got := up.GetStatus(); got.GetState() != ready || got.GetNetwork().GetIp() != "10.42.0.7" {
		t.Errorf("%s: the sandbox that runs is %v", where, got)
	}
	down, err := s.SandboxStatus(t.Context(), formerID("b"), false)
	if err != nil || down.GetStatus().GetState() != notReady {
		t.Errorf("%s: the sandbox that has ended is %v, %v", where, down, err)
	}
}

func TestFormerPodsAreAdopted(t *testing.T) {
	b := newBed(t, nil)
	b.script.Kill()
	b.CloseDaemon(b.s)
	b.fake().AddFormer(formerPods(b.World))
	b.script = podtest.NewScript(nil)
	b.s = b.Daemon(b.script)
	assertAdopted(t, b.s, "the first start")
	podtest.Eventually(t, "what has ended is detached", func() bool { return len(b.Left()) == 1 })
	b.restart()
	assertAdopted(t, b.s, "the second start")
	if err := b.s.StopContainer(t.Context(), formerID("1"), 10); err != nil {
		t.Error(err)
	}
	if got := b.status(formerID("1")); got.GetState() != exited {
		t.Errorf("stopped: %v", got)
	}
	if again := b.mustCreate(formerID("a"), "next", b.Programs.Sleep); again == "" {
		t.Error("no container in an adopted sandbox")
	}
	b.clear()
}

// A daemon that dies at any point of the adoption leaves it to the next one. Nothing is lost and
// nothing is removed.
func TestAdoptionCrashesAnywhere(t *testing.T) {
	for n := 1; ; n++ {
		w := podtest.NewWorld(t, podtest.Fake())
		fake := w.Engine.(*enginetest.Fake)
		fake.AddFormer(formerPods(w))
		script := podtest.CrashAt(n)
		s, err := w.TryDaemon(script)
		if err == nil {
			w.CloseDaemon(s)
		}
		if !script.Reached(n) {
			if n < 20 {
				t.Errorf("%d points only", n-1)
			}
			return
		}
		where := "killed at " + script.Name(n)
		next := w.Daemon(nil)
		assertAdopted(t, next, where)
		for _, id := range []string{formerID("a"), formerID("b")} {
			if err := next.RemoveSandbox(t.Context(), id); err != nil {
				t.Errorf("%s: %v", where, err)
			}
		}
		podtest.Eventually(t, where+": nothing is left", func() bool { return len(w.Leftovers()) == 0 })
		w.CloseDaemon(next)
		if t.Failed() {
			return
		}
	}
}

// blindNetwork finds no address of an adopted sandbox while it is blind.
type blindNetwork struct {
	*podtest.Network
	blind atomic.Bool
}

func (n *blindNetwork) Adopt(ctx context.Context, att *network.Attachment) (*network.Result, error) {
	result, err := n.Network.Adopt(ctx, att)
	if n.blind.Load() {
		return nil, err
	}
	return result, err
}

// TestAdoptionIsRepeated: a sandbox whose adoption has failed, or that has no address yet, is adopted
// again by the next start.
func TestAdoptionIsRepeated(t *testing.T) {
	refuse := func(step string) *podtest.Script {
		return podtest.NewScript(func(_ int, name string) error {
			if name == "before "+step {
				return errs.Unavailable
			}
			return nil
		})
	}
	for what, first := range map[string]struct {
		script *podtest.Script
		blind  bool
	}{
		"the network refuses":        {refuse("network.Adopt"), false},
		"the network has no address": {podtest.NewScript(nil), true},
	} {
		parts := podtest.Fake()
		blind := &blindNetwork{Network: parts.Network.(*podtest.Network)}
		parts.Network = blind
		w := podtest.NewWorld(t, parts)
		w.Engine.(*enginetest.Fake).AddFormer(formerPods(w))
		blind.blind.Store(first.blind)
		w.CloseDaemon(w.Daemon(first.script))
		blind.blind.Store(false)
		second := w.Daemon(nil)
		assertAdopted(t, second, what)
		w.CloseDaemon(second)
	}
	// What is not adopted is not attached: the network would look into a namespace that is not there.
	w := podtest.NewWorld(t, podtest.Fake())
	w.Engine.(*enginetest.Fake).AddFormer(formerPods(w))
	script := refuse("engine.AdoptSandbox")
	w.CloseDaemon(w.Daemon(script))
	if n := script.Count("before network.Adopt"); n != 0 {
		t.Errorf("the network has adopted %d sandboxes that the engine has not", n)
	}
}

// TestPodsAreAdoptedWhole: images that cannot be read leave no container out, and a container without
// a sandbox is left alone.
func TestPodsAreAdoptedWhole(t *testing.T) {
	w := podtest.NewWorld(t, podtest.Fake())
	former := formerPods(w)
	alone := *former.Containers[0]
	alone.ID, alone.SandboxID = formerID("c"), formerID("d")
	former.Containers = append(former.Containers, &alone)
	w.Engine.(*enginetest.Fake).AddFormer(former)
	s := w.Daemon(podtest.NewScript(func(_ int, name string) error {
		if name == "before image.Get" {
			return errs.Unavailable
		}
		return nil
	}))
	assertAdopted(t, s, "without images")
	if got, _, err := s.ContainerStatus(t.Context(), alone.ID, false); !errors.Is(err, errs.NotFound) {
		t.Errorf("a container without a sandbox: %v, %v", got, err)
	}
}

// After a reboot, adopted pods are like berth's own: they have ended, and their network is
// detached.
func TestAdoptedPodsAfterReboot(t *testing.T) {
	b := newBed(t, nil)
	b.script.Kill()
	b.CloseDaemon(b.s)
	b.fake().AddFormer(formerPods(b.World))
	b.script = podtest.NewScript(nil)
	b.s = b.Daemon(b.script)
	podtest.Eventually(t, "tombstones", func() bool {
		return b.tombstones(formerID("1"), "running") && b.tombstones(formerID("2"), "exited") && b.tombstones(formerID("a"), "ready")
	})
	b.reboot(true)
	if got := b.status(formerID("1")); got.GetState() != exited || got.GetExitCode() != 255 {
		t.Errorf("one that ran: %v", got)
	}
	b.assertExit(formerID("2"), 3, "Error")
	podtest.Eventually(t, "the network is detached", func() bool { return len(b.Left()) == 0 })
	b.clear()
}
