//go:build e2e

package e2e

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/berthrun/berth/test/harness"
)

// TestClusterOfBerth: one control plane and two workers that are system containers of a berth
// of the test's own, over a stop and a reboot of the host, to nothing left.
func TestClusterOfBerth(t *testing.T) {
	b := harness.Start(t, harness.Options{NoImages: true, BinDir: harness.Bootable(t)})
	h := hostOf(t, b)
	t.Log(h.own("build-image", "--kubernetes", h.bin, "--rootfs", "../../out/systemd/root"))
	begun := time.Now()
	t.Log(h.own("create", "--config", clusterFile(t), "--wait", "10m"))
	t.Logf("all nodes were Ready after %s", time.Since(begun).Round(100*time.Millisecond))
	addresses := h.addresses()
	archive := filepath.Join(os.Getenv("BERTH_BIN"), "hello-image.tar")
	h.run(h.berth, "image", "import", archive)
	t.Log(h.own("load", "--name", "e2e", "--nodes", "e2e-worker", "berth.run/hello:demo"))
	t.Log(h.own("load", "--name", "e2e", "--archive", archive))
	h.deploy(2)
	t.Run("answers", func(t *testing.T) { h.answers(t, addresses...) })
	for _, c := range []struct {
		name  string
		again func()
	}{
		{"restart", func() { t.Log(h.own("restart", "e2e", "--wait", "10m")) }},
		{"reboot", func() { b.Reboot(); b.StartDaemon(); t.Log(h.own("start", "e2e", "--wait", "10m")) }},
	} {
		t.Run(c.name, func(t *testing.T) {
			c.again()
			if now := h.addresses(); strings.Join(now, " ") != strings.Join(addresses, " ") {
				t.Errorf("addresses are %q, and were %q", now, addresses)
			}
			h.kubectl("rollout", "status", "deployment/web", "--timeout=10m")
			h.answers(t, addresses...)
		})
	}
	logs := t.TempDir()
	h.own("logs", "--name", "e2e", logs)
	if text, err := os.ReadFile(filepath.Join(logs, "e2e-worker", "kubelet.log")); err != nil || len(text) == 0 {
		t.Errorf("the kubelet's log: %d bytes, %v", len(text), err)
	}
	for range 2 {
		t.Log(h.own("delete", "e2e"))
	}
	if left, err := os.ReadDir(b.Root + "-cluster"); err != nil || len(left) > 0 {
		t.Errorf("left of nodes: %v, %v", left, err)
	}
	if text, err := os.ReadFile(h.kubeconfig); err != nil || strings.Contains(string(text), "e2e") {
		t.Errorf("the kubeconfig has %s, %v", text, err)
	}
}

// hostOf are the commands beside a berth.
func hostOf(t *testing.T, b *harness.Berth) *clusterHost {
	t.Helper()
	kube, err := filepath.Abs("../../out/kube")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(kube, "coredns")); err != nil {
		t.Fatalf("Kubernetes is not built: run test/kube/build.sh: %v", err)
	}
	t.Setenv("BERTH_ENDPOINT", "unix://"+b.Socket)
	return &clusterHost{
		t: t, namespace: b.NetNS, berth: filepath.Join(os.Getenv("BERTH_BIN"), "berth"), bin: kube,
		kubeconfig: filepath.Join(t.TempDir(), "kubeconfig"),
	}
}

func clusterFile(t *testing.T) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "cluster.yaml")
	description := "kind: Cluster\napiVersion: kind.x-k8s.io/v1alpha4\nname: e2e\nnodes: [{role: control-plane}, {role: worker}, {role: worker}]\n"
	if err := os.WriteFile(file, []byte(description), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

// own is cluster with the provider berth.
func (h *clusterHost) own(verb string, args ...string) string {
	h.t.Helper()
	return h.run(append([]string{h.berth, "cluster", verb, "--provider", "berth"}, args...)...)
}

// addresses are those of the nodes.
func (h *clusterHost) addresses() []string {
	h.t.Helper()
	var all []string
	for line := range strings.Lines(h.own("nodes", "e2e")) {
		if fields := strings.Fields(line); fields[0] != "NODE" {
			if fields[2] != "running" {
				h.t.Errorf("node: %s", line)
			}
			all = append(all, fields[3])
		}
	}
	if len(all) != 3 {
		h.t.Errorf("%d nodes", len(all))
	}
	return all
}
