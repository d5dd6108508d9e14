//go:build e2e

package e2e

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/berthrun/berth/test/systemd"
)

// currentContainerd is a node of a containerd from assets, with a network of its own.
const currentContainerd = `
apiVersion: berth.run/v1alpha1
kind: Node
runtime:
  name: containerd
  sandboxImage: berth.run/hello:demo
  config:
    additions:
      plugins."io.containerd.cri.v1.runtime".restrict_oom_score_adj: true
  assets:
  - @CONTAINERD@
  - @RUNC@
network:
  mode: kubenet
  podCIDRs: [10.88.7.0/24]
  plugins: [@PLUGINS@]
kernel: {defaultSysctls: false, sysctls: {net.ipv4.ip_forward: "1"}}
images:
- {source: /opt/hello-image.tar, digest: "sha256:@HELLO@", names: ["berth.run/hello:demo"]}
`

const webPod = `
apiVersion: v1
kind: Pod
metadata: {name: hello}
spec:
  restartPolicy: Never
  containers:
  - {name: web, image: "berth.run/hello:demo", command: [serve, --listen, ":8081"]}
`

// TestNodeOfCurrentContainerd creates a node of containerd 2, as its projects release it.
func TestNodeOfCurrentContainerd(t *testing.T) {
	assets, err := filepath.Abs("../../out/systemd-assets")
	if err != nil {
		t.Fatal(err)
	}
	m := systemd.BootNode(t, map[string]string{"/opt/assets": assets})
	m.Write(systemd.NodeFile, "")
	m.Write("/etc/hello-pod.yaml", webPod)
	before := m.Tree(systemd.Volatile()...)
	const endpoint = "unix:///run/containerd/containerd.sock"

	text := systemd.WithAssets(t, assets, currentContainerd)
	m.Applied(text)
	m.IsWell()
	m.Run("/opt/berth", "pod", "run", "-d", "-f", "/etc/hello-pod.yaml", "--endpoint", endpoint)
	m.PodAnswers(endpoint, 8081)
	m.Describe(strings.Replace(text, "name: containerd", "name: containerd\n  logLevel: debug", 1))
	if out := m.Run("/opt/berth", "node", "apply", "--yes"); strings.Contains(out, "no sandbox was tried") {
		t.Errorf("no sandbox was tried after the restart:\n%s", out)
	}
	m.PodAnswers(endpoint, 8081)

	m.Write(systemd.NodeFile, "")
	m.WasReset(before, "--allow-disruption")
}

// TestNodeOfPackagedPlugins: the containerd of Debian 12 looks into one directory for CNI plugins, and
// a network that somebody has configured needs those of Debian's package.
func TestNodeOfPackagedPlugins(t *testing.T) {
	m := systemd.BootNode(t, nil)
	m.Write(systemd.NodeFile, "")
	m.Write("/etc/hello-pod.yaml", webPod)
	m.Write("/etc/cni/net.d/10-pods.conflist", `{"cniVersion": "0.4.0", "name": "pods", "plugins": [{"type": "ptp", "ipam": {"type": "host-local", "subnet": "10.88.7.0/24"}}]}`)
	const endpoint = "unix:///run/containerd/containerd.sock"
	m.Applied(`
apiVersion: berth.run/v1alpha1
kind: Node
runtime:
  name: containerd
  sandboxImage: berth.run/hello:demo
  config: {additions: {plugins."io.containerd.grpc.v1.cri".restrict_oom_score_adj: true}}
network: {mode: cni}
kernel: {defaultSysctls: false, sysctls: {net.ipv4.ip_forward: "1"}}
images:
- {source: /opt/hello-image.tar, digest: "sha256:@HELLO@", names: ["berth.run/hello:demo"]}
`)
	m.Run("/opt/berth", "pod", "run", "-d", "-f", "/etc/hello-pod.yaml", "--endpoint", endpoint)
	m.PodAnswers(endpoint, 8081)
}
