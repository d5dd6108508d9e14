//go:build integration

package handover

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berthrun/berth/internal/provision"
	"github.com/berthrun/berth/internal/provision/machine"
	"github.com/berthrun/berth/internal/require"
	"github.com/berthrun/berth/test/harness"
)

// TestImagesMoveBothWays: an image is copied from a real containerd to berth and back. It keeps its
// digest, and berth runs it.
func TestImagesMoveBothWays(t *testing.T) {
	require.Root(t)
	ctr := require.Binary(t, "ctr")
	host, err := machine.New("/", machine.Options{Assets: func(provision.Files) provision.Assets { return nil }})
	if err != nil {
		t.Fatal(err)
	}
	defer host.Close()
	b := harness.Start(t, harness.Options{NoImages: true})
	old := startContainerd(t, ctr)
	archive := harness.BusyboxArchive(b)
	containerd := func(args ...string) string {
		out, err := exec.CommandContext(t.Context(), ctr, append([]string{"--address", socket(old.Endpoint), "-n", "k8s.io", "images"}, args...)...).CombinedOutput()
		if err != nil {
			t.Fatalf("ctr %q: %v: %s", args, err, out)
		}
		return string(out)
	}
	containerd("import", archive)
	before := digestOf(t, containerd("ls"))

	berth := Runtime{
		Name: "berth", Endpoint: "unix://" + b.Socket, Binary: filepath.Join(b.Bin, "berth"),
		Content: filepath.Join(b.Root, "images/content/blobs"),
	}
	adopt(t, host, AdoptImages{Old: old, New: berth})
	resp, err := b.Images.ImageStatus(b.Ctx(), &runtimeapi.ImageStatusRequest{Image: &runtimeapi.ImageSpec{Image: harness.Busybox}})
	if err != nil || resp.GetImage() == nil {
		t.Fatalf("berth has no %s: %v", harness.Busybox, err)
	}
	if digests := strings.Join(resp.Image.RepoDigests, " "); !strings.HasSuffix(digests, before) {
		t.Errorf("in berth it has digests %s, in containerd %s", digests, before)
	}

	containerd("rm", "--sync", harness.Busybox)
	adopt(t, host, AdoptImages{Old: berth, New: old})
	if after := digestOf(t, containerd("ls")); after != before {
		t.Errorf("back in containerd it has digest %s, had %s", after, before)
	}
}

// adopt applies the task, and requires that nothing is left to do.
func adopt(t *testing.T, host provision.Host, task AdoptImages) {
	t.Helper()
	change, err := task.Check(t.Context(), host)
	if err != nil {
		t.Fatal(err)
	}
	if len(change.Diffs) != 1 {
		t.Fatalf("to %s: %+v, want one image", task.New.Name, change)
	}
	if err := task.Apply(t.Context(), host); err != nil {
		t.Fatal(err)
	}
	if change, err := task.Check(t.Context(), host); err != nil || !change.Empty() {
		t.Fatalf("to %s, after apply: %+v, %v", task.New.Name, change, err)
	}
}

// digestOf finds the test image's digest in the output of ctr.
func digestOf(t *testing.T, table string) string {
	t.Helper()
	for line := range strings.Lines(table) {
		if fields := strings.Fields(line); len(fields) > 2 && fields[0] == harness.Busybox {
			return fields[2]
		}
	}
	t.Fatalf("containerd has no %s:\n%s", harness.Busybox, table)
	return ""
}

// startContainerd runs a separate containerd until the test ends.
func startContainerd(t *testing.T, ctr string) Runtime {
	t.Helper()
	binary := require.Binary(t, "containerd")
	dir := t.TempDir()
	config := fmt.Sprintf("version = 2\nroot = '%[1]s/root'\nstate = '%[1]s/state'\n[grpc]\naddress = '%[1]s/c.sock'\n[plugins.'io.containerd.grpc.v1.cri'.cni]\nconf_dir = '%[1]s/net.d'\n", dir)
	if err := os.WriteFile(filepath.Join(dir, "config.toml"), []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	// Its mounts end with it. It requires that active controllers of cgroup v1 are mounted.
	script := `mount --make-rprivate /
if [ -d /sys/fs/cgroup/memory ] && ! mountpoint -q /sys/fs/cgroup/hugetlb; then
  mkdir -p /sys/fs/cgroup/hugetlb && mount -t cgroup -o hugetlb cgroup /sys/fs/cgroup/hugetlb
fi
exec "$0" --config "$1"`
	cmd := exec.Command("unshare", "--mount", "sh", "-c", script, binary, filepath.Join(dir, "config.toml"))
	log, err := os.Create(filepath.Join(dir, "log"))
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		_ = cmd.Wait()
	})
	r := Runtime{Name: "containerd", Endpoint: "unix://" + filepath.Join(dir, "c.sock"), Binary: ctr, Content: filepath.Join(dir, "root/io.containerd.content.v1.content/blobs")}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for {
		if there, err := answers(ctx, r.Endpoint); err == nil && there {
			return r
		}
		select {
		case <-ctx.Done():
			text, _ := os.ReadFile(log.Name())
			t.Fatalf("containerd does not answer:\n%s", text)
		case <-time.After(100 * time.Millisecond):
		}
	}
}
