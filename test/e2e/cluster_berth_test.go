//go:build e2e

package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/berthrun/berth/internal/require"
	"github.com/berthrun/berth/test/harness"
)

// TestClusterOfBerth: one control plane and two workers that are system containers of a berth of
// the test's own, over a stop and a reboot of the host, until nothing is left.
func TestClusterOfBerth(t *testing.T) {
	b := harness.Start(t, harness.Options{NoImages: true, BinDir: harness.Bootable(t)})
	h := hostOf(t, b)
	t.Log(h.cluster("build-image", "--kubernetes", h.bin, "--rootfs", "../../out/systemd/root"))
	h.life(b, 2, []change{
		{"restart", func() { t.Log(h.cluster("restart", "e2e", "--wait", h.patience())) }},
		{"reboot", func() {
			b.Reboot()
			b.StartDaemon()
			h.run(h.berth, "cluster", "in-host", "up") // as berth-cluster.service does
			h.eventually("the API after a reboot", "get", "nodes")
		}},
	})
}

// change is something that happens to a cluster. The cluster must be the same afterwards.
type change struct {
	name string
	do   func()
}

// life creates a cluster of one control plane and some workers from containers of b, whose image
// exists. It checks that the cluster works, over changes, and that nothing is left.
func (h *clusterHost) life(b *harness.Berth, workers int, changes []change) {
	t, last := h.t, "e2e-worker"
	if workers == 0 {
		last = "e2e-control-plane"
	}
	begun := time.Now()
	t.Log(h.cluster("create", "--config", clusterFile(t, workers), "--wait", h.patience()))
	t.Logf("all nodes were Ready after %s", time.Since(begun).Round(100*time.Millisecond))
	addresses := h.addresses(1 + workers)
	archive := filepath.Join(os.Getenv("BERTH_BIN"), "hello-image.tar")
	h.run(h.berth, "image", "import", archive)
	t.Log(h.cluster("load", "--name", "e2e", "--nodes", last, "berth.run/hello:demo"))
	t.Log(h.cluster("load", "--name", "e2e", "--archive", archive))
	h.deploy(max(1, workers)) // the only node runs pods
	t.Run("answers", func(t *testing.T) { h.answers(t, addresses...) })
	t.Run("cgroups", func(t *testing.T) { h.inGroups(t, b) })
	for _, c := range changes {
		t.Run(c.name, func(t *testing.T) {
			c.do()
			if now := h.addresses(1 + workers); strings.Join(now, " ") != strings.Join(addresses, " ") {
				t.Errorf("addresses are %q, and were %q", now, addresses)
			}
			h.kubectl("rollout", "status", "deployment/web", "--timeout="+h.patience())
			h.answers(t, addresses...)
		})
		t.Run("cgroups after the "+c.name, func(t *testing.T) { h.inGroups(t, b) })
	}
	logs := t.TempDir()
	h.cluster("logs", "--name", "e2e", logs)
	if text, err := os.ReadFile(filepath.Join(logs, last, "kubelet.log")); err != nil || len(text) == 0 {
		t.Errorf("the kubelet's log: %d bytes, %v", len(text), err)
	}
	for range 2 {
		t.Log(h.cluster("delete", "e2e"))
	}
	h.nothingLeft("e2e")
}

// TestClusterRegistryOfBerth: the registry is a container of berth beside the nodes, which resolve
// its name.
func TestClusterRegistryOfBerth(t *testing.T) {
	require.Binary(t, "busybox")
	h := hostOf(t, harness.Start(t, harness.Options{NoImages: true}))
	t.Log(h.cluster("build-image", "--kubernetes", h.bin, "--rootfs", "../../out/systemd/root"))
	t.Log(h.cluster("create", "--config", h.write("name: parts\nnodes: [{}]\nregistry: {enabled: true, port: 5001}\n"), "--wait", h.patience()))
	for range 2 {
		if got := h.cluster("registry", "status"); !strings.Contains(got, "localhost:5001") || !strings.Contains(got, "running") {
			t.Errorf("status:\n%s", got)
		}
		if got := h.run("busybox", "wget", "-qO-", "http://127.0.0.1:5001/v2/"); got != "{}" {
			t.Errorf("the registry answers this host with %q", got)
		}
		said, err := h.try(nil, h.berth, "pod", "exec", "berth-cluster/parts-control-plane", "--", "berth", "image", "pull", "localhost:5001/none:1")
		if err == nil || !strings.Contains(said+err.Error(), "none:1") || !strings.Contains(said+err.Error(), "not found") {
			t.Errorf("an image that the registry has not, in a node: %s, %v", said, err)
		}
		h.hostWrites(func(script string) string {
			return h.run(h.berth, "pod", "exec", "berth-cluster/parts-control-plane", "--", "bash", "-c", script)
		})
		h.cluster("registry", "stop")
		h.cluster("registry", "start")
	}
	h.cluster("registry", "delete")
	if _, err := h.try(nil, h.berth, "cluster", "registry", "status", "--provider", "berth"); err == nil {
		t.Error("it is there after its deletion")
	}
	t.Log(h.cluster("delete", "parts"))
	h.nothingLeft("parts")
}

