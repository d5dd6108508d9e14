//go:build e2e

package e2e

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/berthrun/berth/test/systemd"
)

// Nodes with packages of their distribution.
const (
	nodeHead = `
apiVersion: berth.run/v1alpha1
kind: Node
kernel: {defaultSysctls: false, sysctls: {net.ipv4.ip_forward: "1"}}
images:
- {source: /opt/hello-image.tar, digest: "sha256:@HELLO@", names: ["berth.run/hello:demo"]}
`
	berthOfPackages      = nodeHead + "runtime: {name: berth}\nnetwork: {mode: builtin}\n"
	containerdOfPackages = nodeHead + `
runtime:
  name: containerd
  sandboxImage: berth.run/hello:demo
  config: {additions: {plugins."io.containerd.grpc.v1.cri".restrict_oom_score_adj: true}}
network: {mode: kubenet, podCIDRs: [10.88.7.0/24]}
`
	dockerOfPackages = nodeHead + "runtime: {name: docker}\n"
)

// TestNodeOfDistributions creates nodes of every runtime on each distribution that can be built
// from packages here, except Debian 12, which the integration tests have. The runtime runs a pod
// with a network, or a container. A second apply has nothing to do, and a reset leaves the disk as
// it was.
func TestNodeOfDistributions(t *testing.T) {
	assets, err := filepath.Abs("../../out/systemd-assets")
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		release string
		// containerd is the reason why the package's containerd is refused; empty if it works.
		containerd string
	}{
		{"debian-11", "the package of Debian GNU/Linux 11 (bullseye) is too old, want containerd 1.6 or newer; give assets"},
		{"debian-13", ""},
		{"ubuntu-22.04", ""},
		{"ubuntu-24.04", ""},
		{"ubuntu-25.10", ""},
	} {
		t.Run(c.release, func(t *testing.T) {
			t.Run("berth", func(t *testing.T) { nodeWithPods(t, c.release, nil, berthOfPackages, "unix:///run/berth/berth.sock") })
			t.Run("containerd", func(t *testing.T) {
				if c.containerd == "" {
					nodeWithPods(t, c.release, nil, containerdOfPackages, "unix:///run/containerd/containerd.sock")
					return
				}
				m := systemd.BootNodeOf(t, systemd.Options{Release: c.release})
				m.Describe(containerdOfPackages)
				before := m.Tree(systemd.Volatile()...)
				if out, err := m.Try("/opt/berth", "node", "apply", "--yes"); err == nil || !strings.Contains(out, c.containerd) {
					t.Errorf("apply ends with %v, and does not say %q:\n%s", err, c.containerd, out)
				}
				m.IsAs(before, "a refused apply")
			})
			t.Run("containerd of assets", func(t *testing.T) {
				nodeWithPods(t, c.release, map[string]string{"/opt/assets": assets}, systemd.WithAssets(t, assets, currentContainerd), "unix:///run/containerd/containerd.sock")
			})
			t.Run("docker", func(t *testing.T) { nodeWithContainers(t, c.release) })
		})
	}
}

// nodeWithPods creates a node whose runtime serves CRI at an endpoint.
func nodeWithPods(t *testing.T, release string, add map[string]string, text, endpoint string) {
	m := systemd.BootNodeOf(t, systemd.Options{Release: release, Add: add})
	m.Write(systemd.NodeFile, "")
	m.Write("/etc/hello-pod.yaml", webPod)
	before := m.Tree(systemd.Volatile()...)
	m.Applied(text)
	m.IsWell()
	m.Run("/opt/berth", "pod", "run", "-d", "-f", "/etc/hello-pod.yaml", "--endpoint", endpoint)
	m.PodAnswers(endpoint, 8081)
	m.Write(systemd.NodeFile, "")
	m.WasReset(before, "--allow-disruption")
}

// nodeWithContainers creates a node of docker.
func nodeWithContainers(t *testing.T, release string) {
	m := systemd.BootNodeOf(t, systemd.Options{Release: release})
	m.Write(systemd.NodeFile, "")
	before := m.Tree(systemd.Volatile()...)
	m.Applied(dockerOfPackages)
	m.IsWell()
	if got := strings.TrimSpace(m.Run("docker", "run", "--rm", "-h", "box", "berth.run/hello:demo", "hostname")); got != "box" {
		t.Errorf("a container says that its host is %q, want box", got)
	}
	m.Write(systemd.NodeFile, "")
	m.WasReset(before, "--allow-disruption")
}
