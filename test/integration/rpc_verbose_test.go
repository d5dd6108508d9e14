//go:build integration

package integration

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/berthrun/berth/test/harness"
	imagespec "github.com/opencontainers/image-spec/specs-go/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// TestRPCVerboseInfo: what crictl inspect, inspectp, inspecti and info show beyond the API, without
// values of an environment.
func TestRPCVerboseInfo(t *testing.T) {
	b := harness.Start(t, harness.Options{})
	sandboxConfig := b.Sandbox("shown")
	sandbox := b.RunSandbox(sandboxConfig)
	config := b.Container("c", "sleep 1000")
	config.Envs = []*runtimeapi.KeyValue{{Key: "TOKEN", Value: []byte("hunter2")}}
	container := b.Create(sandbox, config, sandboxConfig)
	b.StartContainer(container)

	t.Run("ContainerStatus", func(t *testing.T) {
		resp, err := b.Runtime.ContainerStatus(b.Ctx(), &runtimeapi.ContainerStatusRequest{ContainerId: container, Verbose: true})
		if err != nil {
			t.Fatal(err)
		}
		var info struct {
			SandboxID   string
			Pid         int
			SnapshotKey string
			Snapshotter string
			Config      struct{ Envs []struct{ Key string } }
			RuntimeSpec struct {
				Process struct{ Env, Args []string }
				Linux   struct{ CgroupsPath string }
			}
		}
		decode(t, resp.Info, &info)
		if info.SandboxID != sandbox || info.Pid == 0 || info.SnapshotKey == "" || info.Snapshotter == "" || info.RuntimeSpec.Linux.CgroupsPath == "" ||
			len(info.RuntimeSpec.Process.Args) != 3 || len(info.Config.Envs) != 1 || info.Config.Envs[0].Key != "TOKEN" {
			t.Errorf("info %+v", info)
		}
		if text := resp.Info["info"]; strings.Contains(text, "hunter2") || strings.Contains(text, "aHVudGVyMg") || !strings.Contains(text, "TOKEN=[hidden]") {
			t.Errorf("the environment's values are shown, or its names are not: %s", text)
		}
	})
	t.Run("PodSandboxStatus", func(t *testing.T) {
		resp, err := b.Runtime.PodSandboxStatus(b.Ctx(), &runtimeapi.PodSandboxStatusRequest{PodSandboxId: sandbox, Verbose: true})
		if err != nil {
			t.Fatal(err)
		}
		var info struct {
			Pid     int
			Engine  struct{ NetNS, CgroupParent string }
			Network struct{ IPs []string }
			Config  struct{ Hostname string }
		}
		decode(t, resp.Info, &info)
		if status := resp.Status; status.Id != sandbox || status.State != runtimeapi.PodSandboxState_SANDBOX_READY || status.CreatedAt == 0 || status.Network.GetIp() == "" ||
			status.Metadata.GetName() != "shown" || status.Linux.GetNamespaces().GetOptions().GetPid() != runtimeapi.NamespaceMode_CONTAINER {
			t.Errorf("status %v", status)
		}
		// The fields that a kubelet's evented PLEG reads.
		if resp.Timestamp == 0 || len(resp.ContainersStatuses) != 1 || resp.ContainersStatuses[0].Id != container {
			t.Errorf("stamp %d, containers %v", resp.Timestamp, resp.ContainersStatuses)
		}
		if info.Pid == 0 || info.Engine.NetNS == "" || info.Engine.CgroupParent == "" || len(info.Network.IPs) == 0 || info.Config.Hostname != "shown" {
			t.Errorf("info %+v of %s", info, resp.Info["info"])
		}
	})
	t.Run("ImageStatus", func(t *testing.T) {
		resp, err := b.Images.ImageStatus(b.Ctx(), &runtimeapi.ImageStatusRequest{Image: &runtimeapi.ImageSpec{Image: harness.Busybox}, Verbose: true})
		if err != nil {
			t.Fatal(err)
		}
		var info struct {
			ChainID   string
			ImageSpec imagespec.Image
		}
		decode(t, resp.Info, &info)
		spec := info.ImageSpec
		if !strings.HasPrefix(info.ChainID, "sha256:") || spec.OS != "linux" || spec.Created == nil || len(spec.Config.Cmd) != 1 || len(resp.Info) != 1 {
			t.Errorf("info %v", resp.Info)
		}
		if spec.RootFS.Type != "layers" || len(spec.RootFS.DiffIDs) != 1 || spec.RootFS.DiffIDs[0].String() != info.ChainID {
			t.Errorf("the image has one layer, whose id is that of the chain: %+v, %s", spec.RootFS, info.ChainID)
		}
		if history := spec.History; len(history) != 2 || history[0].CreatedBy != "COPY busybox /bin" || history[0].Comment != "with its applets" ||
			history[0].EmptyLayer || history[1].CreatedBy != "CMD sh" || !history[1].EmptyLayer {
			t.Errorf("history %+v", history)
		}
	})
	t.Run("Status", func(t *testing.T) {
		resp, err := b.Runtime.Status(b.Ctx(), &runtimeapi.StatusRequest{})
		if err != nil {
			t.Fatal(err)
		}
		ready := map[string]bool{}
		for _, c := range resp.Status.Conditions {
			ready[c.Type] = c.Status
		}
		if !ready[runtimeapi.RuntimeReady] || !ready[runtimeapi.NetworkReady] || len(resp.Info) != 0 {
			t.Errorf("conditions %v, info %v", resp.Status.Conditions, resp.Info)
		}
		if len(resp.RuntimeHandlers) != 1 || resp.RuntimeHandlers[0].Name != "" || resp.RuntimeHandlers[0].Features == nil || resp.Features == nil {
			t.Errorf("handlers %v, features %v", resp.RuntimeHandlers, resp.Features)
		}
		info := verboseStatus(t, b)
		for _, key := range []string{"config", "network", "engine", "events", "golang"} {
			if info[key] == "" || info[key] == "null" {
				t.Errorf("no %s in %v", key, info)
			}
		}
		if config, ok := info["cniconfig"]; ok {
			t.Errorf("the built-in network has a configuration of CNI: %s", config)
		}
	})
}

func decode(t *testing.T, info map[string]string, into any) {
	t.Helper()
	if err := json.Unmarshal([]byte(info["info"]), into); err != nil {
		t.Fatalf("info %v: %v", info, err)
	}
}
