//go:build integration

package integration

import (
	"fmt"
	"strings"
	"testing"

	"github.com/berthrun/berth/internal/engine/docker/translate"
	"github.com/berthrun/berth/test/harness"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// held lists the namespaces, mounts and cgroups that name a sandbox.
func held(b *harness.Berth, sandbox string) []string {
	left := harness.FindLeftovers(b.Dir)
	var found []string
	for _, all := range [][]string{left.NetNS, left.Mounts, left.Cgroups} {
		for _, path := range all {
			if strings.Contains(path, sandbox) {
				found = append(found, path)
			}
		}
	}
	return found
}

func stopSandbox(b *harness.Berth, id string) {
	b.T.Helper()
	if _, err := b.Runtime.StopPodSandbox(b.Ctx(), &runtimeapi.StopPodSandboxRequest{PodSandboxId: id}); err != nil {
		b.T.Fatal(err)
	}
}

// TestStoppedPodsHoldNoAddress: a full network has room as soon as its pods are stopped, even
// before they are removed.
func TestStoppedPodsHoldNoAddress(t *testing.T) {
	b := harness.Start(t, harness.Options{NoImages: true, Config: "[network]\nsubnets = [\"10.98.7.0/29\"]\n"})
	const room = 5 // 8 addresses without those of the network, the gateway and the broadcast
	for round := range 3 {
		var ids []string
		for i := range room {
			ids = append(ids, b.RunSandbox(b.Sandbox(fmt.Sprintf("r%d-%d", round, i))))
		}
		for _, id := range ids {
			stopSandbox(b, id)
		}
	}
}

// TestStoppedPodHoldsNothing: a completed pod has only a record, files and logs, also if it had an
// init of its own and a container that was never started. A restart does not change it, and it can
// be removed.
func TestStoppedPodHoldsNothing(t *testing.T) {
	b := harness.Start(t, harness.Options{})
	config := b.Sandbox("shared")
	config.Linux.SecurityContext.NamespaceOptions.Pid = runtimeapi.NamespaceMode_POD
	container := b.Container("c", "echo said; exit 3")
	container.Linux.SecurityContext.NamespaceOptions.Pid = runtimeapi.NamespaceMode_POD
	if b.Refuses(translate.ImageMounts) == nil {
		container.Mounts = []*runtimeapi.Mount{{ContainerPath: "/volume", Readonly: true, Image: &runtimeapi.ImageSpec{Image: harness.Busybox}}}
	}
	sandbox := b.RunSandbox(config)
	ended := b.Create(sandbox, container, config)
	b.StartContainer(ended)
	b.AwaitExit(ended)
	waiting := b.Create(sandbox, b.Container("waiting", "exit 0"), config)
	if len(held(b, sandbox)) == 0 {
		t.Fatal("a sandbox that is ready has nothing that names it")
	}
	for range 2 {
		stopSandbox(b, sandbox)
		if found := held(b, sandbox); len(found) > 0 {
			t.Errorf("a stopped sandbox holds\n%s", strings.Join(found, "\n"))
		}
	}
	check := func(when string) {
		t.Helper()
		status := b.SandboxStatus(sandbox)
		if status.State != runtimeapi.PodSandboxState_SANDBOX_NOTREADY || status.Network.GetIp() != "" {
			t.Errorf("%s: %v", when, status)
		}
		if got := b.Status(ended); got.State != runtimeapi.ContainerState_CONTAINER_EXITED || got.ExitCode != 3 {
			t.Errorf("%s: the container is %v", when, got)
		}
		if got := b.Status(waiting); got.State != runtimeapi.ContainerState_CONTAINER_EXITED {
			t.Errorf("%s: the container that was not started is %v", when, got)
		}
		if lines, err := harness.LogLines(b.Status(ended).LogPath); err != nil || strings.Join(lines, "") != "said" {
			t.Errorf("%s: log %q, %v", when, lines, err)
		}
	}
	check("stopped")
	b.KillDaemon()
	b.StartDaemon()
	check("after a restart")
	b.RemovePod(sandbox)
}

// TestKilledStopIsFinished: a daemon that is killed while it stops pods completes the stop at its
// next start.
func TestKilledStopIsFinished(t *testing.T) {
	b := harness.Start(t, harness.Options{NoImages: true})
	var ids []string
	for i := range 12 {
		ids = append(ids, b.RunSandbox(b.Sandbox(fmt.Sprintf("k%d", i))))
	}
	for _, id := range ids {
		go func() { // the daemon dies before it answers all of them
			_, _ = b.Runtime.StopPodSandbox(b.Ctx(), &runtimeapi.StopPodSandboxRequest{PodSandboxId: id})
		}()
	}
	b.Await("the first to be stopping", func() bool {
		for _, id := range ids {
			if b.SandboxStatus(id).State == runtimeapi.PodSandboxState_SANDBOX_NOTREADY {
				return true
			}
		}
		return false
	})
	b.KillDaemon()
	b.StartDaemon()
	// Another call would complete the stop itself.
	for _, id := range ids {
		if b.SandboxStatus(id).State == runtimeapi.PodSandboxState_SANDBOX_NOTREADY {
			b.Await("the start to finish the stop", func() bool { return len(held(b, id)) == 0 })
		}
	}
	for _, id := range ids {
		stopSandbox(b, id)
		if found := held(b, id); len(found) > 0 {
			t.Errorf("holds\n%s", strings.Join(found, "\n"))
		}
	}
}