// TestClusterPortsOfBerth: a worker whose ports change keeps its volume, and nothing else.
func TestClusterPortsOfBerth(t *testing.T) {
	h := hostOf(t, harness.Start(t, harness.Options{NoImages: true}))
	t.Log(h.cluster("build-image", "--kubernetes", h.bin, "--rootfs", "../../out/systemd/root"))
	t.Log(h.cluster("create", "--config", h.write("name: parts\nnodes: [{}, {role: worker}]\n"), "--wait", h.patience()))
	inWorker := func(script string) string {
		return h.run(h.berth, "pod", "exec", "berth-cluster/parts-worker", "--", "sh", "-c", script)
	}
	inWorker("echo kept > /var/lib/mark; echo gone > /root/mark")
	t.Log(h.cluster("apply", "-f", h.write("name: parts\nnodes: [{}, {role: worker, extraPortMappings: [{containerPort: 30080, hostPort: 38080}]}]\n"), "--yes", "--wait", h.patience()))
	if got := inWorker("cat /var/lib/mark; cat /root/mark 2>/dev/null || echo none"); got != "kept\nnone" {
		t.Errorf("on the worker: %q", got)
	}
	if got := h.cluster("nodes", "parts", "-o", "json"); !strings.Contains(got, "38080") {
		t.Errorf("no such port: %s", got)
	}
	h.kubectl("wait", "--for=condition=Ready", "node/parts-worker", "--timeout=1m")
	t.Log(h.cluster("delete", "parts"))
	h.nothingLeft("parts")
}

// hostOf are the commands beside a berth.
func hostOf(t *testing.T, b *harness.Berth) *clusterHost {
	t.Helper()
	t.Setenv("BERTH_ENDPOINT", "unix://"+b.Socket)
	return (&clusterHost{t: t, engine: "berth", nodes: b.Root + "-cluster", namespace: b.NetNS}).equipped()
}

// slowly is for a machine on which etcd answers after seconds, and leases expire before they are
// renewed. The argument is kubeadm's timeout.
const slowly = `kubeadmConfigPatches:
- |
  kind: InitConfiguration
  timeouts: {controlPlaneComponentHealthCheck: %[1]s, kubeletHealthCheck: %[1]s, tlsBootstrap: %[1]s, kubernetesAPICall: %[1]s, etcdAPICall: %[1]s}
- |
  kind: JoinConfiguration
  timeouts: {discovery: %[1]s, kubeletHealthCheck: %[1]s, tlsBootstrap: %[1]s, kubernetesAPICall: %[1]s}
- |
  kind: ClusterConfiguration
  apiServer: {extraArgs: {etcd-healthcheck-timeout: 30s, etcd-readycheck-timeout: 30s}}
  controllerManager: {extraArgs: {leader-elect: "false"}}
  scheduler: {extraArgs: {leader-elect: "false"}}
`

// clusterFile describes a cluster of one control plane and some workers.
func clusterFile(t *testing.T, workers int) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "cluster.yaml")
	description := "kind: Cluster\napiVersion: kind.x-k8s.io/v1alpha4\nname: e2e\nnodes: [{role: control-plane}" + strings.Repeat(", {role: worker}", workers) + "]\n"
	if wait := require.Patience(4 * time.Minute); wait > 4*time.Minute {
		description += fmt.Sprintf(slowly, wait)
	}
	if err := os.WriteFile(file, []byte(description), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

// addresses are those of the nodes.
func (h *clusterHost) addresses(nodes int) []string {
	h.t.Helper()
	var all []string
	for line := range strings.Lines(h.cluster("nodes", "e2e")) {
		if fields := strings.Fields(line); fields[0] != "NODE" {
			if fields[2] != "running" {
				h.t.Errorf("node: %s", line)
			}
			all = append(all, fields[3])
		}
	}
	if len(all) != nodes {
		h.t.Errorf("%d nodes, want %d", len(all), nodes)
	}
	return all
}
