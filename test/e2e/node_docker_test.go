//go:build e2e

package e2e

import (
	"errors"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/berthrun/berth/internal/require"
	"github.com/berthrun/berth/test/systemd"
)

// overDocker is a node on which berth serves CRI over docker, for a kubelet that the file does not
// have.
const overDocker = `
apiVersion: berth.run/v1alpha1
kind: Node
runtime: {name: docker, socket: /run/berth/berth.sock, @RUNC@}
network: {mode: kubenet, podCIDRs: [10.88.7.0/24]}
kernel: {defaultSysctls: false, sysctls: {net.ipv4.ip_forward: "1"}}
images:
- {source: /opt/hello-image.tar, digest: "sha256:@HELLO@", names: ["berth.run/hello:demo"]}
`

const berthSocket = "unix:///run/berth/berth.sock"

// shown is one value of `systemctl show`.
func shown(m *systemd.Machine, unit, property string) string {
	return strings.TrimSpace(m.Run("systemctl", "show", "--value", "-p", property, unit))
}

// TestNodeOfBerthOverDocker: one file makes a machine with docker, and berth that serves CRI over
// it. Pods survive the restart of either. Drift is repaired, and reset restores the machine.
func TestNodeOfBerthOverDocker(t *testing.T) {
	m := systemd.BootNode(t, nil)
	m.Write(systemd.NodeFile, "")
	m.Write("/etc/hello-pod.yaml", webPod)
	node := strings.Replace(overDocker, "@RUNC@", m.DockerRuntime(), 1)
	before := m.Tree(systemd.Volatile()...)

	m.Describe(node)
	plan := m.Run("/opt/berth", "node", "plan")
	for _, want := range []string{"/etc/berth/berth.toml", "/etc/docker/daemon.json", "unit berth.service", "unit docker.service"} {
		if !strings.Contains(plan, want) {
			t.Errorf("the plan does not name %s:\n%s", want, plan)
		}
	}
	if strings.Contains(plan, "berth-supervisor") {
		t.Errorf("the plan has a supervisor, which docker does not need:\n%s", plan)
	}
	m.Applied(node)
	m.IsWell()
	if order := shown(m, "berth.service", "After"); !strings.Contains(order, "docker.service") {
		t.Errorf("berth does not start after docker, but after %s", order)
	}

	m.Run("/opt/berth", "pod", "run", "-d", "-f", "/etc/hello-pod.yaml")
	m.PodAnswers(berthSocket, 8081)
	containers := m.Run("docker", "ps", "--format", "{{.Names}}")
	if !strings.Contains(containers, "k8s_POD_hello_default") {
		t.Errorf("docker does not run the pod:\n%s", containers)
	}
	for _, unit := range []string{"docker.service", "berth.service", "docker.service"} {
		m.Run("systemctl", "restart", unit)
		m.PodAnswers(berthSocket, 8081)
		if now := m.Run("docker", "ps", "--format", "{{.Names}}"); now != containers {
			t.Errorf("after the restart of %s docker runs\n%s\nand not\n%s", unit, now, containers)
		}
	}
	if out := strings.TrimSpace(m.Run("/opt/berth", "pod", "exec", "hello", "--", "hostname")); out != "hello" {
		t.Errorf("exec prints %q", out)
	}
	driftIsRepaired(t, m)
	m.PodAnswers(berthSocket, 8081)

	// Docker's own containers are named, and stopped, too.
	m.Run("docker", "run", "-d", "--name", "web", "berth.run/hello:demo", "serve", "--listen", ":8082")
	m.Write(systemd.NodeFile, "")
	out, err := m.Try("/opt/berth", "node", "reset", "--yes")
	for _, want := range []string{"its pods (1) are stopped and removed before: default/hello", "its containers (1) are stopped before: web"} {
		if err == nil || !strings.Contains(out, want) {
			t.Errorf("reset without consent ends with %v and does not say %q:\n%s", err, want, out)
		}
	}
	m.PodAnswers(berthSocket, 8081)
	m.WasReset(before, "--allow-disruption")
	if list, err := m.Try("pgrep", "-fa", "hello|containerd-shim"); err == nil {
		t.Errorf("processes of containers are left: %s", list)
	}
}

// TestNodeOfCurrentDocker makes a node of the engine that BERTH_DOCKERD names, from assets. It has no
// command docker.
func TestNodeOfCurrentDocker(t *testing.T) {
	dockerd := require.Given(t, "BERTH_DOCKERD", "dockerd with containerd and runc beside it")
	m := systemd.BootNode(t, map[string]string{"/opt/docker-current/docker": filepath.Dir(dockerd)})
	m.Write(systemd.NodeFile, "")
	m.Write("/etc/hello-pod.yaml", webPod)
	node := strings.Replace(overDocker, "@RUNC@", m.DockerRuntime()+
		", assets: [{source: /opt/docker-current}], config: {additions: {userland-proxy: false}}", 1) // whose program may not be there
	before := m.Tree(systemd.Volatile()...)

	m.Applied(node)
	m.IsWell()
	m.Run("/opt/berth", "pod", "run", "-d", "-f", "/etc/hello-pod.yaml")
	m.PodAnswers(berthSocket, 8081)
	for _, unit := range []string{"docker.service", "berth.service", "docker.service"} {
		m.Run("systemctl", "restart", unit)
		m.PodAnswers(berthSocket, 8081)
	}
	if out := strings.TrimSpace(m.Run("/opt/berth", "pod", "exec", "hello", "--", "hostname")); out != "hello" {
		t.Errorf("exec prints %q", out)
	}
	m.Write(systemd.NodeFile, "")
	m.WasReset(before, "--allow-disruption")
}

