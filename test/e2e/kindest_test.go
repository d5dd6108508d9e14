//go:build e2e

package e2e

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/berthrun/berth/internal/require"
)

// kindestFile configures containerd, in kind's format, for a host without CAP_SYS_RESOURCE.
const kindestFile = `kind: Cluster
apiVersion: kind.x-k8s.io/v1alpha4
name: e2e
nodes:
- {role: control-plane, image: IMAGE}
- {role: worker, image: IMAGE}
containerdConfigPatches:
- |-
  [plugins."io.containerd.grpc.v1.cri"]
  restrict_oom_score_adj = true
`

// TestKindestNode: an image as kindest/node is, with containerd in it, unchanged.
func TestKindestNode(t *testing.T) {
	for _, e := range engines() {
		t.Run(e.name, func(t *testing.T) { testKindest(t, e) })
	}
}

func testKindest(t *testing.T, e engine) {
	require.Binary(t, "busybox")
	h := newClusterHost(t, e)
	dir := t.TempDir()
	node, image := filepath.Join(dir, "node.tar"), filepath.Join(dir, "kindest.tar")
	h.cluster("build-image", "--kubernetes", h.bin, "--rootfs", "../../out/systemd/root", "--output", node)
	build := exec.CommandContext(t.Context(), "../kube/kindest.sh", node, image)
	build.Env = append(os.Environ(), "TMPDIR="+dir)
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("kindest.sh: %v\n%s", err, out)
	}
	h.run(h.engine, "load", "-i", image)
	version := strings.TrimPrefix(h.run(filepath.Join(h.bin, "kubelet"), "--version"), "Kubernetes ")
	file := filepath.Join(dir, "cluster.yaml")
	if err := os.WriteFile(file, []byte(strings.ReplaceAll(kindestFile, "IMAGE", "kindest/node:"+version)), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Log(h.cluster("create", "--config", file, "--wait", "10m"))
	if got := h.kubectl("get", "nodes", "-o", "jsonpath={.items[*].status.nodeInfo.containerRuntimeVersion}"); strings.Count(got, "containerd://") != 2 {
		t.Errorf("the runtimes are %q", got)
	}
	if got := h.kubectl("get", "storageclass", "-o", "jsonpath={.items[*].metadata.name}"); got != "standard" {
		t.Errorf("storage classes: %q", got)
	}
	archive := filepath.Join(filepath.Dir(h.berth), "hello-image.tar")
	h.run(h.engine, "load", "-i", archive)
	t.Log(h.cluster("load", "--name", "e2e", "berth.run/hello:demo"))
	if again := h.cluster("load", "--name", "e2e", "berth.run/hello:demo"); !strings.Contains(again, "already") {
		t.Errorf("loaded once more: %s", again)
	}
	h.deploy(1)
	t.Run("answers", func(t *testing.T) { h.answers(t, h.nodeAddresses("e2e-control-plane", "e2e-worker")...) })
	t.Run("restart", func(t *testing.T) {
		// A control plane without pods of the network forwards to those of other nodes, too.
		h.kubectl("cordon", "e2e-control-plane")
		h.kubectl("-n", "kube-system", "rollout", "restart", "deployment/coredns")
		h.kubectl("-n", "kube-system", "rollout", "status", "deployment/coredns", "--timeout="+h.patience())
		t.Log(h.cluster("restart", "e2e", "--wait", "10m"))
		h.kubectl("rollout", "status", "deployment/web", "--timeout=10m")
		h.answers(t, h.nodeAddresses("e2e-control-plane", "e2e-worker")...)
	})
	logs := t.TempDir()
	h.cluster("logs", "--name", "e2e", logs)
	if text, err := os.ReadFile(filepath.Join(logs, "e2e-worker", "containerd.log")); err != nil || len(text) == 0 {
		t.Errorf("containerd's log: %d bytes, %v", len(text), err)
	}
	t.Log(h.cluster("delete", "e2e"))
	h.nothingLeft("e2e")
}
