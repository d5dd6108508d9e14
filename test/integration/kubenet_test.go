//go:build integration

package integration

import (
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/berthrun/berth/internal/docker/fakeengine"
	"github.com/berthrun/berth/test/harness"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// networkReady returns the condition NetworkReady.
func networkReady(b *harness.Berth) *runtimeapi.RuntimeCondition {
	b.T.Helper()
	status, err := b.Runtime.Status(b.Ctx(), &runtimeapi.StatusRequest{})
	if err != nil {
		b.T.Fatal(err)
	}
	for _, c := range status.GetStatus().GetConditions() {
		if c.GetType() == runtimeapi.NetworkReady {
			return c
		}
	}
	b.T.Fatal("no condition NetworkReady")
	return nil
}

// TestKubenet: the bridge is cbr0, with the pod CIDR that the kubelet sends, the MTU and the
// hairpin mode of the configuration. The network is not ready before.
func TestKubenet(t *testing.T) {
	b := harness.Start(t, harness.Options{
		Args:   []string{"--network", "kubenet"},
		Config: "[network]\nmtu = 1400\nhairpin = \"promiscuous-bridge\"\n",
	})
	if c := networkReady(b); c.Status || !strings.Contains(c.Message, "pod CIDR") {
		t.Errorf("before the pod CIDR: %v", c)
	}
	_, err := b.Runtime.UpdateRuntimeConfig(b.Ctx(), &runtimeapi.UpdateRuntimeConfigRequest{
		RuntimeConfig: &runtimeapi.RuntimeConfig{NetworkConfig: &runtimeapi.NetworkConfig{PodCidr: "10.222.3.0/24"}},
	})
	if err != nil {
		t.Fatal(err)
	}
	if c := networkReady(b); !c.Status {
		t.Errorf("after the pod CIDR: %v", c)
	}
	pod := b.RunPod("web", "exec sleep 100000")
	status, err := b.Runtime.PodSandboxStatus(b.Ctx(), &runtimeapi.PodSandboxStatusRequest{PodSandboxId: pod.Sandbox})
	if err != nil {
		t.Fatal(err)
	}
	address, err := netip.ParseAddr(status.GetStatus().GetNetwork().GetIp())
	if err != nil || !netip.MustParsePrefix("10.222.3.0/24").Contains(address) {
		t.Errorf("the pod has address %v, %v", address, err)
	}
	bridge, err := b.InHost("ip", "-o", "addr", "show", "dev", "cbr0").CombinedOutput()
	if err != nil || !strings.Contains(string(bridge), "10.222.3.1/24") {
		t.Errorf("the bridge: %s, %v", bridge, err)
	}
	link, err := b.InHost("ip", "-o", "link", "show", "dev", "cbr0").CombinedOutput()
	if err != nil || !strings.Contains(string(link), "mtu 1400") || !strings.Contains(string(link), "PROMISC") {
		t.Errorf("the bridge: %s, %v", link, err)
	}
	if info := b.MustCLI("info"); !strings.Contains(info, "mode: kubenet") || !strings.Contains(info, "hairpin: promiscuous-bridge") {
		t.Errorf("berth info:\n%s", info)
	}
}

// TestHairpinModesOfCNI: plugins have the bridge there. A promiscuous one is a warning, and a mode
// that does not exist is an error.
func TestHairpinModesOfCNI(t *testing.T) {
	n := newFreshHost(t)
	n.refused(t, n.run(n.berth(), n.places("--config", writeConfig(t, "[network]\nhairpin = \"veth\"\n"))...),
		`network.hairpin: "veth": want one of auto, none, hairpin-veth, promiscuous-bridge`)
	b := harness.Start(t, harness.Options{
		NoImages: true, Args: []string{"--network", "cni"}, Config: "[network]\nhairpin = \"promiscuous-bridge\"\n",
	})
	if log := b.LogTail(); !strings.Contains(log, "promiscuous-bridge") || !strings.Contains(log, "hairpin-veth") {
		t.Errorf("no warning:\n%s", log)
	}
}

// TestInfoOfAnEngineThatIsReplaced: berth info counts the calls of a Docker engine, and follows an
// upgrade of the engine while berth runs.
func TestInfoOfAnEngineThatIsReplaced(t *testing.T) {
	t.Setenv("BERTH_ENGINE", "native") // the arguments name the scripted engine
	fake := fakeengine.Start(t, fakeengine.Script{Version: "20.10.24"})
	b := harness.Start(t, harness.Options{
		NoImages: true, Args: []string{"--engine", "docker", "--docker-endpoint", fake.Endpoint},
	})
	if info := b.MustCLI("info"); !strings.Contains(info, "engineCalls:") || !strings.Contains(info, "timeouts: 0") || !strings.Contains(info, "20.10.24") {
		t.Errorf("berth info:\n%s", info)
	}
	fake.Replace(fakeengine.Script{Version: "29.0.0", APIVersion: "1.52", MinAPIVersion: "1.44"})
	if info := b.MustCLI("info", "-o", "json"); !strings.Contains(info, `"list containers"`) || !strings.Contains(info, `"29.0.0"`) {
		t.Errorf("berth info after the upgrade:\n%s", info)
	}
}

func writeConfig(t *testing.T, text string) (file string) {
	t.Helper()
	file = filepath.Join(t.TempDir(), "berth.toml")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}
