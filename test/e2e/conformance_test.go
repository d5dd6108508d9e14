//go:build e2e

package e2e

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/berthrun/berth/internal/require"
)

// selection returns the focus and the skipped tests of a list, as one regular expression each.
func selection(t *testing.T, list string) (focus, skip string) {
	t.Helper()
	text, err := os.ReadFile(list)
	if err != nil {
		t.Fatal(err)
	}
	lists := map[string][]string{}
	for line := range strings.Lines(string(text)) {
		sign, pattern, _ := strings.Cut(strings.TrimSpace(line), " ")
		if sign == "+" || sign == "-" {
			lists[sign] = append(lists[sign], pattern)
		}
	}
	focus, skip = strings.Join(lists["+"], "|"), strings.Join(lists["-"], "|")
	if own := os.Getenv("BERTH_CONFORMANCE_FOCUS"); own != "" {
		focus = own
	}
	return focus, skip
}

// TestConformance: Kubernetes' own tests that conformance.txt names pass on a cluster of one
// control plane and two workers. BERTH_CONFORMANCE_FOCUS is another selection; BERTH_TEST_OUT keeps
// their report.
func TestConformance(t *testing.T) {
	h := conformanceCluster(t, "conf")
	focus, skip := selection(t, "conformance.txt")
	h.kubernetesTests(t, focus, skip)
	t.Log(h.cluster("delete", "conf"))
	h.nothingLeft("conf")
}

// TestNetworkPolicyConformance: Kubernetes' own tests of NetworkPolicy pass between pods on two workers.
// The subtest has those of SCTP, for which the kernel needs the protocol.
func TestNetworkPolicyConformance(t *testing.T) {
	const all = 47 // of Kubernetes 1.36
	h := conformanceCluster(t, "netpol")
	focus, skip := selection(t, "netpol.txt")
	if passed := h.kubernetesTests(t, focus, skip); passed < all && os.Getenv("BERTH_CONFORMANCE_FOCUS") == "" {
		t.Errorf("%d tests passed, want %d: netpol.txt no longer selects them all, or Kubernetes has fewer", passed, all)
	}
	t.Run("SCTP", func(t *testing.T) {
		require.SCTP(t)
		h.kubernetesTests(t, `Netpol.*\[Feature:SCTPConnectivity\]`, "")
	})
	t.Log(h.cluster("delete", "netpol"))
	h.nothingLeft("netpol")
}

// conformanceCluster creates a cluster of one control plane and two workers with the images of Kubernetes'
// tests. BERTH_CONFORMANCE_NETWORKING is what the cluster file has below networking.
func conformanceCluster(t *testing.T, name string) *clusterHost {
	t.Helper()
	h := newClusterHost(t, engine{"podman", podmanOnly})
	images := filepath.Join(kubernetesTestsDir(t), "images.tar")
	if _, err := os.Stat(images); err != nil {
		t.Fatalf("Kubernetes' tests are not built: run test/kube/conformance.sh: %v", err)
	}
	text := fmt.Sprintf("name: %s\nnodes: [{}, {role: worker}, {role: worker}]\nnetworking: {%s}\n", name, os.Getenv("BERTH_CONFORMANCE_NETWORKING"))
	t.Log(h.cluster("build-image", "--kubernetes", h.bin, "--rootfs", "../../out/systemd/root"))
	t.Log(h.cluster("create", "--config", h.write(text), "--wait", "15m"))
	t.Log(h.cluster("load", "--name", name, "--archive", images))
	return h
}

// kubernetesTestsDir is where test/kube/conformance.sh builds.
func kubernetesTestsDir(t *testing.T) string {
	t.Helper()
	dir, err := filepath.Abs("../../out/conformance")
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

// kubernetesTests runs a selection of Kubernetes' tests, which have to pass, and returns how many did.
func (h *clusterHost) kubernetesTests(t *testing.T, focus, skip string) int {
	t.Helper()
	report := t.TempDir()
	if kept := os.Getenv("BERTH_TEST_OUT"); kept != "" {
		report = filepath.Join(kept, t.Name())
		if err := os.MkdirAll(report, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	tests, log := kubernetesTestsDir(t), filepath.Join(report, "ginkgo.log")
	said, err := h.tryFor(2*time.Hour, nil, "sh", "-c", `exec "$@" > "$0" 2>&1`, log, filepath.Join(tests, "ginkgo"), "--procs=4", "--timeout=2h", "--no-color", "--focus="+focus, "--skip="+skip,
		"--flake-attempts=1", "--output-dir="+report, "--json-report=report.json",
		filepath.Join(tests, "e2e.test"), "--", "--provider=skeleton", "--num-nodes=2", "--kubeconfig="+h.kubeconfig, "--kubectl-path="+filepath.Join(h.bin, "kubectl"),
		"--repo-root="+report, "--report-dir="+report, "--disable-log-dump", "--delete-namespace-on-failure=true")
	passed, failed := conformanceReport(t, filepath.Join(report, "report.json"))
	t.Logf("%d passed, %d failed", len(passed), len(failed))
	if err != nil || len(failed) > 0 || len(passed) == 0 {
		text, _ := os.ReadFile(log)
		t.Errorf("%v %s; failed are\n%s\nthe end of ginkgo's words:\n%s", err, said, strings.Join(failed, "\n"), text[max(0, len(text)-20000):])
	}
	return len(passed)
}

// conformanceReport reads which tests ran. A selected test that skipped itself has failed: the list
// has only tests for this cluster.
func conformanceReport(t *testing.T, file string) (passed, failed []string) {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Error(err)
		return nil, nil
	}
	var suites []struct {
		SpecReports []struct {
			ContainerHierarchyTexts []string
			LeafNodeText            string
			LeafNodeType            string // It, or what is before and after them
			State                   string
			Failure                 struct{ Message string }
		}
	}
	if err := json.Unmarshal(text, &suites); err != nil {
		t.Error(err)
	}
	for _, suite := range suites {
		for _, spec := range suite.SpecReports {
			name := strings.Join(append(spec.ContainerHierarchyTexts, spec.LeafNodeText), " ")
			switch spec.State {
			case "passed":
				if spec.LeafNodeType == "It" {
					passed = append(passed, name)
				}
			default:
				message, _, _ := strings.Cut(spec.Failure.Message, "\n")
				if spec.State == "skipped" && message == "" || spec.State == "pending" {
					break // not in the list
				}
				failed = append(failed, fmt.Sprintf("%s: %s: %s", spec.State, strings.TrimSpace(name), message))
			}
		}
	}
	return passed, failed
}
