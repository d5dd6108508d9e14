//go:build e2e

package e2e

import (
	"encoding/json"
	"net/netip"
	"path/filepath"
	"strings"
	"testing"

	"github.com/berthrun/berth/test/systemd"
)

// onMachine is a pod for the node of TestKubeadmJoinsABerthCluster alone.
const onMachine = `apiVersion: v1
kind: Pod
metadata: {name: hello, labels: {app: hello}}
spec:
  nodeSelector: {berth.run/zone: b}
  tolerations: [{key: berth.run/only, value: me, effect: NoSchedule}]
  terminationGracePeriodSeconds: 0
  containers:
  - name: hello
    image: berth.run/hello:demo
    command: [serve, --listen, ":8080"]
    readinessProbe: {httpGet: {path: /healthz, port: 8080}, periodSeconds: 1}
---
apiVersion: v1
kind: Service
metadata: {name: hello}
spec:
  selector: {app: hello}
  ports: [{port: 80, targetPort: 8080}]
`

// TestKubeadmJoinsABerthCluster: a machine joins a cluster that `berth cluster create` has created,
// by the same three commands as any cluster of kubeadm, and runs its pods.
func TestKubeadmJoinsABerthCluster(t *testing.T) {
	joinsABerthCluster(t, func(*systemd.Machine) string { return "name: berth" }, true)
}

// TestKubeadmJoinsABerthClusterWithDocker: the same with a machine on which berth serves CRI over
// docker.
func TestKubeadmJoinsABerthClusterWithDocker(t *testing.T) {
	joinsABerthCluster(t, func(m *systemd.Machine) string { return "name: docker, " + m.DockerRuntime() }, false)
}

// joinsABerthCluster joins a machine with a runtime, given as fields of its node file. owns is true when
// berth itself starts its containers.
func joinsABerthCluster(t *testing.T, runtime func(*systemd.Machine) string, owns bool) {
	t.Helper()
	h := newClusterHost(t, engine{"podman", podmanOnly})
	t.Log(h.cluster("build-image", "--kubernetes", h.bin, "--rootfs", "../../out/systemd/root"))
	t.Log(h.cluster("create", "--config", h.write("name: joined\nnodes: [{}]\n"), "--wait", "10m"))
	const plane = "joined-control-plane"

	files := map[string]string{}
	for _, name := range []string{"kubelet", "kubeadm"} {
		files["/usr/bin/"+name] = filepath.Join(h.bin, name)
	}
	m := systemd.BootNode(t, files)
	m.Run("mknod", "/dev/kmsg", "c", "1", "11") // which a kubelet reads
	ip := h.plug(m)
	// The engine's name servers answer its own containers only.
	planeIP := h.kubectl("get", "node", plane, "-o", `jsonpath={.status.addresses[?(@.type=="InternalIP")].address}`)
	m.Run("sh", "-c", "echo "+planeIP+" "+plane+" >> /etc/hosts")

	const pods = "10.244.1.0/24" // which the second node of a cluster gets
	m.Applied(strings.NewReplacer("name: berth", runtime(m), "@PODS@", pods, "@IP@", ip, "@ZONE@", "b", "@TAINTS@", "berth.run/only=me:NoSchedule").Replace(joinable))
	joins(t, m, "machine", h.run("podman", "exec", plane, "kubeadm", "token", "create", "--print-join-command"))

	h.kubectl("wait", "--for=create", "node/machine", "--timeout="+h.patience()) // the kubelet registers it after kubeadm has ended
	h.kubectl("wait", "--for=condition=Ready", "node/machine", "--timeout="+h.patience())
	var n joined
	if err := json.Unmarshal([]byte(h.kubectl("get", "node", "machine", "-o", "json")), &n); err != nil {
		t.Fatal(err)
	}
	n.isAsDescribed(t, "b", ip, 1)
	if n.Spec.PodCIDR != pods {
		t.Errorf("the cluster gives the node pods of %s, want %s", n.Spec.PodCIDR, pods)
	}
	m.Run("/opt/berth", "image", "import", "/opt/hello-image.tar")
	h.ownPods(m, plane)
	h.apply(onMachine)
	h.kubectl("wait", "--for=condition=Ready", "pod/hello", "--timeout="+h.patience())
	if got := h.kubectl("get", "pod", "hello", "-o", "jsonpath={.spec.nodeName} {.status.podIP}"); !strings.HasPrefix(got, "machine 10.244.1.") {
		t.Errorf("the pod is on %s, want machine and an address of %s", got, pods)
	}
	if got := h.kubectl("logs", "hello"); !strings.Contains(got, "serving") {
		t.Errorf("the pod's log: %q", got)
	}
	service := h.kubectl("get", "service", "hello", "-o", "jsonpath={.spec.clusterIP}")
	h.until(t, "hello", "exec", "hello", "--", "get", "http://"+service+"/")
	if out := m.Run("/opt/berth", "node", "apply", "--yes"); !strings.Contains(out, "Nothing to change.") {
		t.Errorf("apply changes the node that kubeadm has joined:\n%s", out)
	}
	if owns {
		haveOwnInit(t, m)
	}
	m.Unplug()
	t.Log(h.cluster("delete", "joined"))
	h.nothingLeft("joined")
}

// ownPods waits until the pods that the cluster runs on each node run on a machine. It copies their
// images from a control plane, because no registry is reachable from here.
func (h *clusterHost) ownPods(m *systemd.Machine, plane string) {
	h.t.Helper()
	const archive = "/var/own.tar"
	sets := []string{"daemonset/kube-proxy", "daemonset/berth-storage"}
	images := strings.Fields(h.kubectl(append(append([]string{"-n", "kube-system", "get"}, sets...), "-o", "jsonpath={.items[*].spec.template.spec.containers[*].image}")...))
	h.run(append([]string{"podman", "exec", plane, "berth", "image", "save", "-o", archive}, images...)...)
	h.run("podman", "cp", plane+":"+archive, filepath.Join(m.Root, archive))
	m.Run("/opt/berth", "image", "import", archive)
	for _, set := range sets {
		h.kubectl("-n", "kube-system", "rollout", "status", set, "--timeout="+h.patience())
	}
}

// plug connects a machine to the network of the nodes, and returns its address there: the last one,
// because podman gives its containers the first free ones.
func (h *clusterHost) plug(m *systemd.Machine) string {
	h.t.Helper()
	bridge := h.run("podman", "network", "inspect", "kind", "--format", "{{.NetworkInterface}}")
	for _, text := range strings.Fields(h.run("podman", "network", "inspect", "kind", "--format", "{{range .Subnets}}{{.Subnet}} {{end}}")) {
		subnet, err := netip.ParsePrefix(text)
		if err != nil {
			h.t.Fatal(err)
		}
		if !subnet.Addr().Is4() {
			continue
		}
		last := subnet.Masked().Addr()
		for next := last.Next(); subnet.Contains(next.Next()); next = next.Next() {
			last = next
		}
		m.Plug(h.namespace, bridge, netip.PrefixFrom(last, subnet.Bits()).String())
		return last.String()
	}
	h.t.Fatal("the network of the nodes has no subnet of IPv4")
	return ""
}
