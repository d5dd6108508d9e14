//go:build integration

package integration

import (
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berthrun/berth/test/harness"
)

// TestPodsOfEveryStateOverARestart: a daemon that restarts after a kill knows the state of each pod
// and container, and can do every remaining step with it.
func TestPodsOfEveryStateOverARestart(t *testing.T) {
	b := harness.Start(t, harness.Options{})
	const created, running, exited = runtimeapi.ContainerState_CONTAINER_CREATED, runtimeapi.ContainerState_CONTAINER_RUNNING, runtimeapi.ContainerState_CONTAINER_EXITED
	type container struct {
		id    string
		state runtimeapi.ContainerState
	}
	pods := map[string][]container{}
	configs := map[string]*runtimeapi.PodSandboxConfig{}
	add := func(name string, states ...runtimeapi.ContainerState) string {
		config := b.Sandbox(name)
		sandbox := b.RunSandbox(config)
		pods[sandbox], configs[sandbox] = nil, config
		for _, state := range states {
			script := "sleep 1000"
			if state == exited {
				script = "exit 9"
			}
			id := b.Create(sandbox, b.Container("c"+itoa(int(state)), script), config)
			if state != created {
				b.StartContainer(id)
			}
			if state == exited {
				b.AwaitExit(id)
			}
			pods[sandbox] = append(pods[sandbox], container{id, state})
		}
		return sandbox
	}
	ready := add("ready", created, running, exited)
	empty := add("empty")
	stopped := add("stopped", created, exited)
	if _, err := b.Runtime.StopPodSandbox(b.Ctx(), &runtimeapi.StopPodSandboxRequest{PodSandboxId: stopped}); err != nil {
		t.Fatal(err)
	}
	before := map[string]*runtimeapi.ContainerStatus{}
	for _, containers := range pods {
		for _, c := range containers {
			before[c.id] = b.Status(c.id)
		}
	}
	b.KillDaemon()
	b.StartDaemon()
	for sandbox, containers := range pods {
		want := runtimeapi.PodSandboxState_SANDBOX_READY
		if sandbox == stopped {
			want = runtimeapi.PodSandboxState_SANDBOX_NOTREADY
		}
		status := b.SandboxStatus(sandbox)
		if status.State != want || (status.Network.GetIp() != "") != (want == runtimeapi.PodSandboxState_SANDBOX_READY) {
			t.Errorf("sandbox %s: %v", configs[sandbox].Metadata.Name, status)
		}
		for _, c := range containers {
			is, was := b.Status(c.id), before[c.id]
			if is.State != was.State || is.ExitCode != was.ExitCode || is.StartedAt != was.StartedAt || is.FinishedAt != was.FinishedAt || is.Reason != was.Reason {
				t.Errorf("container of %s: %v, and was %v", configs[sandbox].Metadata.Name, is, was)
			}
		}
	}
	// Created objects continue from their state.
	b.StartContainer(pods[ready][0].id)
	if got := b.ExecOut(pods[ready][0].id, "echo up"); got != "up" {
		t.Errorf("the container that was not started yet: %q", got)
	}
	late := b.Create(empty, b.Container("late", "exit 4"), configs[empty])
	b.StartContainer(late)
	if s := b.AwaitExit(late); s.ExitCode != 4 {
		t.Errorf("a new container: %v", s)
	}
	if _, err := b.Runtime.StopContainer(b.Ctx(), &runtimeapi.StopContainerRequest{ContainerId: pods[ready][1].id, Timeout: 0}); err != nil {
		t.Error(err)
	}
	if s := b.Status(pods[ready][1].id); s.State != exited || s.ExitCode != 137 {
		t.Errorf("the container that ran on, stopped: %v", s)
	}
	for sandbox := range pods {
		b.RemovePod(sandbox)
	}
	list, err := b.Runtime.ListContainers(b.Ctx(), &runtimeapi.ListContainersRequest{})
	if err != nil || len(list.Containers) != 0 {
		t.Errorf("left: %v, %v", list, err)
	}
}

// TestPodWhoseNamespaceIsDestroyed: another program unmounts a pod's network namespace, or removes
// its file. berth can still stop and remove the pod, before or after a restart, and the next pod
// works.
func TestPodWhoseNamespaceIsDestroyed(t *testing.T) {
	for name, destroy := range map[string]func(path string) error{
		"unmounted": func(path string) error { return unix.Unmount(path, unix.MNT_DETACH) },
		"removed": func(path string) error {
			if err := unix.Unmount(path, unix.MNT_DETACH); err != nil {
				return err
			}
			return os.Remove(path)
		},
	} {
		t.Run(name, func(t *testing.T) {
			b := harness.Start(t, harness.Options{})
			for _, restart := range []bool{false, true} {
				pod := b.RunPod("destroyed", "sleep 1000")
				path := inspectSandbox(t, b, pod.Sandbox).path("network")
				if !strings.HasPrefix(path, "/") {
					t.Fatalf("no namespace: %q", path)
				}
				if err := destroy(path); err != nil {
					t.Fatal(err)
				}
				if restart {
					b.KillDaemon()
					b.StartDaemon()
				}
				if _, err := b.Runtime.PodSandboxStatus(b.Ctx(), &runtimeapi.PodSandboxStatusRequest{PodSandboxId: pod.Sandbox, Verbose: true}); err != nil {
					t.Errorf("status: %v", err)
				}
				b.RemovePod(pod.Sandbox)
				if _, err := os.Lstat(path); !os.IsNotExist(err) {
					t.Errorf("%s is left: %v", path, err)
				}
			}
			next := b.RunPod("next", "sleep 1000")
			if ip := b.SandboxStatus(next.Sandbox).Network.GetIp(); ip == "" || !strings.Contains(b.ExecOut(next.Container, "ip -4 addr show dev eth0"), ip) {
				t.Errorf("the next pod has %q", ip)
			}
			b.RemovePod(next.Sandbox)
		})
	}
}
