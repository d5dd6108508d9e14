//go:build e2e

package e2e

import (
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/berthrun/berth/internal/image/imagetest"
	"github.com/berthrun/berth/test/systemd"
)

// joinable is a machine for kubeadm whose kubelet works on this host.
const joinable = `
apiVersion: berth.run/v1alpha1
kind: Node
runtime: {name: berth}
network: {mode: builtin, podCIDRs: [@PODS@]}
kernel: {defaultSysctls: false, sysctls: {net.ipv4.ip_forward: "1"}}
kubelet:
  kubeadm: true
  flags:
    node-ip: @IP@
    node-labels: berth.run/zone=@ZONE@
    register-with-taints: "@TAINTS@"
    fail-swap-on: "false"
    feature-gates: KubeletInUserNamespace=true
    oom-score-adj: "0"
    resolv-conf: ""
`

// TestKubeadmInThreeCommands: berth node apply, berth node kubeadm and kubeadm create a cluster of
// one machine and join another to it, with the arguments that kubeadm prints.
func TestKubeadmInThreeCommands(t *testing.T) {
	kubelet := os.Getenv("KUBELET")
	if kubelet == "" {
		t.Fatal("KUBELET is not set: run `make e2e`, or test/kube/build.sh and set it to the kubelet")
	}
	programs := filepath.Dir(kubelet)
	files := map[string]string{}
	for _, name := range []string{"kubelet", "kubeadm", "kubectl"} {
		files["/usr/bin/"+name] = filepath.Join(programs, name)
	}
	worker := systemd.BootNode(t, files)
	files["/opt/images"] = controlPlane(t, programs)
	plane := systemd.BootNode(t, files)
	systemd.Link(plane, "10.200.0.1/24", worker, "10.200.0.2/24")
	for _, c := range []struct {
		m                      *systemd.Machine
		pods, ip, zone, taints string
	}{
		{plane, "10.88.1.0/24", "10.200.0.1", "a", ""},
		{worker, "10.88.2.0/24", "10.200.0.2", "b", "berth.run/only=me:NoSchedule"},
	} {
		c.m.Run("mknod", "/dev/kmsg", "c", "1", "11") // which a kubelet reads
		c.m.Applied(strings.NewReplacer("@PODS@", c.pods, "@IP@", c.ip, "@ZONE@", c.zone, "@TAINTS@", c.taints).Replace(joinable))
	}
	plane.Run("sh", "-c", "for image in /opt/images/*; do /opt/berth image import $image || exit 1; done")

	plane.Run("/opt/berth", "node", "kubeadm", "init", "--pod-network-cidr", "10.88.0.0/16", "--node-name", "plane", "--out", "/root/init.yaml")
	// This host may be small, and the test needs no DNS and no Services.
	t.Log(kubeadm(t, plane, "init", "--config", "/root/init.yaml", "--skip-phases=addon", "--ignore-preflight-errors=NumCPU,Mem"))

	joins(t, worker, "worker", plane.Run("kubeadm", "token", "create", "--print-join-command"))

	kubectl := func(args ...string) string {
		return plane.Run(append([]string{"kubectl", "--kubeconfig", "/etc/kubernetes/admin.conf"}, args...)...)
	}
	kubectl("wait", "--for=condition=Ready", "node/plane", "node/worker", "--timeout=150s")
	var nodes struct{ Items []joined }
	if err := json.Unmarshal([]byte(kubectl("get", "nodes", "-o", "json")), &nodes); err != nil {
		t.Fatal(err)
	}
	for _, n := range nodes.Items {
		zone, ip, taints := "a", "10.200.0.1", 0
		if n.Metadata.Name == "worker" {
			zone, ip, taints = "b", "10.200.0.2", 1
		}
		n.isAsDescribed(t, zone, ip, taints)
	}
	if len(nodes.Items) != 2 {
		t.Errorf("the cluster has %d nodes, want 2", len(nodes.Items))
	}
	if out := worker.Run("/opt/berth", "node", "apply", "--yes"); !strings.Contains(out, "Nothing to change.") {
		t.Errorf("apply changes the node that kubeadm has joined:\n%s", out)
	}
	haveOwnInit(t, plane)
}

