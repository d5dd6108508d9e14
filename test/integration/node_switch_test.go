//go:build integration

package integration

import (
	"strings"
	"testing"

	"github.com/berthrun/berth/test/systemd"
)

// switchable is a node of a runtime. Its images would come from a registry that the test must not
// use.
const switchable = `
apiVersion: berth.run/v1alpha1
kind: Node
runtime: @RUNTIME@
network: {mode: kubenet, podCIDRs: [10.88.7.0/24]}
kernel: {defaultSysctls: false}
registries: [{host: "*", mirrors: [{url: "http://127.0.0.1:5000"}]}]
`

// switchImages are the images of the first runtime.
const switchImages = `images:
- {source: /opt/hello-image.tar, digest: "sha256:@HELLO@", names: ["berth.run/hello:demo"]}
`

// switched is a machine that changes its runtime.
type switched struct {
	*systemd.Machine
	t *testing.T
}

const (
	containerdSocket = "unix:///run/containerd/containerd.sock"
	berthSocket      = "unix:///run/berth/berth.sock"
)

// to applies the node file of a runtime. The first apply is refused without consent, the second one
// succeeds.
func (m switched) to(name, from, socket, text string) {
	m.t.Helper()
	m.Describe(text)
	plan := m.Run("/opt/berth", "node", "plan")
	for _, want := range []string{
		"pod default/hello is stopped in " + from + "; there is no kubelet to start it in " + name,
		"running pods: stops the pods that run in " + from + " (1)",
		"is taken over from " + from + " by content, not pulled",
	} {
		if !strings.Contains(plan, want) {
			m.t.Errorf("the plan to %s does not say %q:\n%s", name, want, plan)
		}
	}
	if out, err := m.Try("/opt/berth", "node", "apply", "--yes"); err == nil || !strings.Contains(out, "nothing was changed") {
		m.t.Errorf("apply stops pods without consent: %v\n%s", err, out)
	}
	m.Run("/opt/berth", "node", "apply", "--yes", "--allow-disruption")
	m.is(name, from, socket)
}

// is checks that only the runtime name runs, has the image, and runs a pod with it.
func (m switched) is(name, other, socket string) {
	m.t.Helper()
	if out, err := m.Try("/opt/berth", "node", "diff"); err != nil && !strings.Contains(out, "no longer wanted") || strings.Contains(out, "Plan:") {
		m.t.Errorf("with %s the machine is not as its file says: %v\n%s", name, err, out)
	}
	if out, err := m.Try("systemctl", "is-active", other+".service"); err == nil {
		m.t.Errorf("%s still is %s", other, out)
	}
	m.Run("/opt/berth", "pod", "run", "-d", "-f", "/etc/hello-pod.yaml", "--endpoint", socket)
	m.PodAnswers(socket, 8081)
}

// asked checks that no request has reached a registry since the machine's boot.
func (m switched) asked() {
	m.t.Helper()
	if out := m.Run("nft", "list", "counter", "inet", "watch", "pulls"); !strings.Contains(out, "packets 0 bytes 0") {
		m.t.Errorf("a registry was asked:\n%s", out)
	}
}

// TestNodeSwitch: containerd replaces berth and the other way round, by apply and by rollback.
// Images are copied by content, pods are reported and stopped, and reset finds everything that both
// runtimes have created.
func TestNodeSwitch(t *testing.T) {
	m := switched{systemd.BootNode(t, nil), t}
	m.Write(systemd.NodeFile, "")
	m.Write("/etc/hello-pod.yaml", strings.Replace(helloPod, ":8080", ":8081", 1)) // the sandbox's has 8080
	before := m.Tree(systemd.Volatile()...)
	m.Run("nft", "add table inet watch; add counter inet watch pulls; "+
		"add chain inet watch out { type filter hook output priority 0; }; add rule inet watch out tcp dport { 80, 443, 5000 } counter name pulls")
	containerd := strings.Replace(switchable, "@RUNTIME@", `{name: containerd, sandboxImage: "berth.run/hello:demo", config: `+
		`{additions: {plugins."io.containerd.grpc.v1.cri".restrict_oom_score_adj: true}}}`, 1)
	berth := strings.Replace(switchable, "@RUNTIME@", "{name: berth}", 1)

	m.Applied(containerd + switchImages)
	m.Run("/opt/berth", "pod", "run", "-d", "-f", "/etc/hello-pod.yaml", "--endpoint", containerdSocket)
	m.PodAnswers(containerdSocket, 8081)
	m.to("berth", "containerd", berthSocket, berth)

	// The way back also copies an image that only berth has.
	m.Run("sh", "-c", "sed s/hello:demo/hello:next/g /opt/hello-image.tar | /opt/berth image import")
	m.to("containerd", "berth", containerdSocket, containerd)
	if out := m.Run("ctr", "-n", "k8s.io", "images", "ls", "-q"); !strings.Contains(out, "berth.run/hello:next") {
		t.Errorf("containerd lacks the image that berth had:\n%s", out)
	}

	// The way back, to entry 2 (berth), and from there to entry 1 (containerd).
	for _, step := range []struct{ number, name, other, socket, text string }{
		{"2", "berth", "containerd", berthSocket, berth},
		{"1", "containerd", "berth", containerdSocket, containerd + switchImages},
	} {
		out, err := m.Try("/opt/berth", "node", "rollback", step.number, "--yes")
		if err == nil || !strings.Contains(out, "its pods (1) are stopped and removed before: default/hello") {
			t.Errorf("rollback to %s stops pods without consent: %v\n%s", step.name, err, out)
		}
		out = m.Run("/opt/berth", "node", "rollback", step.number, "--yes", "--allow-disruption")
		if want := "done  the runtime on " + step.socket + " starts a sandbox"; !strings.Contains(out, want) {
			t.Errorf("rollback to %s does not say %q:\n%s", step.name, want, out)
		}
		m.Describe(step.text)
		m.is(step.name, step.other, step.socket)
	}
	m.asked()
	m.Run("nft", "delete", "table", "inet", "watch")
	m.Write(systemd.NodeFile, "")
	m.WasReset(before, "--allow-disruption")
}
