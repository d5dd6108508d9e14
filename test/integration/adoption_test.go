//go:build integration

package integration

import (
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/client"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berthrun/berth/internal/docker/api"
	"github.com/berthrun/berth/internal/docker/dockertest"
	"github.com/berthrun/berth/test/harness"
)

// formerNode is a berth on a node whose pods cri-dockerd has made.
type formerNode struct {
	*harness.Berth
	client *api.Client
	image  *dockertest.Image
	dir    string
}

// newFormerNode returns a node on which no berth has run yet. Its CNI plugin appends its calls to
// a file.
func newFormerNode(t *testing.T, opts harness.Options) *formerNode {
	t.Helper()
	dir := t.TempDir()
	plugin := fmt.Sprintf("#!/bin/sh\necho \"$CNI_COMMAND $CNI_CONTAINERID $CNI_IFNAME $CNI_NETNS\" >>%s/calls\n"+
		"[ -z \"$CNI_NETNS\" ] || readlink /proc/self/ns/net >/dev/null\necho '{}'\n", dir)
	must(t, errors.Join(
		os.MkdirAll(filepath.Join(dir, "bin"), 0o755), os.WriteFile(filepath.Join(dir, "bin", "fake"), []byte(plugin), 0o755),
		os.MkdirAll(filepath.Join(dir, "cri-dockerd", "sandbox"), 0o755), os.MkdirAll(filepath.Join(dir, "cache", "results"), 0o755),
	))
	if opts.Docker == nil {
		opts.Docker = &dockertest.Options{LiveRestore: true}
	}
	opts.Config = fmt.Sprintf("[network]\nconf_dir = %q\nbin_dirs = [%q]\n[docker]\nadopt = \"on\"\nformer_roots = [%q]\nformer_cni_cache = %q\n",
		filepath.Join(dir, "net.d"), filepath.Join(dir, "bin"), filepath.Join(dir, "cri-dockerd"), filepath.Join(dir, "cache"))
	b := harness.New(t, opts)
	n := &formerNode{Berth: b, dir: dir, image: dockertest.LoadImage(t, b.Docker)}
	var err error
	n.client, err = api.New(api.Options{Endpoint: b.Docker.Endpoint})
	must(t, err)
	t.Cleanup(func() { n.client.Close() })
	return n
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// run creates a container as cri-dockerd does, and starts it.
func (n *formerNode) run(name, pod string, labels map[string]string, host *container.HostConfig, command []string) (id string) {
	n.T.Helper()
	labels["io.kubernetes.pod.name"], labels["io.kubernetes.pod.namespace"], labels["io.kubernetes.pod.uid"] = pod, "default", "uid-"+pod
	host.RestartPolicy, host.CgroupParent = container.RestartPolicy{Name: "no"}, n.cgroupOf(pod)
	host.LogConfig = container.LogConfig{Type: "json-file"}
	made, err := n.client.ContainerCreate(n.Ctx(), client.ContainerCreateOptions{
		Name:   fmt.Sprintf("k8s_%s_%s_default_uid-%s_0", name, pod, pod),
		Config: &container.Config{Image: n.image.ID, Cmd: command, Labels: labels}, HostConfig: host,
	})
	must(n.T, err)
	_, err = n.client.ContainerStart(n.Ctx(), made.ID, client.ContainerStartOptions{})
	must(n.T, err)
	return made.ID
}

// cgroupOf is the cgroup of a pod, below that of the engine's containers.
func (n *formerNode) cgroupOf(pod string) string {
	return "/" + filepath.Base(filepath.Dir(n.Docker.Root)) + "/" + pod
}

// runFormerPod makes a pod with one container, and the files that cri-dockerd and its plugins
// have of it.
func (n *formerNode) runFormerPod(name, script string) harness.Pod {
	n.T.Helper()
	sandbox := n.run("POD", name, map[string]string{
		"io.kubernetes.docker.type": "podsandbox", "io.kubernetes.container.name": "POD", "annotation.kubernetes.io/config.source": "api",
	}, &container.HostConfig{NetworkMode: "none", IpcMode: "shareable"}, []string{"sleep", "100000"})
	logs := filepath.Join(n.Logs, "default_"+name+"_uid-"+name)
	log := filepath.Join(logs, "main", "0.log")
	shared := "container:" + sandbox
	id := n.run("main", name, map[string]string{
		"io.kubernetes.docker.type": "container", "io.kubernetes.container.name": "main", "io.kubernetes.sandbox.id": sandbox,
		"io.kubernetes.container.logpath": log, "annotation.io.kubernetes.container.restartCount": "0",
	}, &container.HostConfig{NetworkMode: container.NetworkMode(shared), IpcMode: container.IpcMode(shared)}, []string{"sh", "-c", script})
	got, err := n.client.ContainerInspect(n.Ctx(), id, client.ContainerInspectOptions{})
	must(n.T, err)
	must(n.T, errors.Join(os.MkdirAll(filepath.Dir(log), 0o755), os.Symlink(got.Container.LogPath, log)))
	n.writeCheckpoint(sandbox, name)
	n.writeCache(sandbox, name)
	return harness.Pod{Sandbox: sandbox, Container: id}
}

// writeCheckpoint writes the checkpoint of a pod with a host port.
func (n *formerNode) writeCheckpoint(sandbox, pod string) {
	n.T.Helper()
	sum := fnv.New32a()
	fmt.Fprint(sum, "(core.CheckpointData){PortMappings:([]*config.PortMapping)[<*>{Protocol:(*config.Protocol)tcp "+
		"ContainerPort:(*int32)80 HostPort:(*int32)8080 HostIP:(string)}] HostNetwork:(bool)false}")
	text := fmt.Sprintf(`{"version":"v1","name":%q,"namespace":"default","data":{"port_mappings":[{"protocol":"tcp","container_port":80,"host_port":8080}]},"checksum":%d}`,
		pod, sum.Sum32())
	must(n.T, os.WriteFile(n.checkpoint(sandbox), []byte(text), 0o600))
}

func (n *formerNode) checkpoint(sandbox string) string {
	return filepath.Join(n.dir, "cri-dockerd", "sandbox", sandbox)
}

func (n *formerNode) cached(sandbox string) string {
	return filepath.Join(n.dir, "cache", "results", "old-net-"+sandbox+"-eth0")
}

func (n *formerNode) writeCache(sandbox, pod string) {
	n.T.Helper()
	text, err := json.Marshal(map[string]any{
		"kind": "cniCacheV1", "containerId": sandbox, "ifName": "eth0", "networkName": "old-net",
		"config":  []byte(`{"cniVersion":"0.4.0","name":"old-net","plugins":[{"type":"fake"}]}`),
		"cniArgs": [][2]string{{"K8S_POD_NAME", pod}},
		"result":  map[string]any{"cniVersion": "0.4.0", "ips": []map[string]any{{"version": "4", "address": "10.42.0.7/24"}}},
	})
	must(n.T, err)
	must(n.T, os.WriteFile(n.cached(sandbox), text, 0o600))
}

// calls are what the plugin was called with.
func (n *formerNode) calls() []string {
	n.T.Helper()
	text, err := os.ReadFile(filepath.Join(n.dir, "calls"))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		n.T.Fatal(err)
	}
	return strings.Split(strings.TrimSuffix(string(text), "\n"), "\n")
}

