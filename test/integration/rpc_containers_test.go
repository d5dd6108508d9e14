//go:build integration

package integration

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/berthrun/berth/test/harness"
	"github.com/berthrun/berth/test/harness/sessions"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

func itoa(n int) string { return strconv.Itoa(n) }

// createContainer: the container exists and has not started. The same request finds it again. A
// sandbox that is not ready and a missing image are reported.
func createContainer(t *testing.T, b *harness.Berth) {
	config := b.Sandbox("create")
	sandbox := b.RunSandbox(config)
	container := b.Container("c", "sleep 1000")
	id := b.Create(sandbox, container, config)
	if s := b.Status(id); s.State != runtimeapi.ContainerState_CONTAINER_CREATED || s.CreatedAt == 0 || s.StartedAt != 0 || len(id) != 64 {
		t.Errorf("container %s: %v", id, s)
	}
	if again := b.Create(sandbox, container, config); again != id {
		t.Errorf("the same request made %s beside %s", again, id)
	}
	create := func(container *runtimeapi.ContainerConfig) error {
		_, err := b.Runtime.CreateContainer(b.Ctx(), &runtimeapi.CreateContainerRequest{PodSandboxId: sandbox, Config: container, SandboxConfig: config})
		return err
	}
	absent := b.Container("absent", "sleep 1000")
	absent.Image.Image = "absent:1"
	checkRefusal(t, create(absent), codes.NotFound, []string{"absent:1"})
	if _, err := b.Runtime.StopPodSandbox(b.Ctx(), &runtimeapi.StopPodSandboxRequest{PodSandboxId: sandbox}); err != nil {
		t.Fatal(err)
	}
	checkRefusal(t, create(b.Container("late", "sleep 1000")), codes.FailedPrecondition, []string{"not ready"})
}

// startStopRemove: a stop sends a signal, and kills after the grace period. A removal needs no
// stop. Both can be repeated.
func startStopRemove(t *testing.T, b *harness.Berth) {
	const trap = "trap 'exit 3' TERM; echo up; while :; do sleep 0.05; done"
	pod := b.RunPod("start", trap)
	b.Await("the trap", func() bool { lines, _ := harness.LogLines(pod.LogFile); return len(lines) > 0 })
	if s := b.Status(pod.Container); s.State != runtimeapi.ContainerState_CONTAINER_RUNNING || s.StartedAt < s.CreatedAt {
		t.Errorf("started: %v", s)
	}
	for range 2 {
		if _, err := b.Runtime.StopContainer(b.Ctx(), &runtimeapi.StopContainerRequest{ContainerId: pod.Container, Timeout: 20}); err != nil {
			t.Fatal(err)
		}
	}
	if s := b.Status(pod.Container); s.State != runtimeapi.ContainerState_CONTAINER_EXITED || s.ExitCode != 3 {
		t.Errorf("stopped: %v", s)
	}
	if _, err := b.Runtime.StartContainer(b.Ctx(), &runtimeapi.StartContainerRequest{ContainerId: pod.Container}); status.Code(err) != codes.FailedPrecondition {
		t.Errorf("start of what has ended: %v", err)
	}
	deaf := b.Create(pod.Sandbox, b.Container("deaf", "trap '' TERM; while :; do sleep 0.05; done"), pod.Config)
	b.StartContainer(deaf)
	if _, err := b.Runtime.StopContainer(b.Ctx(), &runtimeapi.StopContainerRequest{ContainerId: deaf, Timeout: 0}); err != nil {
		t.Fatal(err)
	}
	if s := b.Status(deaf); s.ExitCode != 137 {
		t.Errorf("killed at once: %v", s)
	}
	running := b.Create(pod.Sandbox, b.Container("running", "sleep 1000"), pod.Config)
	b.StartContainer(running)
	pid := initOf(t, b, running)
	for _, id := range []string{running, running, deaf, pod.Container} {
		if _, err := b.Runtime.RemoveContainer(b.Ctx(), &runtimeapi.RemoveContainerRequest{ContainerId: id}); err != nil {
			t.Errorf("remove: %v", err)
		}
	}
	if _, err := os.Stat(filepath.Join("/proc", itoa(pid))); b.Has(harness.ContainerProcesses) && !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the removed container runs: %v", err)
	}
	list, err := b.Runtime.ListContainers(b.Ctx(), &runtimeapi.ListContainersRequest{Filter: &runtimeapi.ContainerFilter{PodSandboxId: pod.Sandbox}})
	if err != nil || len(list.Containers) != 0 {
		t.Errorf("left: %v, %v", list, err)
	}
}

