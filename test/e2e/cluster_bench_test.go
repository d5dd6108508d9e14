//go:build e2e && bench

package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/berthrun/berth/internal/require"
)

// kindVersion is the version of kind that the test compares with.
const kindVersion = "v0.33.0"

// besideFile is the same cluster for both. Its kubelet settings are those that a host with cgroup
// v1 and without CAP_SYS_RESOURCE needs.
const besideFile = `kind: Cluster
apiVersion: kind.x-k8s.io/v1alpha4
nodes: [{role: control-plane, image: IMAGE}, {role: worker, image: IMAGE}]
kubeadmConfigPatches:
- |
  kind: KubeletConfiguration
  apiVersion: kubelet.config.k8s.io/v1beta1
  failCgroupV1: false
  oomScoreAdj: 0
`

const besidePatch = `containerdConfigPatches:
- |-
  [plugins."io.containerd.grpc.v1.cri"]
  restrict_oom_score_adj = true
`

// maker is a tool that creates clusters.
type maker struct {
	name, image, file        string
	create, deleteIt, loadIt []string
	// times are by moment, one for each round.
	times map[string][]time.Duration
	steps string
}

// moments are the measured points, counted from the start of create, except the last two.
func moments() []string {
	return []string{"create returns", "all nodes Ready", "3 replicas", "Service by DNS", "load", "delete"}
}

// TestClusterBesideKind times one control plane and one worker beside kind, alternately, with the
// same Kubernetes in both images. BERTH_ROUNDS is the number of rounds (3). It asserts no time.
func TestClusterBesideKind(t *testing.T) {
	require.Binary(t, "busybox")
	h := newClusterHost(t, engine{"podman", podmanOnly})
	dir := t.TempDir()
	kind := h.installKind(t)
	node, image := filepath.Join(dir, "node.tar"), filepath.Join(dir, "kindest.tar")
	h.cluster("build-image", "--kubernetes", h.bin, "--rootfs", "../../out/systemd/root", "--output", node)
	build := exec.CommandContext(t.Context(), "../kube/kindest.sh", node, image)
	build.Env = append(os.Environ(), "TMPDIR="+dir)
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("kindest.sh: %v\n%s", err, out)
	}
	h.run("podman", "load", "-i", node)
	h.run("podman", "load", "-i", image)
	version := strings.TrimPrefix(h.run(filepath.Join(h.bin, "kubelet"), "--version"), "Kubernetes ")
	archive := filepath.Join(filepath.Dir(h.berth), "hello-image.tar")
	t.Setenv("KIND_EXPERIMENTAL_PROVIDER", "podman")

	ours := &maker{name: "berth", image: "localhost/berth/node:latest"}
	ours.file = ours.write(t, "")
	ours.create = []string{h.berth, "cluster", "create", "--provider", "podman", "--name", "beside", "--config", ours.file}
	ours.deleteIt = []string{h.berth, "cluster", "delete", "--provider", "podman", "beside"}
	ours.loadIt = []string{h.berth, "cluster", "load", "--provider", "podman", "--name", "beside", "--archive", archive}
	theirs := &maker{name: "kind " + kindVersion, image: "docker.io/kindest/node:" + version}
	theirs.file = theirs.write(t, besidePatch)
	theirs.create = []string{kind, "create", "cluster", "--name", "beside", "--config", theirs.file}
	theirs.deleteIt = []string{kind, "delete", "cluster", "--name", "beside"}
	theirs.loadIt = []string{kind, "load", "image-archive", archive, "--name", "beside"}

	rounds := 3
	if text := os.Getenv("BERTH_ROUNDS"); text != "" {
		var err error
		if rounds, err = strconv.Atoi(text); err != nil {
			t.Fatal(err)
		}
	}
	for round := range rounds {
		both := []*maker{ours, theirs}
		if round%2 == 1 {
			slices.Reverse(both)
		}
		for _, m := range both {
			h.timeOne(t, m)
		}
	}
	t.Logf("seconds, median of %d rounds (least to most)\n%s\nsteps of berth's last round:\n%s", rounds, table(ours, theirs), ours.steps)
}

// installKind builds kind from the Go module proxy.
func (h *clusterHost) installKind(t *testing.T) string {
	t.Helper()
	dir, err := filepath.Abs("../../out/bench/bin")
	if err != nil {
		t.Fatal(err)
	}
	install := exec.CommandContext(t.Context(), "go", "install", "sigs.k8s.io/kind@"+kindVersion)
	install.Env = append(os.Environ(), "GOBIN="+dir, "GOFLAGS=-buildvcs=false")
	if out, err := install.CombinedOutput(); err != nil {
		t.Fatalf("kind cannot be installed: %v\n%s", err, out)
	}
	return filepath.Join(dir, "kind")
}

func (m *maker) write(t *testing.T, more string) string {
	t.Helper()
	m.times = map[string][]time.Duration{}
	file := filepath.Join(t.TempDir(), "cluster.yaml")
	if err := os.WriteFile(file, []byte(strings.ReplaceAll(besideFile, "IMAGE", m.image)+more), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

// timeOne creates a cluster, runs a pod in it, and removes it.
func (h *clusterHost) timeOne(t *testing.T, m *maker) {
	t.Helper()
	begun := time.Now()
	var paused time.Duration
	at := func(what string) { m.times[what] = append(m.times[what], time.Since(begun)-paused) }
	m.steps = h.run(m.create...)
	at("create returns")
	h.kubectl("wait", "--for=condition=Ready", "nodes", "--all", "--timeout=10m")
	at("all nodes Ready")
	loading := time.Now()
	h.run(m.loadIt...)
	paused = time.Since(loading)
	m.times["load"] = append(m.times["load"], paused)
	if out, err := h.try([]byte(strings.ReplaceAll(workload, "replicas: 2", "replicas: 3")), filepath.Join(h.bin, "kubectl"), "apply", "-f", "-"); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	h.kubectl("rollout", "status", "deployment/web", "--timeout=10m")
	at("3 replicas")
	for {
		answer, err := h.try(nil, filepath.Join(h.bin, "kubectl"), "exec", "deployment/web", "--", "get", "http://web.default.svc.cluster.local/")
		if err == nil && strings.Contains(answer, "hello") {
			break
		}
		if time.Since(begun) > 20*time.Minute {
			t.Fatalf("the service does not answer: %v\n%s", err, answer)
		}
	}
	at("Service by DNS")
	ending := time.Now()
	h.run(m.deleteIt...)
	m.times["delete"] = append(m.times["delete"], time.Since(ending))
	t.Logf("%s: %v", m.name, m.times)
}

// table has a line for each moment.
func table(ours, theirs *maker) string {
	text := fmt.Sprintf("%-18s %-22s %-22s %s\n", "", ours.name, theirs.name, "ratio")
	for _, what := range moments() {
		a, b := ours.times[what], theirs.times[what]
		text += fmt.Sprintf("%-18s %-22s %-22s %.2f\n", what, figure(a), figure(b), median(a).Seconds()/median(b).Seconds())
	}
	return text
}

func figure(all []time.Duration) string {
	return fmt.Sprintf("%.1f (%.1f to %.1f)", median(all).Seconds(), slices.Min(all).Seconds(), slices.Max(all).Seconds())
}

func median(all []time.Duration) time.Duration {
	sorted := slices.Sorted(slices.Values(all))
	return sorted[len(sorted)/2]
}
