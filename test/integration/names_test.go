//go:build integration

package integration

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/berthrun/berth/test/harness"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// TestNamesWithSpacesAndSlashes: berth keeps the names of pods and containers unchanged, and uses
// them as the name of no file or cgroup.
func TestNamesWithSpacesAndSlashes(t *testing.T) {
	b := harness.Start(t, harness.Options{})
	config := b.Sandbox("named")
	config.Metadata.Name, config.Metadata.Namespace = "team a/web + ü", "a b/c"
	container := b.Container("c", "echo hello; sleep 1000")
	container.Metadata.Name = "side car/1;x=y"
	sandbox := b.RunSandbox(config)
	defer b.RemovePod(sandbox)
	created := b.Create(sandbox, container, config)
	b.StartContainer(created)
	again, err := b.Runtime.RunPodSandbox(b.Ctx(), &runtimeapi.RunPodSandboxRequest{Config: config})
	if err == nil || !strings.Contains(err.Error(), created) {
		t.Errorf("a second sandbox of the name: %v, %v", again, err)
	}
	list, err := b.Runtime.ListPodSandbox(b.Ctx(), &runtimeapi.ListPodSandboxRequest{})
	if err != nil || len(list.Items) != 1 || list.Items[0].Metadata.Name != config.Metadata.Name || list.Items[0].Metadata.Namespace != config.Metadata.Namespace {
		t.Errorf("ListPodSandbox: %v, %v", list, err)
	}
	if got := b.Status(created).Metadata.Name; got != container.Metadata.Name {
		t.Errorf("the container is called %q", got)
	}
	b.Await("its log", func() bool {
		lines, err := harness.LogLines(filepath.Join(config.LogDirectory, container.LogPath))
		return err == nil && len(lines) == 1 && lines[0] == "hello"
	})
	b.KillDaemon()
	b.StartDaemon()
	if got := b.Status(created); got.Metadata.Name != container.Metadata.Name || got.State != runtimeapi.ContainerState_CONTAINER_RUNNING {
		t.Errorf("after a restart: %v", got)
	}
	for _, top := range []string{b.Root, b.State} {
		err := filepath.WalkDir(top, func(path string, _ os.DirEntry, err error) error {
			if strings.Contains(path, "team a") || strings.Contains(path, "side car") {
				t.Errorf("a file has the name: %s", path)
			}
			return nil //nolint:nilerr // it was removed meanwhile: its name does not matter
		})
		if err != nil {
			t.Error(err)
		}
	}
}

// TestPIDModeLeftOut: a container whose request has no PID mode has its own PID namespace, or
// shares the pod's if the pod shares it. After its exit berth shows no pid for it.
func TestPIDModeLeftOut(t *testing.T) {
	b := harness.Start(t, harness.Options{})
	for mode, want := range map[runtimeapi.NamespaceMode]string{runtimeapi.NamespaceMode_CONTAINER: "1", runtimeapi.NamespaceMode_POD: "more"} {
		pod := runPodWith(b, "pids", "sleep 1000", func(config *runtimeapi.PodSandboxConfig, container *runtimeapi.ContainerConfig) {
			config.Linux.SecurityContext.NamespaceOptions.Pid = mode
			container.Linux.SecurityContext.NamespaceOptions = nil
		})
		if got := b.ExecOut(pod.Container, "[ $(cat /proc/1/comm) = sleep ] && echo 1 || echo more"); got != want {
			t.Errorf("in a pod of mode %s: pid 1 is its own: %s, want %s", mode, got, want)
		}
		pid := func() int {
			answer, err := b.Runtime.ContainerStatus(b.Ctx(), &runtimeapi.ContainerStatusRequest{ContainerId: pod.Container, Verbose: true})
			if err != nil {
				t.Fatal(err)
			}
			var info struct{ Pid int }
			decode(t, answer.Info, &info)
			return info.Pid
		}
		if pid() == 0 {
			t.Error("no pid of a container that runs")
		}
		if _, err := b.Runtime.StopContainer(b.Ctx(), &runtimeapi.StopContainerRequest{ContainerId: pod.Container}); err != nil {
			t.Fatal(err)
		}
		if got := pid(); got != 0 {
			t.Errorf("a container that has ended has pid %d", got)
		}
		b.RemovePod(pod.Sandbox)
	}
}