// assertRemoved checks that nothing of a pod is left after its removal: one DEL with its network
// namespace, no container, no files of cri-dockerd.
func (n *formerNode) assertRemoved(pod harness.Pod, netns string) {
	n.T.Helper()
	want := "DEL " + pod.Sandbox + " eth0 " + netns
	if got := slices.DeleteFunc(n.calls(), func(call string) bool { return !strings.Contains(call, pod.Sandbox) }); !slices.Equal(got, []string{want}) {
		n.T.Errorf("the plugin was called with %q, want %q", got, want)
	}
	for _, file := range []string{n.checkpoint(pod.Sandbox), n.cached(pod.Sandbox)} {
		if _, err := os.Stat(file); !errors.Is(err, os.ErrNotExist) {
			n.T.Errorf("%s is left: %v", file, err)
		}
	}
	for _, id := range []string{pod.Sandbox, pod.Container} {
		if _, err := n.client.ContainerInspect(n.Ctx(), id, client.ContainerInspectOptions{}); err == nil {
			n.T.Errorf("container %s is left in the engine", id)
		}
	}
}

func (n *formerNode) netns(sandbox string) string {
	return "/run/netns/berth-" + harness.InstanceOf(n.State) + "-" + sandbox
}

// assertUp checks that CRI shows a pod of cri-dockerd as one that runs, under the ids of the
// engine.
func (n *formerNode) assertUp(pod harness.Pod, name string) {
	n.T.Helper()
	sandbox := n.SandboxStatus(pod.Sandbox)
	if sandbox.GetState() != runtimeapi.PodSandboxState_SANDBOX_READY || sandbox.GetNetwork().GetIp() != "10.42.0.7" ||
		sandbox.GetMetadata().GetUid() != "uid-"+name || sandbox.GetAnnotations()["kubernetes.io/config.source"] != "api" {
		n.T.Errorf("sandbox %v", sandbox)
	}
	status := n.Status(pod.Container)
	if status.GetState() != runtimeapi.ContainerState_CONTAINER_RUNNING || status.GetMetadata().GetName() != "main" ||
		status.GetAnnotations()["io.kubernetes.container.restartCount"] != "0" || status.GetImage().GetImage() == "" {
		n.T.Errorf("container %v", status)
	}
}

