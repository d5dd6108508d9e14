//go:build integration

package integration

import (
	"errors"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/berthrun/berth/test/harness"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// TestRPC: calls without a test of their own name, as a client uses them. The fields of their
// requests have tests of their own.
func TestRPC(t *testing.T) {
	b := harness.Start(t, harness.Options{})
	for _, c := range []struct {
		name string
		test func(*testing.T, *harness.Berth)
	}{
		{"UpdateRuntimeConfig", updateRuntimeConfig}, // no pod has an address yet
		{"Version", version},
		{"RuntimeConfig", runtimeConfig},
		{"RunPodSandbox", runPodSandbox},
		{"StopPodSandbox", stopPodSandbox},
		{"RemovePodSandbox", removePodSandbox},
		{"ListPodSandbox", listPodSandbox},
		{"CreateContainer", createContainer},
		{"Start/Stop/RemoveContainer", startStopRemove},
		{"ListContainers / ContainerStatus", listContainers},
		{"ReopenContainerLog", reopenLog},
		{"Exec / Attach / PortForward", streams},
		{"CheckpointContainer", checkpointContainer},
		{"CheckpointPod / RestorePod", checkpointPod},
		{"ImageStatus, PullImage, RemoveImage", images},
		{"ImageFsInfo", imageFsInfo},
	} {
		t.Run(c.name, func(t *testing.T) {
			mine := *b
			mine.T = t
			c.test(t, &mine)
			mine.RemoveAllPods()
		})
	}
}

// updateRuntimeConfig: pods have addresses of the node's ranges. The kubelet learns these after its
// runtime has started.
func updateRuntimeConfig(t *testing.T, b *harness.Berth) {
	ranges := []string{"10.199.0.0/24", "fd00:199::/64"}
	_, err := b.Runtime.UpdateRuntimeConfig(b.Ctx(), &runtimeapi.UpdateRuntimeConfigRequest{
		RuntimeConfig: &runtimeapi.RuntimeConfig{NetworkConfig: &runtimeapi.NetworkConfig{PodCidr: strings.Join(ranges, ",")}},
	})
	if err != nil {
		t.Fatal(err)
	}
	network := b.SandboxStatus(b.RunSandbox(b.Sandbox("ranged"))).Network
	for i, address := range []string{network.GetIp(), network.GetAdditionalIps()[0].GetIp()} {
		if !netip.MustParsePrefix(ranges[i]).Contains(netip.MustParseAddr(address)) {
			t.Errorf("%s is not in %s", address, ranges[i])
		}
	}
}

func version(t *testing.T, b *harness.Berth) {
	answer, err := b.Runtime.Version(b.Ctx(), &runtimeapi.VersionRequest{Version: "v1"})
	if err != nil || answer.RuntimeName != "berth" || answer.RuntimeApiVersion != "v1" || answer.Version == "" {
		t.Fatalf("%v, %v", answer, err)
	}
	if said := b.MustCLI("version"); !strings.Contains(said, answer.RuntimeVersion) {
		t.Errorf("version %q is not in what the command says, %q", answer.RuntimeVersion, said)
	}
}

// runtimeConfig: berth reports the cgroup driver whose cgroups exist.
func runtimeConfig(t *testing.T, b *harness.Berth) {
	answer, err := b.Runtime.RuntimeConfig(b.Ctx(), &runtimeapi.RuntimeConfigRequest{})
	if err != nil {
		t.Fatal(err)
	}
	pod := b.RunPod("driven", "sleep 1000")
	cgroups, err := os.ReadFile(filepath.Join("/proc", itoa(initOf(t, b, pod.Container)), "cgroup"))
	if err != nil {
		t.Fatal(err)
	}
	bySystemd := strings.Contains(string(cgroups), pod.Container+".scope")
	if systemd := answer.Linux.GetCgroupDriver() == runtimeapi.CgroupDriver_SYSTEMD; systemd != bySystemd {
		t.Errorf("the driver is %s, and a container's cgroups are\n%s", answer.Linux.GetCgroupDriver(), cgroups)
	}
}

// runPodSandbox: the sandbox is ready with its network when the call returns. The same request
// finds it again. The error for another request with the same name says what differs.
func runPodSandbox(t *testing.T, b *harness.Berth) {
	config := b.Sandbox("run")
	id := b.RunSandbox(config)
	if status := b.SandboxStatus(id); status.State != runtimeapi.PodSandboxState_SANDBOX_READY || status.Network.GetIp() == "" || len(id) != 64 {
		t.Errorf("sandbox %s: %v", id, status)
	}
	if b.Has(harness.SharedNetNS) {
		serveEcho(b, id, ":8080", "pod ")
		address := net.JoinHostPort(b.SandboxStatus(id).Network.GetIp(), "8080")
		if answer, err := say("/run/netns/"+b.NetNS, "tcp", address); err != nil || answer != "pod hello" {
			t.Errorf("the host reaches %s: %q, %v", address, answer, err)
		}
	}
	if again := b.RunSandbox(config); again != id {
		t.Errorf("the same request made %s beside %s", again, id)
	}
	other := proto.CloneOf(config)
	other.Hostname = "another"
	_, err := b.Runtime.RunPodSandbox(b.Ctx(), &runtimeapi.RunPodSandboxRequest{Config: other})
	checkRefusal(t, err, codes.AlreadyExists, []string{"hostname"})
}

// stopPodSandbox: containers and network are gone, and a second stop has nothing to do.
func stopPodSandbox(t *testing.T, b *harness.Berth) {
	pod := b.RunPod("stop", "sleep 1000")
	pid := initOf(t, b, pod.Container)
	for _, id := range []string{pod.Sandbox, pod.Sandbox, strings.Repeat("0", 64)} {
		if _, err := b.Runtime.StopPodSandbox(b.Ctx(), &runtimeapi.StopPodSandboxRequest{PodSandboxId: id}); err != nil {
			t.Errorf("stop of %s: %v", id, err)
		}
	}
	if status := b.SandboxStatus(pod.Sandbox); status.State != runtimeapi.PodSandboxState_SANDBOX_NOTREADY {
		t.Errorf("sandbox: %v", status)
	}
	if status := b.Status(pod.Container); status.State != runtimeapi.ContainerState_CONTAINER_EXITED || status.FinishedAt == 0 {
		t.Errorf("container: %v", status)
	}
	if _, err := os.Stat(filepath.Join("/proc", itoa(pid))); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("its process is there: %v", err)
	}
	if found := held(b, pod.Sandbox); len(found) > 0 {
		t.Errorf("it holds %q", found)
	}
}

