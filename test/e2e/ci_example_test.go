//go:build e2e

package e2e

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	"github.com/berthrun/berth/test/docs/scripts"
)

// ciSteps returns what the steps of examples/ci/workflow.yaml run, as one script: those for a failure
// come after the others, as if the last one had failed.
func ciSteps(t *testing.T) string {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(repository, "examples/ci/workflow.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	var workflow struct {
		Jobs map[string]struct{ Steps []struct{ Run string } }
	}
	if err := yaml.Unmarshal(data, &workflow); err != nil {
		t.Fatal(err)
	}
	var script strings.Builder
	for _, step := range workflow.Jobs["test"].Steps {
		if step.Run != "" {
			script.WriteString(strings.TrimSuffix(step.Run, "\n") + "\n")
		}
	}
	return script.String()
}

// ciTest is the repository's own test: the image that the workflow has built runs in the cluster.
const ciTest = `#!/bin/sh -e
kubectl create deployment app --image=app:1 -- serve --listen :8080
kubectl rollout status deployment/app --timeout=5m
`

// TestExampleOfCI runs the steps of examples/ci/workflow.yaml in a checkout of somebody's app.
func TestExampleOfCI(t *testing.T) {
	h := newClusterHost(t, engine{"docker", dockerOnly})
	checkout, installed := t.TempDir(), t.TempDir()
	for name, text := range map[string]string{
		"Dockerfile": "FROM berth.run/hello:demo\n", "test.sh": ciTest,
		"sudo": "#!/bin/sh\nexec \"$@\"\n", // the test is root
	} {
		if err := os.WriteFile(filepath.Join(checkout, name), []byte(text), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	h.kubeconfig = filepath.Join(checkout, "kubeconfig")
	here, err := filepath.Abs(repository)
	if err != nil {
		t.Fatal(err)
	}
	rootfs := filepath.Join(here, "out/systemd/root")
	const own = "it is this repository, whose programs are built, and the test must not change this machine"
	script := scripts.Text(t, "examples/ci/workflow.yaml", ciSteps(t), []scripts.Row{
		{Line: "git clone --depth 1 https://github.com/berthrun/berth /tmp/berth", Why: own},
		{Line: "make -C /tmp/berth build", Why: own},
		{Line: "sudo make -C /tmp/berth install", Run: "sudo make -C " + here + " -o build install DESTDIR=" + installed, Why: own},
		{
			Line: "sudo berth cluster build-image --kubernetes v1.36.3", Run: "sudo berth cluster build-image --kubernetes " + h.bin + " --rootfs " + rootfs,
			Why: "Kubernetes and Debian are on this machine, and there is no Internet",
		},
		{
			Line: `sudo berth cluster create test --wait 3m --kubeconfig "$PWD/kubeconfig"`, Run: `sudo berth cluster create test --wait ` + h.patience() + ` --kubeconfig "$PWD/kubeconfig"`,
			Why: "this machine is slow",
		},
	})
	sh := h.shell(filepath.Join(installed, "usr/local/bin"), checkout)
	sh.Run("cd " + checkout + "; USER=root; docker load -i " + filepath.Join(filepath.Dir(h.berth), "hello-image.tar"))
	out := script.All(sh)
	if got := out.Of(t, "KUBECONFIG=$PWD/kubeconfig ./test.sh"); !strings.Contains(got, "successfully rolled out") {
		t.Errorf("the app's test: %s", got)
	}
	if logs, err := filepath.Glob(filepath.Join(checkout, "logs/*/kubelet.log")); err != nil || len(logs) != 1 {
		t.Errorf("the logs of the nodes: %q, %v", logs, err)
	}
	h.nothingLeft("test")
}