// TestAdoption: a pod of cri-dockerd is listed, runs commands, has a log, statistics and new
// containers, and is stopped and removed with a DEL. What has no labels stays.
func TestAdoption(t *testing.T) {
	n := newFormerNode(t, harness.Options{})
	pod := n.runFormerPod("web", "trap 'exit 5' TERM; "+printNumbers)
	ended := n.runFormerPod("ended", "echo last words; exit 3")
	must(t, os.WriteFile(n.checkpoint(ended.Sandbox), []byte("{"), 0o600))
	old, err := n.client.ContainerCreate(n.Ctx(), client.ContainerCreateOptions{
		Name: "k8s_older_than_labels_uid_0", Config: &container.Config{Image: n.image.ID, Cmd: []string{"true"}},
	})
	must(t, err)
	n.StartDaemon()
	n.assertUp(pod, "web")
	if got := n.ExecOut(pod.Container, "echo in an adopted container"); got != "in an adopted container" {
		t.Errorf("exec: %q", got)
	}
	log := n.Status(pod.Container).GetLogPath()
	n.Await("the log in CRI format", func() bool { return isRegular(log) && numbersIn(t, log) > 3 })
	if _, err := n.Runtime.ReopenContainerLog(n.Ctx(), &runtimeapi.ReopenContainerLogRequest{ContainerId: pod.Container}); err != nil {
		t.Error(err)
	}
	stats, err := n.Runtime.ContainerStats(n.Ctx(), &runtimeapi.ContainerStatsRequest{ContainerId: pod.Container})
	if err != nil || stats.GetStats().GetMemory().GetWorkingSetBytes().GetValue() == 0 {
		t.Errorf("statistics %v, %v", stats, err)
	}
	if status := n.AwaitExit(ended.Container); status.GetExitCode() != 3 || status.GetReason() != "Error" {
		t.Errorf("one that has ended: %v", status)
	}
	endedLog := n.Status(ended.Container).GetLogPath()
	n.Await("the log of one that has ended", func() bool {
		lines, err := harness.LogLines(endedLog)
		return err == nil && isRegular(endedLog) && slices.Equal(lines, []string{"last words"})
	})
	if left, _ := filepath.Glob(filepath.Join(n.Root, "pods", "quarantine", "*"+ended.Sandbox)); len(left) != 1 {
		t.Errorf("the damaged checkpoint is not in the quarantine: %q", left)
	}
	if tail := n.LogTail(); !strings.Contains(tail, "k8s_older_than_labels_uid_0") {
		t.Error("the container without labels is not named")
	}
	n.ImportBusybox()
	next := n.Container("next", "sleep 1000")
	next.Metadata.Attempt = 1
	sandboxConfig := n.Sandbox("web")
	sandboxConfig.LogDirectory = filepath.Dir(filepath.Dir(log))
	created := n.Create(pod.Sandbox, next, sandboxConfig)
	n.StartContainer(created)
	if _, err := n.Runtime.StopContainer(n.Ctx(), &runtimeapi.StopContainerRequest{ContainerId: pod.Container, Timeout: 30}); err != nil {
		t.Error(err)
	}
	if status := n.Status(pod.Container); status.GetState() != runtimeapi.ContainerState_CONTAINER_EXITED || status.GetExitCode() != 5 {
		t.Errorf("stopped: %v", status)
	}
	n.RemovePod(pod.Sandbox)
	n.RemovePod(ended.Sandbox)
	n.assertRemoved(pod, n.netns(pod.Sandbox))
	n.assertRemoved(ended, n.netns(ended.Sandbox))
	if _, err := n.client.ContainerInspect(n.Ctx(), old.ID, client.ContainerInspectOptions{}); err != nil {
		t.Errorf("the container without labels: %v", err)
	}
}

func isRegular(path string) bool {
	info, err := os.Lstat(path)
	return err == nil && info.Mode().IsRegular()
}
