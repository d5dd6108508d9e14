//go:build vm

package vm

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berthrun/berth/test/harness"
)

const (
	gpu     = "/dev/nvidia0"
	gpuLink = "/dev/char/10:200"
	// A tun without an interface returns an error when it is read.
	gpuOpened = "bad state"
)

// TestGPUOverADaemonReload: with cgroup v2 systemd writes the device rules of all scopes again at a
// daemon-reload. It looks devices up in /dev/char, where NVIDIA's driver creates no links. (From
// 240 on systemd also knows a device by the name of its link; the log shows the case.) The script
// that a node with GPUs runs at boot creates them. A container that starts after it keeps its GPU,
// which here is a tun under another name.
func TestGPUOverADaemonReload(t *testing.T) {
	b := harness.Installed(t)
	out(t, "modprobe", "tun")
	out(t, "mknod", gpu, "c", "10", "200")
	remove := func(path string) {
		if err := os.Remove(path); err != nil && !os.IsNotExist(err) {
			t.Error(err)
		}
	}
	remove(gpuLink) // udev's, for the tun
	t.Cleanup(func() { remove(gpu); remove(gpuLink) })

	without := gpuPod(b, "without")
	harness.Systemctl(t, "daemon-reload")
	if said := reads(b, without); strings.Contains(said, gpuOpened) {
		t.Logf("systemd has left the GPU to a container without links: %s", said)
	} else {
		t.Logf("without links, after a daemon-reload: %s", said)
	}

	dir := t.TempDir()
	file := filepath.Join(dir, "node.yaml")
	if err := os.WriteFile(file, []byte("apiVersion: berth.run/v1alpha1\nkind: Node\nruntime: {name: berth, nvidia: {enabled: true}}\nnetwork: {mode: builtin}\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	b.MustCLI("node", "render", "--target", "dir", "--distribution", "debian:12", "-o", filepath.Join(dir, "out"), file)
	out(t, "sh", filepath.Join(dir, "out/root/etc/berth/node/nvidia-dev-char.sh"))
	with := gpuPod(b, "with")
	for range 2 {
		harness.Systemctl(t, "daemon-reload")
		if said := reads(b, with); !strings.Contains(said, gpuOpened) {
			t.Errorf("after a daemon-reload the container has lost its GPU: %s", said)
		}
	}
}

// gpuPod runs a pod that may use the GPU, and does.
func gpuPod(b *harness.Berth, name string) (container string) {
	b.T.Helper()
	config := b.Sandbox("gpu-" + name)
	sandbox := b.RunSandbox(config)
	b.T.Cleanup(func() { b.RemovePod(sandbox) })
	c := b.Container(name, "exec sleep 3600")
	c.Devices = []*runtimeapi.Device{{HostPath: gpu, ContainerPath: gpu, Permissions: "rw"}}
	container = b.Create(sandbox, c, config)
	b.StartContainer(container)
	if said := reads(b, container); !strings.Contains(said, gpuOpened) {
		b.T.Fatalf("the container cannot use its GPU: %s", said)
	}
	return container
}

// reads is the result of a read of the GPU in the container.
func reads(b *harness.Berth, container string) string {
	b.T.Helper()
	answer := b.Exec(container, "cat "+gpu)
	return string(answer.Stdout) + string(answer.Stderr)
}

func out(t *testing.T, args ...string) {
	t.Helper()
	if words, err := exec.CommandContext(t.Context(), args[0], args[1:]...).CombinedOutput(); err != nil {
		t.Fatalf("%s: %v\n%s", strings.Join(args, " "), err, words)
	}
}