// driftIsRepaired spoils parts of the node one after the other.
func driftIsRepaired(t *testing.T, m *systemd.Machine) {
	t.Helper()
	for _, c := range []struct{ spoil, want string }{
		{"systemctl disable -q --now berth.service", "unit berth.service"},
		{"echo 'engine = \"native\"' > /etc/berth/berth.toml", "file /etc/berth/berth.toml"},
		{"sed -i 's/true/false/' /etc/docker/daemon.json", "/etc/docker/daemon.json#live-restore"},
		{"systemctl stop docker.socket docker.service", "unit docker.service"},
	} {
		m.Run("sh", "-c", c.spoil)
		out, err := m.Try("/opt/berth", "node", "diff")
		if exit := (*exec.ExitError)(nil); !errors.As(err, &exit) || exit.ExitCode() != 2 || !strings.Contains(out, c.want) {
			t.Errorf("after %s diff ends with %v and does not show %q:\n%s", c.spoil, err, c.want, out)
		}
		m.Run("/opt/berth", "node", "apply", "--yes")
		m.Run("/opt/berth", "node", "diff")
	}
}

// ofEngines is a machine that changes between berth's engines and containerd.
type ofEngines struct {
	*systemd.Machine
	t *testing.T
}

// to applies the node file of another runtime: the plan names the pod that stops, and apply asks
// for consent.
func (m ofEngines) to(name, from, text string) {
	m.t.Helper()
	m.Describe(text)
	plan := m.Run("/opt/berth", "node", "plan")
	for _, want := range []string{
		"pod default/hello is stopped in " + from + "; there is no kubelet to start it in " + name,
		"running pods: stops the pods that run in " + from + " (1)",
	} {
		if !strings.Contains(plan, want) {
			m.t.Errorf("the plan to %s does not say %q:\n%s", name, want, plan)
		}
	}
	if out, err := m.Try("/opt/berth", "node", "apply", "--yes"); err == nil || !strings.Contains(out, "nothing was changed") {
		m.t.Errorf("apply stops pods without consent: %v\n%s", err, out)
	}
	m.Run("/opt/berth", "node", "apply", "--yes", "--allow-disruption")
	if out := m.Run("/opt/berth", "node", "apply", "--yes"); !strings.Contains(out, "Nothing to change.") {
		m.t.Errorf("a second apply of %s changes something:\n%s", name, out)
	}
	m.runs(name)
}

// failsTo applies a node file whose docker starts no container, on a machine of berth. The native
// engine runs again afterwards.
func (m ofEngines) failsTo(text string) {
	m.t.Helper()
	m.Describe(text)
	out, err := m.Try("/opt/berth", "node", "apply", "--yes", "--allow-disruption")
	if err == nil || !strings.Contains(out, "berth.service is not healthy") || !strings.Contains(out, "done  undo") {
		m.t.Errorf("apply of a docker without a runtime ends with %v:\n%s", err, out)
	}
	m.runs("berth")
}

// runs checks that the runtime runs and no other does, and runs a pod with it.
func (m ofEngines) runs(name string) {
	m.t.Helper()
	socket := berthSocket
	if name == "containerd" {
		socket = "unix:///run/containerd/containerd.sock"
	}
	active := map[string]bool{
		"berth.service": name != "containerd", "berth-supervisor.service": name == "berth", "docker.service": name == "docker",
	}
	for unit, want := range active {
		if out, err := m.Try("systemctl", "is-active", unit); (err == nil) != want {
			m.t.Errorf("with %s, %s is %s", name, unit, out)
		}
	}
	m.Run("/opt/berth", "pod", "run", "-d", "-f", "/etc/hello-pod.yaml", "--endpoint", socket)
	m.PodAnswers(socket, 8081)
}

// TestNodeSwitchOfEngines: berth, docker and containerd replace each other, by apply and by
// rollback. Pods are reported and stopped before, and reset finds everything that each has created.
func TestNodeSwitchOfEngines(t *testing.T) {
	m := ofEngines{systemd.BootNode(t, nil), t}
	m.Write(systemd.NodeFile, "")
	m.Write("/etc/hello-pod.yaml", webPod)
	docker := strings.Replace(overDocker, "@RUNC@", m.DockerRuntime(), 1)
	before := m.Tree(systemd.Volatile()...)
	const runtime = "{name: docker, socket: /run/berth/berth.sock, @RUNC@}"
	berth := strings.Replace(overDocker, runtime, "{name: berth}", 1)
	containerd := strings.Replace(overDocker, runtime, `{name: containerd, sandboxImage: "berth.run/hello:demo", config: `+
		`{additions: {plugins."io.containerd.grpc.v1.cri".restrict_oom_score_adj: true}}}`, 1)

	m.Applied(berth)
	m.runs("berth")
	m.failsTo(strings.Replace(overDocker, "@RUNC@", "handlers: [{name: broken, path: /bin/false}], defaultHandler: broken", 1))
	m.to("docker", "berth", docker)
	m.to("containerd", "docker", containerd)
	m.to("docker", "containerd", docker)
	m.to("berth", "docker", berth)

	// Back to docker, containerd and the first berth. Entry 2 failed.
	for _, step := range []struct{ number, name, text string }{
		{"5", "docker", docker}, {"4", "containerd", containerd}, {"1", "berth", berth},
	} {
		out, err := m.Try("/opt/berth", "node", "rollback", step.number, "--yes")
		if err == nil || !strings.Contains(out, "its pods (1) are stopped and removed before: default/hello") {
			t.Errorf("rollback to %s stops pods without consent: %v\n%s", step.name, err, out)
		}
		m.Run("/opt/berth", "node", "rollback", step.number, "--yes", "--allow-disruption")
		m.Describe(step.text)
		m.runs(step.name)
	}
	m.Write(systemd.NodeFile, "")
	m.WasReset(before, "--allow-disruption")
}
