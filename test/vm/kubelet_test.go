//go:build vm

package vm

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/berthrun/berth/internal/require"
	"github.com/berthrun/berth/test/harness"
	"github.com/berthrun/berth/test/harness/kubelet"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

func TestKubeletWithTheSystemdDriver(t *testing.T) {
	b := harness.Installed(t)
	k := kubelet.Start(t, b, kubelet.Options{CgroupDriver: "systemd"})
	var names []string
	begin := time.Now()
	period := max(time.Second, require.Patience(time.Second)/2)
	for name, manifest := range kubelet.Manifests(10, period) {
		k.Add(name, manifest)
		names = append(names, name)
	}
	k.AwaitReady(names...)
	t.Logf("ten pods ready %v after the kubelet's start", time.Since(begin).Round(100*time.Millisecond))
	checkSlices(t, b)
	before := k.Restarts()
	for _, step := range []struct {
		what string
		do   func()
	}{
		{"kill of the kubelet", func() { k.Kill(); k.Launch() }},
		{"daemon-reload", func() { harness.Systemctl(t, "daemon-reload") }},
		{"restart of the daemon", func() { harness.Systemctl(t, "restart", harness.DaemonUnit) }},
		{"restart of the supervisor", func() { harness.Systemctl(t, "restart", harness.SupervisorUnit) }},
		{"kill of the daemon", func() {
			pid := harness.MainPid(t, harness.DaemonUnit)
			harness.Kill(t, pid)
			awaitActive(b, harness.DaemonUnit, pid)
		}},
		{"kill of the supervisor", func() { harness.Kill(t, b.SupervisorPid()) }},
		{"kill of the keeper", func() { harness.Kill(t, b.KeeperPid()) }},
	} {
		step.do()
		b.AwaitAnswer()
		k.AwaitReady(names...)
		t.Logf("%v: ready after the %s", time.Since(begin).Round(time.Second), step.what)
	}
	time.Sleep(3 * period) // a round of probes shows restarts that these would cause
	k.AwaitReady(names...)
	for name, count := range k.Restarts() {
		if count != before[name] {
			t.Errorf("%s was restarted %d times", name, count-before[name])
		}
	}
	for _, sandbox := range sandboxes(t, b) {
		if sandbox.Metadata.Attempt != 0 {
			t.Errorf("sandbox of %s is attempt %d, want 0", sandbox.Metadata.Name, sandbox.Metadata.Attempt)
		}
	}
	for _, name := range names {
		k.Remove(name)
	}
	k.Await("all pods to be gone", func() bool { return len(k.Pods()) == 0 && len(sandboxes(t, b)) == 0 })
	k.Await("their slices to be gone", func() bool { return len(podSlices(t)) == 0 })
}

// checkSlices: every container is a scope in the slice that the kubelet created for its pod.
func checkSlices(t *testing.T, b *harness.Berth) {
	t.Helper()
	if slices := podSlices(t); len(slices) != 10 {
		t.Errorf("%d slices of pods, want 10", len(slices))
	}
	list, err := b.Runtime.ListContainers(b.Ctx(), &runtimeapi.ListContainersRequest{
		Filter: &runtimeapi.ContainerFilter{State: &runtimeapi.ContainerStateValue{State: runtimeapi.ContainerState_CONTAINER_RUNNING}},
	})
	if err != nil || len(list.Containers) != 20 {
		t.Errorf("%d containers run (%v), want 20", len(list.GetContainers()), err)
	}
	for _, container := range list.GetContainers() {
		uid := strings.ReplaceAll(container.Labels["io.kubernetes.pod.uid"], "-", "_")
		scopes, err := filepath.Glob("/sys/fs/cgroup/kubepods.slice/*/*-pod" + uid + ".slice/" + scopeOf(container.Id))
		if err != nil || len(scopes) != 1 {
			t.Errorf("container %s of pod %s: scopes %v (%v)", container.Id, uid, scopes, err)
			continue
		}
		if container.Metadata.Name == "web" {
			if limit := read(t, scopes[0], "memory.max"); limit != "67108864" {
				t.Errorf("memory.max of %s is %s", scopes[0], limit)
			}
		}
	}
}

// podSlices are the slices of the kubelet's pods.
func podSlices(t *testing.T) []string {
	t.Helper()
	slices, err := filepath.Glob("/sys/fs/cgroup/kubepods.slice/*/*-pod*.slice")
	if err != nil && !os.IsNotExist(err) {
		t.Fatal(err)
	}
	return slices
}

func sandboxes(t *testing.T, b *harness.Berth) []*runtimeapi.PodSandbox {
	t.Helper()
	list, err := b.Runtime.ListPodSandbox(b.Ctx(), &runtimeapi.ListPodSandboxRequest{})
	if err != nil {
		t.Fatal(err)
	}
	return list.Items
}