// listContainers: the filters, and the reasons of exits.
func listContainers(t *testing.T, b *harness.Berth) {
	pod := b.RunPod("listed", "sleep 1000")
	made := map[string]string{"c": pod.Container}
	scripts := map[string]string{"fine": "exit 0", "wrong": "exit 5", "big": "tail /dev/zero"}
	wanted := map[string]string{"fine": "Completed 0", "wrong": "Error 5", "big": "OOMKilled 137"}
	if !b.Has(harness.ContainerLimits) {
		scripts["big"], wanted["big"] = "exit 6", "Error 6"
	}
	for name, script := range scripts {
		config := b.Container(name, script)
		config.Linux.Resources.MemoryLimitInBytes = 16 << 20
		made[name] = b.Create(pod.Sandbox, config, pod.Config)
		b.StartContainer(made[name])
	}
	for name, want := range wanted {
		s := b.AwaitExit(made[name])
		if got := s.Reason + " " + itoa(int(s.ExitCode)); got != want || s.FinishedAt < s.StartedAt {
			t.Errorf("%s: %q from %d to %d, want %q", name, got, s.StartedAt, s.FinishedAt, want)
		}
	}
	other := b.RunPod("other", "sleep 1000")
	state := func(s runtimeapi.ContainerState) *runtimeapi.ContainerStateValue {
		return &runtimeapi.ContainerStateValue{State: s}
	}
	for name, c := range map[string]struct {
		filter *runtimeapi.ContainerFilter
		want   int
		has    string
	}{
		"all":                     {nil, 5, other.Container},
		"of a pod":                {&runtimeapi.ContainerFilter{PodSandboxId: pod.Sandbox}, 4, pod.Container},
		"by id":                   {&runtimeapi.ContainerFilter{Id: other.Container}, 1, other.Container},
		"by label":                {&runtimeapi.ContainerFilter{LabelSelector: map[string]string{"container": "big"}}, 1, made["big"]},
		"running":                 {&runtimeapi.ContainerFilter{State: state(runtimeapi.ContainerState_CONTAINER_RUNNING)}, 2, other.Container},
		"of a pod, those running": {&runtimeapi.ContainerFilter{PodSandboxId: pod.Sandbox, State: state(runtimeapi.ContainerState_CONTAINER_RUNNING)}, 1, pod.Container},
	} {
		answer, err := b.Runtime.ListContainers(b.Ctx(), &runtimeapi.ListContainersRequest{Filter: c.filter})
		if err != nil {
			t.Fatal(err)
		}
		found := false
		for _, item := range answer.Containers {
			found = found || item.Id == c.has && item.ImageId != "" && item.Metadata.GetName() != ""
		}
		if len(answer.Containers) != c.want || !found {
			t.Errorf("%s: %v, want %d with %s", name, answer.Containers, c.want, c.has)
		}
	}
}

// reopenLog: output after a rotation is in a new file, earlier output in the old one.
func reopenLog(t *testing.T, b *harness.Berth) {
	pod := b.RunPod("reopen", "echo before; until test -e /tmp/go; do sleep 0.05; done; echo after; sleep 1000")
	said := func(file, line string) func() bool {
		return func() bool { lines, _ := harness.LogLines(file); return strings.Join(lines, " ") == line }
	}
	b.Await("the first line", said(pod.LogFile, "before"))
	if err := os.Rename(pod.LogFile, pod.LogFile+".1"); err != nil {
		t.Fatal(err)
	}
	if _, err := b.Runtime.ReopenContainerLog(b.Ctx(), &runtimeapi.ReopenContainerLogRequest{ContainerId: pod.Container}); err != nil {
		t.Fatal(err)
	}
	b.Exec(pod.Container, "touch /tmp/go")
	b.Await("the second line in the new file", said(pod.LogFile, "after"))
	if !said(pod.LogFile+".1", "before")() {
		t.Error("the rotated file has changed")
	}
}

// streams: each call's URL leads to the container or its ports, by both protocols.
func streams(t *testing.T, b *harness.Berth) {
	config := b.Sandbox("streams")
	sandbox := b.RunSandbox(config)
	serveEcho(b, sandbox, "127.0.0.1:8080", "heard ")
	for name, c := range both(b) {
		container := b.Container(name, "read word; echo read $word")
		container.Stdin, container.StdinOnce = true, true
		id := b.Create(sandbox, container, config)
		b.StartContainer(id)
		var out bytes.Buffer
		code, err := c.Exec(b.Ctx(), id, sessions.Streams{Stdin: strings.NewReader("typed"), Stdout: &out}, "/bin/sh", "-c", "cat; exit 4")
		if err != nil || code != 4 || out.String() != "typed" {
			t.Errorf("%s: exec: code %d, %q, %v", name, code, out.String(), err)
		}
		out.Reset()
		err = c.Attach(b.Ctx(), id, sessions.Streams{Stdin: strings.NewReader("word\n"), Stdout: &out})
		if err != nil || out.String() != "read word\n" {
			t.Errorf("%s: attach: %q, %v", name, out.String(), err)
		}
		forward, err := c.Forward(b.Ctx(), sandbox)
		if err != nil {
			t.Fatal(err)
		}
		if answer, err := forward.Say(8080, name); err != nil || answer != "heard "+name {
			t.Errorf("%s: port-forward: %q, %v", name, answer, err)
		}
		forward.Close()
	}
}
