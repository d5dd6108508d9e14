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
)

// conformanceList returns the focus and the skipped tests, as one regular expression each.
func conformanceList(t *testing.T) (focus, skip string) {
	t.Helper()
	text, err := os.ReadFile("conformance.txt")
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
	return strings.Join(lists["+"], "|"), strings.Join(lists["-"], "|")
}

// TestConformance: Kubernetes' own tests that conformance.txt names pass on a cluster of one
// control plane and two workers. BERTH_CONFORMANCE_FOCUS is another selection; BERTH_TEST_OUT keeps
// their report.
func TestConformance(t *testing.T) {
	h := newClusterHost(t, engine{"podman", podmanOnly})
	tests, err := filepath.Abs("../../out/conformance")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(tests, "images.tar")); err != nil {
		t.Fatalf("Kubernetes' tests are not built: run test/kube/conformance.sh: %v", err)
	}
	t.Log(h.cluster("build-image", "--kubernetes", h.bin, "--rootfs", "../../out/systemd/root"))
	t.Log(h.cluster("create", "--config", h.write("name: conf\nnodes: [{}, {role: worker}, {role: worker}]\n"), "--wait", "15m"))
	t.Log(h.cluster("load", "--name", "conf", "--archive", filepath.Join(tests, "images.tar")))

	focus, skip := conformanceList(t)
	if own := os.Getenv("BERTH_CONFORMANCE_FOCUS"); own != "" {
		focus = own
	}
	report := t.TempDir()
	if kept := os.Getenv("BERTH_TEST_OUT"); kept != "" {
		report = kept
	}
	log := filepath.Join(report, "ginkgo.log")
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
	t.Log(h.cluster("delete", "conf"))
	h.nothingLeft("conf")
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
