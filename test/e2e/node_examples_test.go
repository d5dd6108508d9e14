//go:build e2e

package e2e

import (
	"crypto/sha256"
	"encoding/hex"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/berthrun/berth/internal/require"
	"github.com/berthrun/berth/test/harness"
	"github.com/berthrun/berth/test/systemd"
)

// TestExamplesOfNodes plans each file of examples/nodes by the command in its comment, and applies
// it, for the root directory of a Debian.
func TestExamplesOfNodes(t *testing.T) {
	require.Root(t)
	for _, name := range []string{"air-gapped", "berth", "containerd", "docker", "gpu"} {
		t.Run(name, func(t *testing.T) {
			file := "examples/nodes/" + name + ".yaml"
			root := systemd.CopyRoot(t, systemd.Debian12, filepath.Join(t.TempDir(), "root"))
			for _, program := range []string{"kubelet", "kubeadm"} {
				host(t, "cp", filepath.Join(repository, "out/kube", program), filepath.Join(root, "usr/bin", program))
			}
			berth := func(args ...string) string {
				t.Helper()
				cmd := exec.CommandContext(t.Context(), filepath.Join(harness.BinDir(t), "berth"), append([]string{"node"}, args...)...)
				cmd.Dir = repository
				out, err := cmd.CombinedOutput()
				if err != nil {
					t.Fatalf("berth node %s: %v\n%s", strings.Join(args, " "), err, out)
				}
				return string(out)
			}
			want := "berth node plan -f " + file
			if got := strings.TrimSpace(comment(t, file)); got != want {
				t.Errorf("the comment has the command %q, want %q", got, want)
			}
			berth("validate", file)
			if name == "air-gapped" {
				file = mirrored(t, file)
			}
			before := systemd.Tree(t, root, systemd.Volatile()...)
			if plan := berth("plan", "-f", file, "--root", root); !strings.Contains(plan, "Plan: ") {
				t.Errorf("the plan:\n%s", plan)
			}
			if diff := cmp.Diff(before, systemd.Tree(t, root, systemd.Volatile()...)); diff != "" {
				t.Errorf("plan changes files (-before +after):\n%s", diff)
			}
			berth("apply", "--yes", "-f", file, "--root", root)
			if again := berth("apply", "--yes", "-f", file, "--root", root); !strings.Contains(again, "Nothing to change.") {
				t.Errorf("a second apply changes something:\n%s", again)
			}
		})
	}
}

// mirrored returns the example for a machine without the Internet, with the directory of a mirror
// that has what the file names, and with the digests of that.
func mirrored(t *testing.T, file string) string {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(repository, file))
	if err != nil {
		t.Fatal(err)
	}
	assets, dir := filepath.Join(repository, "out/systemd-assets"), t.TempDir()
	pause := filepath.Join(harness.BinDir(t), "hello-image.tar") // an archive of an image, too
	text := regexp.MustCompile(`(source: )/opt/mirror/(\S+)(\n +digest: sha256:)[0-9]{64}`).ReplaceAllStringFunc(string(data), func(asset string) string {
		name := regexp.MustCompile(`/opt/mirror/(\S+)`).FindStringSubmatch(asset)[1]
		from := filepath.Join(assets, name)
		switch name {
		case "pause.tar":
			from = pause
		case "kubelet", "kubeadm":
			from = filepath.Join(repository, "out/kube", name)
		}
		content, err := os.ReadFile(from)
		if err != nil {
			t.Fatalf("the asset is not made: run test/systemd/containerd.sh out/systemd-assets: %v", err)
		}
		sum := sha256.Sum256(content)
		if err := os.WriteFile(filepath.Join(dir, name), content, 0o755); err != nil {
			t.Fatal(err)
		}
		return regexp.MustCompile(`[0-9]{64}`).ReplaceAllString(asset, hex.EncodeToString(sum[:]))
	})
	text = strings.ReplaceAll(text, "/opt/mirror/", dir+"/")
	edited := filepath.Join(dir, "node.yaml")
	if err := os.WriteFile(edited, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return edited
}

// TestExampleOfANode applies examples/nodes/berth.yaml to a running machine. Its kernel settings are
// those of this host, so the test leaves them out.
func TestExampleOfANode(t *testing.T) {
	data, err := os.ReadFile(filepath.Join(repository, "examples/nodes/berth.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	const kernel = "kernel: {swap: \"off\"}\n"
	if !strings.Contains(string(data), kernel) {
		t.Fatalf("the example does not have %s", kernel)
	}
	kube, err := filepath.Abs(filepath.Join(repository, "out/kube"))
	if err != nil {
		t.Fatal(err)
	}
	m := systemd.BootNode(t, map[string]string{"/usr/bin/kubelet": filepath.Join(kube, "kubelet"), "/usr/bin/kubeadm": filepath.Join(kube, "kubeadm")})
	m.Applied(strings.Replace(string(data), kernel, "kernel: {defaultSysctls: false, sysctls: {net.ipv4.ip_forward: \"1\"}}\n", 1))
	if got := shown(m, "berth.service", "ActiveState"); got != "active" {
		t.Errorf("berth.service is %s", got)
	}
	m.Run("/opt/berth", "info")
}
