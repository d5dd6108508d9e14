//go:build e2e

package e2e

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/berthrun/berth/internal/require"
)

// manyPods is how many pods the node has, beside those of the cluster itself.
const manyPods = 500

// denseCluster has one node with room for manyPods.
const denseCluster = `name: dense
nodes: [{}]
kubeadmConfigPatches:
- "{kind: KubeletConfiguration, maxPods: 600}"
- '{kind: ClusterConfiguration, controllerManager: {extraArgs: {node-cidr-mask-size: "22"}}}'
`

const denseWorkload = `apiVersion: apps/v1
kind: Deployment
metadata: {name: many}
spec:
  replicas: %d
  progressDeadlineSeconds: 7200
  selector: {matchLabels: {app: many}}
  template:
    metadata: {labels: {app: many}}
    spec:
      terminationGracePeriodSeconds: 0
      containers:
      - name: main
        image: berth.run/hello:demo
        command: [serve, --listen, ":8080"]
`

// TestClusterWithManyPods: the node of a kubelet with 500 pods stays Ready while they start, when the daemon and the
// supervisor are killed, and while the pods end; no container starts a second time.
func TestClusterWithManyPods(t *testing.T) {
	h := newClusterHost(t, engine{"podman", podmanOnly})
	t.Log(h.cluster("build-image", "--kubernetes", h.bin, "--rootfs", "../../out/systemd/root"))
	t.Log(h.cluster("create", "--config", h.write(denseCluster), "--wait", h.patience()))
	t.Log(h.cluster("load", "--name", "dense", "--archive", filepath.Join(filepath.Dir(h.berth), "hello-image.tar")))
	ready := func() string {
		return h.kubectl("get", "node", "dense-control-plane", "-o", `jsonpath={range .status.conditions[?(@.type=="Ready")]}{.status} since {.lastTransitionTime}{end}`)
	}
	inNode := func(args ...string) string {
		return h.run(append([]string{"podman", "exec", "dense-control-plane"}, args...)...)
	}
	began := ready()
	if !strings.HasPrefix(began, "True ") {
		t.Fatalf("the node is %s", began)
	}
	stays := func(when string) {
		t.Helper()
		if now := ready(); now != began {
			t.Errorf("%s: the node is Ready: %s, want %s", when, now, began)
		}
	}
	begun := time.Now()
	h.apply(fmt.Sprintf(denseWorkload, manyPods))
	h.kubectl("rollout", "status", "deployment/many", "--timeout="+(2*require.Patience(10*time.Minute)).String())
	t.Logf("%d pods were available after %s", manyPods, time.Since(begun).Round(time.Second))
	stays("with all pods")
	restarts := func() string {
		return h.kubectl("get", "pods", "-l", "app=many", "-o", `jsonpath={range .items[*]}{.status.phase} {.status.containerStatuses[0].restartCount}{"\n"}{end}`)
	}
	running := strings.TrimSpace(strings.Repeat("Running 0\n", manyPods))
	for _, unit := range []string{"berth.service", "berth-supervisor.service"} {
		inNode("systemctl", "kill", "--signal=KILL", "--kill-whom=main", unit)
		h.eventually("the node's containers after the kill of "+unit, "exec", "deployment/many", "--", "sh", "-c", "echo ok")
		stays("after the kill of " + unit)
		if got := restarts(); got != running {
			t.Errorf("pods after the kill of %s:\n%s", unit, got)
		}
	}
	t.Log(inNode("berth", "info"))
	h.kubectl("delete", "deployment", "many", "--wait=false")
	h.kubectl("wait", "--for=delete", "pods", "-l", "app=many", "--timeout="+(2*require.Patience(10*time.Minute)).String())
	stays("without the pods")
	t.Log(h.cluster("delete", "dense"))
	h.nothingLeft("dense")
}
