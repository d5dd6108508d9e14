//go:build e2e

package e2e

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// write writes a cluster file.
func (h *clusterHost) write(text string) string {
	h.t.Helper()
	file := filepath.Join(h.t.TempDir(), "cluster.yaml")
	if err := os.WriteFile(file, []byte("kind: Cluster\napiVersion: berth.run/v1alpha1\n"+text), 0o600); err != nil {
		h.t.Fatal(err)
	}
	return file
}

// eventually runs kubectl until it succeeds: a request that a removed control plane received is
// repeated.
func (h *clusterHost) eventually(what string, args ...string) string {
	h.t.Helper()
	begun := time.Now()
	for {
		out, err := h.try(nil, append([]string{filepath.Join(h.bin, "kubectl"), "--request-timeout=20s"}, args...)...)
		if err == nil {
			h.t.Logf("%s: after %s", what, time.Since(begun).Round(100*time.Millisecond))
			return out
		}
		if time.Since(begun) > 10*time.Minute {
			h.t.Fatalf("%s: %v\n%s", what, err, out)
		}
	}
}

// TestClusterOfThreeControlPlanes: one is killed, and the API stays available. All are stopped, and
// come back in any order of their starts.
func TestClusterOfThreeControlPlanes(t *testing.T) {
	h := newClusterHost(t, engine{"podman", podmanOnly})
	t.Log(h.cluster("build-image", "--kubernetes", h.bin, "--rootfs", "../../out/systemd/root"))
	file := h.write("name: ha\nnodes: [{}, {}, {}]\n")
	begun := time.Now()
	t.Log(h.cluster("create", "--config", file, "--wait", "15m"))
	t.Logf("all nodes were Ready after %s", time.Since(begun).Round(100*time.Millisecond))
	if server := h.kubectl("config", "view", "--minify", "-o", "jsonpath={.clusters[0].cluster.server}"); !strings.HasSuffix(server, ":"+h.port("ha-external-load-balancer")) {
		t.Errorf("the API is reached by %s, not by the load balancer", server)
	}
	if members := h.kubectl("-n", "kube-system", "get", "pods", "-l", "component=etcd", "-o", "name"); strings.Count(members, "etcd-") != 3 {
		t.Errorf("members of etcd: %q", members)
	}

	h.run("podman", "kill", "ha-control-plane")
	h.eventually("the API without the first control plane", "label", "node", "ha-control-plane2", "written=yes", "--overwrite")
	// The load balancer no longer uses the killed control plane.
	for range 20 {
		h.kubectl("--request-timeout=20s", "get", "node", "ha-control-plane3")
	}
	h.run("podman", "start", "ha-control-plane")
	h.eventually("the first control plane", "wait", "--for=condition=Ready", "node/ha-control-plane", "--timeout=5m")

	all := strings.Fields(h.run("podman", "ps", "-a", "--format", "{{.Names}}", "--sort", "names"))
	if len(all) != 4 {
		t.Fatalf("containers: %q", all)
	}
	h.run(append([]string{"podman", "stop", "-t", "30"}, all...)...)
	slices.Reverse(all)
	for _, name := range all {
		h.run("podman", "start", name)
	}
	if got := h.eventually("the API after all were stopped", "get", "node", "ha-control-plane2", "-o", "jsonpath={.metadata.labels.written}"); got != "yes" {
		t.Errorf("what was written is %q", got)
	}
	t.Log(h.cluster("start", "ha", "--wait", "15m"))
	logs := t.TempDir()
	h.cluster("logs", "--name", "ha", logs)
	if text, err := os.ReadFile(filepath.Join(logs, "ha-external-load-balancer", "haproxy.cfg")); err != nil || strings.Count(string(text), "server ha-control-plane") != 6 {
		t.Errorf("the load balancer's configuration: %v\n%s", err, text)
	}
	t.Log(h.cluster("delete", "ha"))
	h.nothingLeft("ha")
}

// node runs a command of `berth cluster node`.
func (h *clusterHost) node(verb string, args ...string) string {
	h.t.Helper()
	return h.run(append([]string{h.berth, "cluster", "node", verb, "--provider", "podman"}, args...)...)
}

// port is the host port that leads to the API through a container.
func (h *clusterHost) port(container string) string {
	h.t.Helper()
	at := h.run("podman", "port", container, "6443/tcp")
	return at[strings.LastIndex(at, ":")+1:]
}

// TestClusterNodesComeAndGo: a cluster of two control planes gets a worker and another control
// plane, and loses its first one.
func TestClusterNodesComeAndGo(t *testing.T) {
	h := newClusterHost(t, engine{"podman", podmanOnly})
	t.Log(h.cluster("build-image", "--kubernetes", h.bin, "--rootfs", "../../out/systemd/root"))
	file := h.write("name: go\nnodes: [{}, {}]\n")
	t.Log(h.cluster("create", "--config", file, "--wait", "15m"))
	if added := h.node("add", "go", "--labels", "tier=web", "--wait", "10m"); !strings.HasSuffix(added, "\ngo-worker") {
		t.Errorf("added %q", added)
	}
	archive := filepath.Join(filepath.Dir(h.berth), "hello-image.tar")
	h.cluster("load", "--name", "go", "--archive", archive)
	if out, err := h.try([]byte(strings.ReplaceAll(workload, "replicas: 2", "replicas: 1")), filepath.Join(h.bin, "kubectl"), "apply", "-f", "-"); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	h.kubectl("rollout", "status", "deployment/web", "--timeout=10m")

	edited := h.write("name: go\nnodes: [{}, {}, {role: worker, name: other}, {role: control-plane}]\n")
	if out, err := h.try(nil, h.berth, "cluster", "apply", "--provider", "podman", "-f", edited); err == nil || !strings.Contains(out, "go-other: is added") || !strings.Contains(out, "use --yes") {
		t.Errorf("nobody was asked: %v\n%s", err, out)
	}
	t.Log(h.cluster("apply", "-f", edited, "--yes", "--wait", "15m"))
	if nodes := h.kubectl("get", "nodes", "-o", "jsonpath={.items[*].metadata.name}"); nodes != "go-control-plane go-control-plane2 go-control-plane3 go-other" {
		t.Errorf("nodes: %q", nodes)
	}
	// The pod has left the removed worker; the other one has the image by now.
	h.cluster("load", "--name", "go", "--archive", archive)
	h.kubectl("rollout", "status", "deployment/web", "--timeout=10m")
	if on := h.kubectl("get", "pods", "-l", "app=web", "-o", "jsonpath={.items[*].spec.nodeName}"); on != "go-other" {
		t.Errorf("the pod is on %q", on)
	}
	t.Log(h.node("remove", "--name", "go", "go-control-plane"))
	h.eventually("the API without the first control plane", "label", "node", "go-control-plane2", "written=yes", "--overwrite")
	h.eventually("the end of its etcd", "-n", "kube-system", "wait", "--for=delete", "pod/etcd-go-control-plane", "--timeout=1m")
	if nodes := h.kubectl("get", "nodes", "-o", "jsonpath={.items[*].metadata.name}"); nodes != "go-control-plane2 go-control-plane3 go-other" {
		t.Errorf("nodes: %q", nodes)
	}
	if out := h.cluster("apply", "-f", h.write("name: go\nnodes: [{name: control-plane2}, {role: worker, name: other}, {name: control-plane3}]\n")); !strings.Contains(out, "matches its file") {
		t.Errorf("once more: %s", out)
	}
	t.Log(h.cluster("delete", "go"))
	h.nothingLeft("go")
}