// removePodSandbox: it stops running containers, and no list has the sandbox or its containers.
func removePodSandbox(t *testing.T, b *harness.Berth) {
	pod := b.RunPod("remove", "sleep 1000")
	for range 2 {
		if _, err := b.Runtime.RemovePodSandbox(b.Ctx(), &runtimeapi.RemovePodSandboxRequest{PodSandboxId: pod.Sandbox}); err != nil {
			t.Error(err)
		}
	}
	_, err := b.Runtime.PodSandboxStatus(b.Ctx(), &runtimeapi.PodSandboxStatusRequest{PodSandboxId: pod.Sandbox})
	if status.Code(err) != codes.NotFound {
		t.Errorf("status of the sandbox: %v", err)
	}
	_, err = b.Runtime.ContainerStatus(b.Ctx(), &runtimeapi.ContainerStatusRequest{ContainerId: pod.Container})
	if status.Code(err) != codes.NotFound {
		t.Errorf("status of the container: %v", err)
	}
}

func listPodSandbox(t *testing.T, b *harness.Berth) {
	first, second := b.RunSandbox(b.Sandbox("first")), b.RunSandbox(b.Sandbox("second"))
	if _, err := b.Runtime.StopPodSandbox(b.Ctx(), &runtimeapi.StopPodSandboxRequest{PodSandboxId: second}); err != nil {
		t.Fatal(err)
	}
	state := func(s runtimeapi.PodSandboxState) *runtimeapi.PodSandboxStateValue {
		return &runtimeapi.PodSandboxStateValue{State: s}
	}
	for name, c := range map[string]struct {
		filter *runtimeapi.PodSandboxFilter
		want   []string
	}{
		"all, the newest first": {nil, []string{second, first}},
		"by id":                 {&runtimeapi.PodSandboxFilter{Id: first}, []string{first}},
		"by the id's beginning": {&runtimeapi.PodSandboxFilter{Id: second[:12]}, []string{second}},
		"ready":                 {&runtimeapi.PodSandboxFilter{State: state(runtimeapi.PodSandboxState_SANDBOX_READY)}, []string{first}},
		"not ready":             {&runtimeapi.PodSandboxFilter{State: state(runtimeapi.PodSandboxState_SANDBOX_NOTREADY)}, []string{second}},
		"by label":              {&runtimeapi.PodSandboxFilter{LabelSelector: map[string]string{"app": "first"}}, []string{first}},
		"by label and state": {&runtimeapi.PodSandboxFilter{
			LabelSelector: map[string]string{"app": "first"}, State: state(runtimeapi.PodSandboxState_SANDBOX_NOTREADY),
		}, nil},
	} {
		answer, err := b.Runtime.ListPodSandbox(b.Ctx(), &runtimeapi.ListPodSandboxRequest{Filter: c.filter})
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, item := range answer.Items {
			got = append(got, item.Id)
		}
		if strings.Join(got, " ") != strings.Join(c.want, " ") {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
	}
}

func checkpointContainer(t *testing.T, b *harness.Berth) {
	pod := b.RunPod("checkpoint", "sleep 1000")
	file := filepath.Join(b.Dir, "checkpoint.tar")
	_, err := b.Runtime.CheckpointContainer(b.Ctx(), &runtimeapi.CheckpointContainerRequest{ContainerId: pod.Container, Location: file})
	words := []string{"checkpoint.enabled"}
	if !b.Has(harness.Supervisors) {
		words = []string{"its engine cannot"}
	}
	checkRefusal(t, err, codes.Unimplemented, append(words, "cannot checkpoint container"))
	if _, err := os.Stat(file); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a file was made: %v", err)
	}
}

func checkpointPod(t *testing.T, b *harness.Berth) {
	pod := b.RunPod("checkpoint-pod", "sleep 1000")
	_, err := b.Runtime.CheckpointPod(b.Ctx(), &runtimeapi.CheckpointPodRequest{
		PodSandboxId: pod.Sandbox, ContainerIds: []string{pod.Container}, OutputPath: t.TempDir(),
	})
	words := []string{"checkpoint.enabled"}
	if !b.Has(harness.Supervisors) {
		words = []string{"its engine cannot"}
	}
	checkRefusal(t, err, codes.Unimplemented, append(words, "cannot checkpoint sandbox", pod.Sandbox))
	request := &runtimeapi.RestorePodRequest{
		CheckpointPath: t.TempDir(), Config: b.Sandbox("restored"), ContainerConfigs: []*runtimeapi.ContainerConfig{b.Container("c", "exit 0")},
	}
	_, err = b.Runtime.RestorePod(b.Ctx(), request)
	words = []string{"checkpoint.enabled"}
	if !b.Has(harness.Supervisors) {
		words = []string{"its engine restores no checkpoints"}
	}
	checkRefusal(t, err, codes.Unimplemented, append(words, "cannot restore sandbox"))
}
