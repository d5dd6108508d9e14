//go:build integration

package integration

import (
	"strings"
	"testing"

	"github.com/berthrun/berth/test/systemd"
)

// packagedContainerd is a node with the distribution's containerd and a network of its own. The
// demo image serves as sandbox image.
const packagedContainerd = `
apiVersion: berth.run/v1alpha1
kind: Node
runtime:
  name: containerd
  sandboxImage: berth.run/hello:demo
  config:
    additions:
      plugins."io.containerd.grpc.v1.cri".restrict_oom_score_adj: true
network: {mode: kubenet, podCIDRs: [10.88.7.0/24]}
kernel: {defaultSysctls: false, sysctls: {net.ipv4.ip_forward: "1"}}
images:
- {source: /opt/hello-image.tar, digest: "sha256:@HELLO@", names: ["berth.run/hello:demo"]}
`

const packagedDocker = `
apiVersion: berth.run/v1alpha1
kind: Node
runtime: {name: docker}
kernel: {defaultSysctls: false}
images:
- {source: /opt/hello-image.tar, digest: "sha256:@HELLO@", names: ["berth.run/hello:demo"]}
`

func TestNodeOfPackagedContainerd(t *testing.T) {
	m := systemd.BootNode(t, nil)
	m.Write(systemd.NodeFile, "")
	m.Write("/etc/hello-pod.yaml", strings.Replace(helloPod, ":8080", ":8081", 1)) // the sandbox's has 8080
	before := m.Tree(systemd.Volatile()...)
	const endpoint = "unix:///run/containerd/containerd.sock"

	m.Applied(packagedContainerd)
	if n := strings.Count(m.Run("journalctl", "-o", "cat", "-u", "containerd.service"), "Started containerd.service"); n != 1 {
		t.Errorf("containerd was started %d times, want once, with our configuration:\n%s", n, m.Run("journalctl", "-u", "containerd.service"))
	}
	m.IsWell()
	for _, c := range []struct{ spoil, repair, want string }{
		{"systemctl stop containerd", "systemctl start containerd", "containerd.service is enabled and does not run"},
		{"mv /usr/lib/cni/ptp /usr/lib/cni/ptp.off", "mv /usr/lib/cni/ptp.off /usr/lib/cni/ptp", "wants the CNI plugin ptp"},
		{"sysctl -w net.ipv4.ip_forward=0", "sysctl -w net.ipv4.ip_forward=1", "net.ipv4.ip_forward is 0"},
	} {
		m.Run("sh", "-c", c.spoil)
		if out, err := m.Try("/opt/berth", "node", "doctor"); exitCode(err) != 1 || !strings.Contains(strings.Join(strings.Fields(out), " "), c.want) {
			t.Errorf("after %s doctor ends with %v and does not say %q:\n%s", c.spoil, err, c.want, out)
		}
		m.Run("sh", "-c", c.repair)
	}
	m.Run("/opt/berth", "pod", "run", "-d", "-f", "/etc/hello-pod.yaml", "--endpoint", endpoint)
	m.PodAnswers(endpoint, 8081)

	m.Describe(strings.Replace(packagedContainerd, "name: containerd", "name: containerd\n  logLevel: debug", 1))
	out := m.Run("/opt/berth", "node", "apply", "--yes")
	if !strings.Contains(out, "done  restart containerd.service") || strings.Contains(out, "no sandbox was tried") {
		t.Errorf("want a restart, and a test sandbox after it:\n%s", out)
	}
	m.PodAnswers(endpoint, 8081)

	m.Write(systemd.NodeFile, "")
	if out, err := m.Try("/opt/berth", "node", "reset", "--yes"); err == nil {
		t.Errorf("reset removes a runtime with pods without consent:\n%s", out)
	}
	m.WasReset(before, "--allow-disruption")
}

func TestNodeOfPackagedDocker(t *testing.T) {
	m := systemd.BootNode(t, nil)
	m.Write(systemd.NodeFile, "")
	before := m.Tree(systemd.Volatile()...)
	m.Applied(packagedDocker)
	if got := strings.TrimSpace(m.Run("docker", "run", "--rm", "-h", "box", "berth.run/hello:demo", "hostname")); got != "box" {
		t.Errorf("a container says that its host is %q, want box", got)
	}

	m.Run("docker", "run", "-d", "--name", "web", "--restart", "always", "berth.run/hello:demo", "serve", "--listen", ":8081")
	m.Write(systemd.NodeFile, "")
	out, err := m.Try("/opt/berth", "node", "reset", "--yes")
	if err == nil || !strings.Contains(out, "its containers (1) are stopped before: web") {
		t.Errorf("reset takes docker from its containers without consent: %v\n%s", err, out)
	}
	if got := strings.TrimSpace(m.Run("docker", "inspect", "-f", "{{.State.Running}}", "web")); got != "true" {
		t.Errorf("a reset without consent has stopped the container: running %s", got)
	}
	m.WasReset(before, "--allow-disruption")
	if list, err := m.Try("pgrep", "-fa", "hello|containerd-shim"); err == nil {
		t.Errorf("processes of the container are left: %s", list)
	}
}
