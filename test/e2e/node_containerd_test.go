//go:build e2e

package e2e

import (
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

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
  - {source: /opt/assets/@CONTAINERD@}
  - {source: /opt/assets/@RUNC@}
network:
  mode: kubenet
  podCIDRs: [10.88.7.0/24]
  plugins: [{source: /opt/assets/@PLUGINS@}]
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

// TestNodeOfCurrentContainerd makes a node of containerd 2, as its projects release it.
// It also tells what an apply costs beside the unpacking and the start of the service.
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

	text := withAssets(t, assets, currentContainerd)
	m.Applied(text)
	if out, err := m.Try("/opt/berth", "node", "doctor"); strings.Contains(out, "problem") {
		t.Errorf("doctor finds problems: %v\n%s", err, out)
	}
	m.Run("/opt/berth", "pod", "run", "-d", "-f", "/etc/hello-pod.yaml", "--endpoint", endpoint)
	m.PodAnswers(endpoint, 8081)
	m.Describe(strings.Replace(text, "name: containerd", "name: containerd\n  logLevel: debug", 1))
	if out := m.Run("/opt/berth", "node", "apply", "--yes"); strings.Contains(out, "no sandbox was tried") {
		t.Errorf("no sandbox was tried after the restart:\n%s", out)
	}
	m.PodAnswers(endpoint, 8081)

	// The same again, once by hand and once by apply.
	m.Run("/opt/berth", "pod", "rm", "-f", "hello", "--endpoint", endpoint)
	const unpack = "cd /opt/assets && tar -xzf containerd-*.tar.gz -C /usr/local && tar -xzf cni-plugins-*.tgz -C /opt/cni/bin && install runc.* /usr/local/bin/runc"
	const remove = "systemctl stop containerd && rm /usr/local/bin/containerd /usr/local/bin/ctr /usr/local/bin/runc /usr/local/bin/containerd-shim-runc-v2 /opt/cni/bin/*"
	m.Run("sh", "-c", remove)
	least := timed(func() { m.Run("sh", "-c", unpack+" && sync && systemctl start containerd") })
	m.Run("sh", "-c", remove)
	whole := timed(func() { m.Run("/opt/berth", "node", "apply", "--yes") })
	plan := timed(func() { m.Run("/opt/berth", "node", "plan") })
	t.Logf("apply took %s, unpacking and starting alone %s; a plan of what is as wanted %s", whole, least, plan)

	m.Write(systemd.NodeFile, "")
	m.WasReset(before, "--allow-disruption")
}

func timed(f func()) time.Duration {
	begin := time.Now()
	f()
	return time.Since(begin).Round(time.Millisecond)
}

// withAssets names the assets of a directory with its SHA256SUMS in a node file.
func withAssets(t *testing.T, dir, text string) string {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(dir, "SHA256SUMS"))
	if err != nil {
		t.Fatalf("the assets are not made: run test/systemd/containerd.sh: %v", err)
	}
	for line := range strings.Lines(string(data)) {
		sum, name, _ := strings.Cut(strings.TrimSpace(line), "  ")
		for prefix, word := range map[string]string{"containerd-": "@CONTAINERD@", "runc." + runtime.GOARCH: "@RUNC@", "cni-plugins-": "@PLUGINS@"} {
			if strings.HasPrefix(name, prefix) {
				text = strings.Replace(text, word+"}", name+", digest: \"sha256:"+sum+"\"}", 1)
			}
		}
	}
	return text
}
