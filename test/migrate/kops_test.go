//go:build e2e

package migrate

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/berthrun/berth/test/docs/scripts"
	"github.com/berthrun/berth/test/harness"
	"github.com/berthrun/berth/test/systemd"
)

// TestFromKops types docs/migrate/kops.md with the page's own node file, and plans that file for a
// Debian. There is no kops and no cloud: the page leaves both as they are.
func TestFromKops(t *testing.T) {
	text := scripts.Block(t, repository, "docs/migrate/kops.md", "The cluster spec", "yaml")
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "node.yaml"), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	bin, err := filepath.Abs(harness.BinDir(t))
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(context.WithoutCancel(t.Context()), "bash", "-c", scripts.Reader)
	cmd.Dir, cmd.Env = dir, append(os.Environ(), "PATH="+bin+":"+os.Getenv("PATH"))
	sh := scripts.Open(t, cmd, commandPatience)
	scripts.Page(t, repository, "docs/migrate/kops.md", "", nil).All(sh)
	data, err := os.ReadFile(filepath.Join(dir, "user-data"))
	if err != nil {
		t.Fatal(err)
	}
	says(t, string(data), "#cloud-config", "max_concurrent_downloads = 5", "https://mirror.example", "vm.max_map_count = 262144")

	root := systemd.CopyRoot(t, systemd.Debian12, filepath.Join(dir, "root"))
	kubelet, err := filepath.Abs(filepath.Join(repository, "out/kube/kubelet"))
	if err != nil {
		t.Fatal(err)
	}
	sh.Run("cp " + kubelet + " " + root + "/usr/bin/kubelet && cp " + filepath.Join(filepath.Dir(kubelet), "kubeadm") + " " + root + "/usr/bin/kubeadm")
	says(t, sh.Run("berth node plan -f node.yaml --root "+root), "unit containerd.service", "/etc/containerd/certs.d/docker.io/hosts.toml")
}
