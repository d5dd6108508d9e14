package docs

import (
	"bytes"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// runBy is the test that runs an example, or types a page.
type runBy struct{ file, test string }

// examples are all files below examples, with the tests that run them.
func examples() map[string]runBy {
	hello := runBy{"test/integration/examples_test.go", "TestHelloPodPage"} // its image has the program
	clusters := runBy{"test/e2e/cluster_examples_test.go", "TestExamplesOfClusters"}
	nodes := runBy{"test/e2e/node_examples_test.go", "TestExamplesOfNodes"}
	metrics := runBy{"internal/metrics/examples_test.go", "TestExamplesAreValid"}
	return map[string]runBy{
		"examples/ci/workflow.yaml":       {"test/e2e/ci_example_test.go", "TestExampleOfCI"},
		"examples/clusters/ha.yaml":       clusters,
		"examples/clusters/ipv6.yaml":     clusters,
		"examples/clusters/kind.yaml":     {"test/e2e/cluster_examples_test.go", "TestFromKind"},
		"examples/clusters/registry.yaml": clusters,
		"examples/gpu-pod.yaml":           {"test/e2e/gpu_example_test.go", "TestExampleOfGPUs"},
		"examples/hello-pod.yaml":         hello,
		"examples/hello/image.go":         hello,
		"examples/hello/main.go":          hello,
		"examples/hello/serve.go":         hello,
		"examples/hello/shell.go":         hello,
		"examples/hello/tools.go":         hello,
		"examples/metrics/alerts.yaml":    metrics,
		"examples/metrics/dashboard.json": metrics,
		"examples/nodes/air-gapped.yaml":  nodes,
		"examples/nodes/berth.yaml":       nodes,
		"examples/nodes/containerd.yaml":  nodes,
		"examples/nodes/docker.yaml":      nodes,
		"examples/nodes/gpu.yaml":         nodes,
		"examples/sidecar-pod.yaml":       {"test/integration/podrun_more_test.go", "TestPodRunExample"},
		"examples/web-app.yaml":           {"test/integration/examples_test.go", "TestWebAppTutorial"},
	}
}

// migrations are the pages of docs/migrate, with the tests that type them.
func migrations() map[string]runBy {
	return map[string]runBy{
		"docs/migrate/containerd.md": {"test/migrate/containerd_test.go", "TestFromContainerd"},
		"docs/migrate/cri-o.md":      {"test/migrate/crio_test.go", "TestFromCRIO"},
		"docs/migrate/dockershim.md": {"test/migrate/dockershim_test.go", "TestFromCRIDockerd"},
		"docs/migrate/kind.md":       {"test/e2e/cluster_examples_test.go", "TestFromKind"},
		"docs/migrate/kops.md":       {"test/migrate/kops_test.go", "TestFromKops"},
	}
}

// tutorials are the pages of docs/tutorials, with the tests that type them.
func tutorials() map[string]runBy {
	return map[string]runBy{
		"docs/tutorials/cluster.md": {"test/e2e/cluster_examples_test.go", "TestClusterTutorial"},
		"docs/tutorials/web-app.md": {"test/integration/examples_test.go", "TestWebAppTutorial"},
	}
}

// TestExamplesRun: a test runs each file below examples.
func TestExamplesRun(t *testing.T) { claimed(t, "examples", examples()) }

// TestMigrationsRun: a test types each page of docs/migrate.
func TestMigrationsRun(t *testing.T) { claimed(t, "docs/migrate", migrations()) }

// TestTutorialsRun: a test types each page of docs/tutorials.
func TestTutorialsRun(t *testing.T) { claimed(t, "docs/tutorials", tutorials()) }

// claimed compares the files below a directory with those that tests claim. The file of a test names
// what it claims: whole, by its name, or by its name without an extension.
func claimed(t *testing.T, dir string, claims map[string]runBy) {
	t.Helper()
	found := map[string]bool{}
	err := filepath.WalkDir(filepath.Join(root, dir), func(file string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		name, err := filepath.Rel(root, file)
		if err != nil {
			return err
		}
		name = filepath.ToSlash(name)
		found[name] = true
		by, ok := claims[name]
		if !ok {
			t.Errorf("no test runs %s: write one, and name it here", name)
			return nil
		}
		source, err := os.ReadFile(filepath.Join(root, by.file))
		if err != nil {
			t.Errorf("%s: %v", name, err)
			return nil
		}
		if !bytes.Contains(source, []byte("func "+by.test+"(t *testing.T)")) {
			t.Errorf("%s: %s has no test %s", name, by.file, by.test)
		}
		stem := strings.TrimSuffix(filepath.Base(name), filepath.Ext(name))
		if filepath.Ext(name) != ".go" && !regexp.MustCompile(`["/]`+regexp.QuoteMeta(stem)+`(["._ \-]|\.yaml)`).Match(source) {
			t.Errorf("%s: %s does not name it", name, by.file)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	for name := range claims {
		if !found[name] {
			t.Errorf("%s is not there, and %s claims it", name, claims[name].test)
		}
	}
}