// haveOwnInit requires that berth's own init has created at least 95 % of the containers of a machine, and
// one at least.
func haveOwnInit(t *testing.T, m *systemd.Machine) {
	t.Helper()
	var shown struct {
		Info struct {
			Engine struct{ Starters, StarterReasons map[string]int }
		}
	}
	if err := json.Unmarshal([]byte(m.Run("/opt/berth", "info", "--output", "json")), &shown); err != nil {
		t.Fatal(err)
	}
	all := 0
	for _, n := range shown.Info.Engine.Starters {
		all += n
	}
	own := shown.Info.Engine.Starters["own"]
	t.Logf("berth's own init has created %d of %d containers; others: %v", own, all, shown.Info.Engine.StarterReasons)
	if own == 0 || own*100 < all*95 {
		t.Errorf("berth's own init has created %d of %d containers: %v", own, all, shown.Info.Engine.StarterReasons)
	}
}

// joined is the state of a node in its cluster.
type joined struct {
	Metadata struct {
		Name   string
		Labels map[string]string
	}
	Spec struct {
		PodCIDR string
		Taints  []taint
	}
	Status struct {
		Addresses []struct{ Type, Address string }
		NodeInfo  struct{ ContainerRuntimeVersion string }
	}
}

type taint struct{ Key, Value, Effect string }

// ofController reports whether a controller of the cluster set the taint. It removes the one of a
// node that is not ready some time after the node is.
func ofController(t taint) bool { return strings.HasPrefix(t.Key, "node.kubernetes.io/") }

// isAsDescribed requires what the node file joinable describes.
func (n joined) isAsDescribed(t *testing.T, zone, ip string, taints int) {
	t.Helper()
	if got := n.Metadata.Labels["berth.run/zone"]; got != zone {
		t.Errorf("%s: label %q, want %q", n.Metadata.Name, got, zone)
	}
	if got := n.Status.Addresses[0].Address; got != ip {
		t.Errorf("%s: address %s, want %s", n.Metadata.Name, got, ip)
	}
	described := slices.DeleteFunc(n.Spec.Taints, ofController)
	if len(described) != taints || taints > 0 && described[0].Key != "berth.run/only" {
		t.Errorf("%s: taints %v, want those of its node file", n.Metadata.Name, described)
	}
	if got := n.Status.NodeInfo.ContainerRuntimeVersion; !strings.HasPrefix(got, "berth://") {
		t.Errorf("%s: runtime %s", n.Metadata.Name, got)
	}
}

// joins runs the join command that kubeadm has printed, on a machine.
func joins(t *testing.T, m *systemd.Machine, name, printed string) {
	t.Helper()
	_, command, found := strings.Cut(printed, "kubeadm join ") // warnings come before it
	if !found {
		t.Fatalf("kubeadm prints %q", printed)
	}
	args := append([]string{"/opt/berth", "node", "kubeadm", "join"}, strings.Fields(command)...)
	m.Run(append(args, "--node-name", name, "--out", "/root/join.yaml")...)
	t.Log(kubeadm(t, m, "join", "--config", "/root/join.yaml"))
}

// kubeadm runs a verb of kubeadm and prints the kubelet's log if it fails.
func kubeadm(t *testing.T, m *systemd.Machine, args ...string) string {
	t.Helper()
	out, err := m.Try(append([]string{"kubeadm"}, args...)...)
	if err != nil {
		log, _ := m.Try("journalctl", "-n", "60", "-o", "cat", "-u", "kubelet.service")
		pods, _ := m.Try("/opt/berth", "pod", "ls")
		t.Fatalf("kubeadm %s: %v\n%s\n%s\n%s", args[0], err, out, pods, log)
	}
	return out
}

// controlPlane builds archives of the images that kubeadm runs, from programs.
func controlPlane(t *testing.T, programs string) string {
	t.Helper()
	dir := t.TempDir()
	said := func(args ...string) string {
		out, err := exec.CommandContext(t.Context(), filepath.Join(programs, "kubeadm"), args...).Output()
		if err != nil {
			t.Fatalf("kubeadm %s: %v", strings.Join(args, " "), err)
		}
		return strings.TrimSpace(string(out))
	}
	version := said("version", "-o", "short")
	for _, image := range strings.Fields(said("config", "images", "list", "--kubernetes-version", version)) {
		name, _, _ := strings.Cut(path.Base(image), ":")
		spec := imagetest.Spec{Name: image}
		if name == "pause" || name == "coredns" {
			spec.Files = []imagetest.File{{Path: "/nothing"}} // kubeadm requires it, and nothing runs it
		} else {
			spec.Files = []imagetest.File{{Path: "/usr/local/bin/" + name, Source: filepath.Join(programs, name), Mode: 0o755}}
			spec.Env = []string{"PATH=/usr/local/bin"}
		}
		archive, err := os.Create(filepath.Join(dir, name+".tar"))
		if err == nil {
			err = errors.Join(imagetest.Archive(archive, spec), archive.Close())
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	return dir
}
