//go:build e2e

package e2e

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/berthrun/berth/internal/require"
)

// wholeFile is a file as users of kind have it. The argument is a directory of the host.
const wholeFile = `kind: Cluster
apiVersion: kind.x-k8s.io/v1alpha4
name: e2e
networking:
  apiServerAddress: 127.0.0.1
  apiServerPort: 46443
  podSubnet: 10.200.0.0/16
  serviceSubnet: 10.201.0.0/16
  dnsSearch: [corp.example]
featureGates: {KubeletInUserNamespace: false}
runtimeConfig: {batch/v1: "false"}
kubeadmConfigPatchesJSON6902:
- group: kubeadm.k8s.io
  version: v1beta4
  kind: ClusterConfiguration
  patch: |
    - {op: add, path: /apiServer/certSANs/-, value: api.corp.example}
nodes:
- role: control-plane
  labels: {tier: front}
  kubeadmConfigPatches:
  - |
    kind: InitConfiguration
    nodeRegistration:
      kubeletExtraArgs:
        node-labels: ingress-ready=true
  extraPortMappings:
  - {containerPort: 80, hostPort: 48080}
  - {containerPort: 5353, hostPort: 45353, protocol: UDP, listenAddress: 127.0.0.1}
  - {containerPort: 81, hostPort: 0}
- role: worker
  labels: {tier: back}
  extraMounts:
  - {hostPath: %[1]s/shared, containerPath: /files}
  - {hostPath: %[1]s/kept, containerPath: /kept, readOnly: true}
`

// ingress answers on a port of the node that is mapped to the host. files writes where the host
// reads.
const fileWorkload = `apiVersion: v1
kind: Pod
metadata: {name: ingress}
spec:
  nodeSelector: {ingress-ready: "true", tier: front}
  tolerations: [{operator: Exists}]
  containers:
  - name: web
    image: berth.run/hello:demo
    command: [serve, --listen, ":8080"]
    ports: [{containerPort: 8080, hostPort: 80}]
---
apiVersion: v1
kind: Pod
metadata: {name: files}
spec:
  nodeSelector: {tier: back}
  containers:
  - name: files
    image: berth.run/hello:demo
    command: [sh, -c, "cat /files/from-host > /files/from-pod; serve --listen :8080"]
    volumeMounts: [{name: files, mountPath: /files}]
  volumes: [{name: files, hostPath: {path: /files, type: Directory}}]
`

// TestClusterOfWholeFile: the cluster has everything that a file of kind's requests, also after a
// restart.
func TestClusterOfWholeFile(t *testing.T) {
	require.Binary(t, "busybox")
	h := newClusterHost(t, engine{"podman", podmanOnly})
	t.Log(h.cluster("build-image", "--kubernetes", h.bin, "--rootfs", "../../out/systemd/root"))
	dir := t.TempDir()
	for path, text := range map[string]string{"shared/from-host": "a word", "kept/here": "", "cluster.yaml": fmt.Sprintf(wholeFile, dir)} {
		path = filepath.Join(dir, path)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Chmod(filepath.Join(dir, "shared"), 0o777); err != nil { // the pod is not root
		t.Fatal(err)
	}
	t.Log(h.cluster("create", "--config", filepath.Join(dir, "cluster.yaml"), "--wait", h.patience()))
	h.cluster("load", "--name", "e2e", "--archive", filepath.Join(filepath.Dir(h.berth), "hello-image.tar"))
	t.Run("made", func(t *testing.T) { h.matchesFile(t) })
	h.apply(fileWorkload)
	h.kubectl("wait", "--for=condition=Ready", "pod/ingress", "pod/files", "--timeout="+h.patience())
	h.until(t, "a word", "exec", "files", "--", "cat", "/files/from-pod")
	if text, err := os.ReadFile(filepath.Join(dir, "shared/from-pod")); err != nil || string(text) != "a word" {
		t.Errorf("what the pod wrote: %q, %v", text, err)
	}
	if _, err := h.try(nil, "podman", "exec", "e2e-worker", "touch", "/kept/new"); err == nil {
		t.Error("a node writes to a mount that is to be read only")
	}
	t.Run("port", h.ingress)
	t.Run("restart", func(t *testing.T) {
		t.Log(h.cluster("restart", "e2e", "--wait", h.patience()))
		h.matchesFile(t)
		h.ingress(t)
	})
	t.Log(h.cluster("delete", "e2e"))
	h.nothingLeft("e2e")
}

// matchesFile compares a cluster with wholeFile.
func (h *clusterHost) matchesFile(t *testing.T) {
	t.Helper()
	if got := h.kubectl("config", "view", "--minify", "-o", "jsonpath={.clusters[0].cluster.server}"); got != "https://127.0.0.1:46443" {
		t.Errorf("the API is at %s", got)
	}
	h.until(t, "v1.", "--tls-server-name", "api.corp.example", "version", "-o", "json")
	if got := h.kubectl("api-versions"); strings.Contains(got, "batch/v1") {
		t.Errorf("versions of the API: %s", got)
	}
	if got := h.kubectl("-n", "kube-system", "get", "pod", "kube-apiserver-e2e-control-plane", "-o", "yaml"); !strings.Contains(got, "--feature-gates=KubeletInUserNamespace=false") {
		t.Errorf("the API server is run so:\n%s", got)
	}
	for node, tier := range map[string]string{"e2e-control-plane": "front", "e2e-worker": "back"} {
		if got := h.kubectl("get", "node", node, "-o", "jsonpath={.metadata.labels.tier}"); got != tier {
			t.Errorf("the tier of %s is %q", node, got)
		}
		if got := h.run("podman", "exec", node, "cat", "/etc/resolv.conf"); !strings.Contains(got, "search corp.example") {
			t.Errorf("resolv.conf of %s:\n%s", node, got)
		}
	}
	for subnet, args := range map[string][]string{
		"10.200.0.0/16": {"-n", "kube-system", "get", "pods", "-l", "k8s-app=kube-dns", "-o", "jsonpath={.items[0].status.podIP}"},
		"10.201.0.0/16": {"get", "service", "kubernetes", "-o", "jsonpath={.spec.clusterIP}"},
	} {
		if at, err := netip.ParseAddr(h.kubectl(args...)); err != nil || !netip.MustParsePrefix(subnet).Contains(at) {
			t.Errorf("an address of %s: %s, %v", subnet, at, err)
		}
	}
	ports := h.run("podman", "port", "e2e-control-plane")
	for _, want := range []string{"80/tcp -> 0.0.0.0:48080", "5353/udp -> 127.0.0.1:45353", "81/tcp -> 0.0.0.0:", "6443/tcp -> 127.0.0.1:46443"} {
		if !strings.Contains(ports, want) {
			t.Errorf("ports of the control plane, want %s:\n%s", want, ports)
		}
	}
}

// ingress sends a request to a pod by a port of the host.
func (h *clusterHost) ingress(t *testing.T) {
	t.Helper()
	answer := ""
	for deadline := time.Now().Add(require.Patience(time.Minute)); !strings.Contains(answer, "hello"); time.Sleep(200 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("the port of the host: %q", answer)
		}
		answer, _ = h.tryFor(5*time.Second, nil, "busybox", "wget", "-qO-", "http://127.0.0.1:48080/")
	}
}
