//go:build e2e

package e2e

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/berthrun/berth/internal/require"
	"github.com/berthrun/berth/test/harness"
)

// buildGoAPI builds testdata/goapi in a module of its own, which has berth as a dependency: Go refuses imports that a
// program of others cannot make.
func buildGoAPI(t *testing.T) string {
	t.Helper()
	root, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	for from, to := range map[string]string{"go.mod": "go.mod", "go.sum": "go.sum", "test/e2e/testdata/goapi/main.go": "main.go"} {
		text, err := os.ReadFile(filepath.Join(root, from))
		if err != nil {
			t.Fatal(err)
		}
		if to == "go.mod" {
			text = bytes.Replace(text, []byte("module github.com/berthrun/berth\n"), []byte("module example.com/goapi\n"), 1)
			text = append(text, "\nrequire github.com/berthrun/berth v0.0.0\nreplace github.com/berthrun/berth => "+root+"\n"...)
		}
		if err := os.WriteFile(filepath.Join(dir, to), text, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	cmd := exec.CommandContext(t.Context(), "go", "build", "-mod=mod", "-o", "goapi", ".")
	cmd.Dir, cmd.Env = dir, append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=-buildvcs=false")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("build: %v\n%s", err, out)
	}
	return filepath.Join(dir, "goapi")
}

// TestGoAPICluster: a program creates a cluster, loads an image into it, and deletes it.
func TestGoAPICluster(t *testing.T) {
	h := hostOf(t, harness.Start(t, harness.Options{NoImages: true, BinDir: harness.Bootable(t)}))
	program := buildGoAPI(t)
	t.Log(h.cluster("build-image", "--kubernetes", h.bin, "--rootfs", "../../out/systemd/root"))
	h.run(h.berth, "image", "import", filepath.Join(os.Getenv("BERTH_BIN"), "hello-image.tar"))
	const image = "berth.run/hello:demo"

	ctx, cancel := context.WithTimeout(t.Context(), require.Patience(20*time.Minute))
	defer cancel()
	cmd := exec.CommandContext(ctx, "nsenter", "--net=/run/netns/"+h.namespace, program, "cluster", "goapi", image, h.patience())
	cmd.Env = append(os.Environ(), "KUBECONFIG="+h.kubeconfig, "KIND_EXPERIMENTAL_PROVIDER=berth")
	var failure strings.Builder
	cmd.Stderr = &failure
	input, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	output, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var lines []string
	for scanner := bufio.NewScanner(output); scanner.Scan(); {
		lines = append(lines, scanner.Text())
		if strings.HasPrefix(scanner.Text(), "ready ") {
			break
		}
	}
	want := []string{"node goapi-control-plane control-plane true", "ready " + h.kubeconfig}
	if diff := cmp.Diff(want, lines); diff != "" {
		t.Errorf("the program's output (-want +got):\n%s", diff)
	} else {
		h.usesGoAPI(image)
	}
	_, _ = io.WriteString(input, "\n")
	if err := cmd.Wait(); err != nil {
		t.Errorf("the program: %v\n%s", err, &failure)
	}
	h.nothingLeft("goapi")
}

// usesGoAPI uses the cluster while the program waits: the node is Ready and has the image.
func (h *clusterHost) usesGoAPI(image string) {
	h.t.Helper()
	if got := h.kubectl("get", "nodes", "-o", `jsonpath={.items[*].status.conditions[?(@.type=="Ready")].status}`); got != "True" {
		h.t.Errorf("the node is Ready: %q", got)
	}
	if got := h.run(h.berth, "pod", "exec", "berth-cluster/goapi-control-plane", "--", "berth", "image", "ls"); !strings.Contains(got, strings.TrimSuffix(image, ":demo")) {
		h.t.Errorf("the node does not have %s:\n%s", image, got)
	}
}

const goapiNode = `apiVersion: berth.run/v1alpha1
kind: Node
runtime: {name: berth}
packages: {base: false}
network: {mode: builtin}
kernel:
  sysctls: {net.ipv4.ip_forward: "1"}
`

// TestGoAPINode: a program plans and applies a node file to the root directory of an image, and does what the command
// does.
func TestGoAPINode(t *testing.T) {
	require.Root(t)
	program, berth := buildGoAPI(t), filepath.Join(harness.BinDir(t), "berth")
	file := filepath.Join(t.TempDir(), "node.yaml")
	if err := os.WriteFile(file, []byte(goapiNode), 0o600); err != nil {
		t.Fatal(err)
	}
	byProgram, byCommand := emptyRoot(t), emptyRoot(t)
	plan := host(t, berth, "node", "plan", "-f", file, "--root", byCommand, "--output", "json")
	host(t, berth, "node", "apply", "-f", file, "--root", byCommand, "--yes")
	shown := host(t, program, "node", file, byProgram, berth)
	// Each machine has its own key for the digests of contents that may be secret.
	digest := regexp.MustCompile(`(\d+ bytes), [0-9a-f]{8}`)
	plan, shown = digest.ReplaceAllString(plan, "$1"), digest.ReplaceAllString(shown, "$1")
	if diff := cmp.Diff(decoded(t, plan), decoded(t, shown)); diff != "" {
		t.Errorf("the plan (-command +program):\n%s", diff)
	}
	tree := treeOf(t, byProgram)
	if diff := cmp.Diff(treeOf(t, byCommand), tree); diff != "" {
		t.Errorf("the root directory (-command +program):\n%s", diff)
	}
	for _, name := range []string{"usr/local/bin/berth", "usr/local/bin/berth-supervisor", "etc/berth/berth.toml"} {
		if _, ok := tree[name]; !ok {
			t.Errorf("the root directory has no %s", name)
		}
	}
}

// emptyRoot is a root directory with what tells a distribution.
func emptyRoot(t *testing.T) string {
	t.Helper()
	root := t.TempDir()
	for name, text := range map[string]string{
		"etc/os-release": "ID=debian\nVERSION_ID=\"12\"\nVERSION_CODENAME=bookworm\n", "usr/lib/systemd/systemd": "",
	} {
		file := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(text), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	return root
}

// treeOf has the mode and the text of each file below a directory, except the history, which has times.
func treeOf(t *testing.T, root string) map[string]string {
	t.Helper()
	found := map[string]string{}
	err := filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name, err := filepath.Rel(root, path)
		if err != nil {
			return err
		}
		if name == "var/lib/berth/node" {
			return fs.SkipDir
		}
		info, err := entry.Info()
		if err != nil {
			return err
		}
		found[name] = info.Mode().String()
		if info.Mode().IsRegular() {
			text, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			found[name] += " " + string(text)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return found
}

func decoded(t *testing.T, text string) (value any) {
	t.Helper()
	if err := json.Unmarshal([]byte(text), &value); err != nil {
		t.Fatalf("%v: %s", err, text)
	}
	return value
}
