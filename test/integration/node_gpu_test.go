//go:build integration

package integration

import (
	"strings"
	"testing"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berthrun/berth/internal/criclient"
	"github.com/berthrun/berth/test/systemd"
)

// A GPU for tests is another device by its names: this host's /dev/net/tun. A container may open it
// only if its device rules allow it.
const (
	makeGPU = "mkdir -p /var/run/cdi && mknod /dev/nvidia0 c 10 200 && chmod 666 /dev/nvidia0"
	gpuSpec = `{"cdiVersion": "0.6.0", "kind": "nvidia.com/gpu", "devices": [{"name": "0", "containerEdits": {"deviceNodes": [{"path": "/dev/nvidia0"}]}}]}`
)

// TestNodeKeepsGPUs: a container keeps its GPU over `systemctl daemon-reload`. systemd then may
// write the container's device rules again, from links that NVIDIA's driver does not create and a
// unit of the node does.
func TestNodeKeepsGPUs(t *testing.T) {
	ready := func(t *testing.T, text, runtime string) *systemd.Machine {
		m := systemd.BootNode(t, nil)
		m.Run("sh", "-c", makeGPU)
		m.Write("/opt/gpu.json", gpuSpec)
		m.Run("cp", "/opt/gpu.json", "/var/run/cdi/gpu.json")
		m.Applied(strings.Replace(text, "{name: "+runtime+"}", "{name: "+runtime+", nvidia: {enabled: true}}", 1))
		m.Run("test", "-c", "/dev/char/10:200")
		return m
	}
	t.Run("berth", func(t *testing.T) {
		m := ready(t, berthFile, "berth")
		cri, err := criclient.Dial(t.Context(), m.Path("/run/berth/berth.sock"))
		if err != nil {
			t.Fatal(err)
		}
		defer cri.Close()
		keeps(t, m, func(name string) func() string { return gpuContainer(t, cri, name) })
	})
	t.Run("docker", func(t *testing.T) {
		m := ready(t, packagedDocker, "docker")
		keeps(t, m, func(name string) func() string {
			m.Run("docker", "run", "-d", "--user", "0", "--device", "/dev/nvidia0", "--name", name, "berth.run/hello:demo", "sleep", "600")
			return func() string {
				out, err := m.Try("docker", "exec", name, "cat", "/dev/nvidia0")
				if err == nil {
					t.Errorf("the GPU that is none says %q", out)
				}
				return out
			}
		})
	})
}

// keeps checks that a newly started container keeps its GPU, and reports whether a container keeps
// it that was started without links.
func keeps(t *testing.T, m *systemd.Machine, start func(name string) (opens func() string)) {
	t.Helper()
	// A tun without an interface returns an error when it is read: the kernel's, or that of Go's poller, which may see the
	// device's state first. A container that may not open it gets no further than the open.
	const opened = "read /dev/nvidia0: "
	with := start("with")
	if said := with(); !strings.Contains(said, opened) {
		t.Fatalf("the container cannot use its GPU: %q", said)
	}
	m.Run("systemctl", "daemon-reload")
	if said := with(); !strings.Contains(said, opened) {
		t.Errorf("after a daemon-reload the container has lost its GPU: %s", said)
	}
	m.Run("rm", "/dev/char/10:200")
	without := start("without")
	m.Run("systemctl", "daemon-reload")
	t.Logf("without links, after a daemon-reload: %s", without())
	m.Run("systemctl", "restart", "berth-nvidia.service")
	m.Run("test", "-c", "/dev/char/10:200")
}

// gpuContainer starts a container with the GPU, and returns what opens it.
func gpuContainer(t *testing.T, cri *criclient.Conn, name string) func() string {
	t.Helper()
	ctx := t.Context()
	config := &runtimeapi.PodSandboxConfig{
		Metadata: &runtimeapi.PodSandboxMetadata{Name: name, Uid: name, Namespace: "default"},
		Linux:    &runtimeapi.LinuxPodSandboxConfig{},
	}
	sandbox, err := cri.Runtime.RunPodSandbox(ctx, &runtimeapi.RunPodSandboxRequest{Config: config})
	if err != nil {
		t.Fatal(err)
	}
	created, err := cri.Runtime.CreateContainer(ctx, &runtimeapi.CreateContainerRequest{
		PodSandboxId: sandbox.PodSandboxId, SandboxConfig: config,
		Config: &runtimeapi.ContainerConfig{
			Metadata:   &runtimeapi.ContainerMetadata{Name: "c"},
			Image:      &runtimeapi.ImageSpec{Image: "berth.run/hello:demo"},
			Command:    []string{"sleep", "600"},
			CDIDevices: []*runtimeapi.CDIDevice{{Name: "nvidia.com/gpu=0"}},
			Linux: &runtimeapi.LinuxContainerConfig{
				SecurityContext: &runtimeapi.LinuxContainerSecurityContext{RunAsUser: &runtimeapi.Int64Value{}},
			},
		},
	})
	if err == nil {
		_, err = cri.Runtime.StartContainer(ctx, &runtimeapi.StartContainerRequest{ContainerId: created.ContainerId})
	}
	if err != nil {
		t.Fatal(err)
	}
	return func() string {
		t.Helper()
		out, err := cri.Runtime.ExecSync(ctx, &runtimeapi.ExecSyncRequest{ContainerId: created.ContainerId, Cmd: []string{"cat", "/dev/nvidia0"}, Timeout: 10})
		if err != nil {
			t.Fatal(err)
		}
		return string(out.Stdout) + string(out.Stderr)
	}
}
