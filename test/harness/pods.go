package harness

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	imagespec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/berthrun/berth/internal/berthapi"
	"github.com/berthrun/berth/internal/crilog"
	"github.com/berthrun/berth/internal/image/imagetest"
	"github.com/berthrun/berth/internal/require"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// Busybox is the image that tests run: Debian's static busybox with its applets.
const Busybox = "docker.io/library/busybox:test"

// ImportBusybox imports the test image.
func (b *Berth) ImportBusybox() {
	b.T.Helper()
	archive, err := os.Open(BusyboxArchive(b))
	must(b.T, err)
	defer archive.Close()
	_, err = b.Import(archive)
	must(b.T, err)
}

// Import sends an archive of images to the daemon.
func (b *Berth) Import(archive io.Reader) ([]berthapi.Image, error) {
	return berthapi.NewClient(b.conn).ImportImage(b.Ctx(), berthapi.ImportRequest{}, archive, nil)
}

// ImportDeclaring imports the test image under another name, with additional files and with paths
// that it declares as volumes.
func (b *Berth) ImportDeclaring(name string, volumes []string, files ...imagetest.File) {
	b.T.Helper()
	spec := BusyboxSpec(b, name, files...)
	spec.Volumes = volumes
	var archive bytes.Buffer
	must(b.T, imagetest.Archive(&archive, spec))
	_, err := b.Import(&archive)
	must(b.T, err)
}

// BusyboxSpec is the test image under another name, with additional files.
func BusyboxSpec(b *Berth, name string, files ...imagetest.File) imagetest.Spec {
	b.T.Helper()
	spec := busyboxSpec(b)
	spec.Name, spec.Files = name, append(spec.Files, files...)
	return spec
}

// BusyboxArchive writes the test image's archive into the instance's directory.
func BusyboxArchive(b *Berth) string {
	b.T.Helper()
	archive := filepath.Join(b.Dir, "busybox.tar")
	f, err := os.Create(archive)
	must(b.T, err)
	must(b.T, imagetest.Archive(f, busyboxSpec(b)))
	must(b.T, f.Close())
	return archive
}

func busyboxSpec(b *Berth) imagetest.Spec {
	b.T.Helper()
	busybox := require.Binary(b.T, "busybox")
	applets, err := exec.Command(busybox, "--list").Output()
	must(b.T, err)
	files := []imagetest.File{
		{Path: "/bin/busybox", Source: busybox, Mode: 0o755},
		{Path: "/tmp", Dir: true, Mode: 0o1777},
		{Path: "/etc/passwd", Content: []byte("root:x:0:0:root:/root:/bin/sh\nweb:x:1000:1001:web:/:/bin/sh\n")},
		{Path: "/etc/group", Content: []byte("root:x:0:\nweb:x:1001:\nextra:x:1002:web\n")},
	}
	for _, applet := range strings.Fields(string(applets)) {
		if applet != "busybox" {
			files = append(files, imagetest.File{Path: "/bin/" + applet, Symlink: "busybox"})
		}
	}
	return imagetest.Spec{
		Name: Busybox, Files: files, Env: []string{"PATH=/bin"}, Cmd: []string{"sh"},
		History: []imagespec.History{{CreatedBy: "COPY busybox /bin", Comment: "with its applets"}, {CreatedBy: "CMD sh", EmptyLayer: true}},
	}
}

// Ctx is a context that ends with the test, or after a minute (longer on a slow machine).
func (b *Berth) Ctx() context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), require.Patience(time.Minute))
	b.T.Cleanup(cancel)
	return ctx
}

// Sandbox is the configuration of an ordinary pod, as a kubelet sends it.
func (b *Berth) Sandbox(name string) *runtimeapi.PodSandboxConfig {
	return &runtimeapi.PodSandboxConfig{
		Metadata:     &runtimeapi.PodSandboxMetadata{Name: name, Namespace: "default", Uid: "uid-" + name},
		Hostname:     name,
		LogDirectory: filepath.Join(b.Logs, name),
		DnsConfig:    &runtimeapi.DNSConfig{Servers: []string{"192.0.2.53"}, Searches: []string{"default.svc"}},
		Labels:       map[string]string{"app": name},
		Annotations:  map[string]string{"note": name},
		Linux: &runtimeapi.LinuxPodSandboxConfig{
			SecurityContext: &runtimeapi.LinuxSandboxSecurityContext{
				NamespaceOptions: &runtimeapi.NamespaceOption{Pid: runtimeapi.NamespaceMode_CONTAINER},
				Seccomp:          &runtimeapi.SecurityProfile{ProfileType: runtimeapi.SecurityProfile_RuntimeDefault},
			},
		},
	}
}

// Container is the configuration of an ordinary container that runs a shell script.
func (b *Berth) Container(name, script string) *runtimeapi.ContainerConfig {
	return &runtimeapi.ContainerConfig{
		Metadata: &runtimeapi.ContainerMetadata{Name: name},
		Image:    &runtimeapi.ImageSpec{Image: Busybox, UserSpecifiedImage: Busybox},
		Command:  []string{"/bin/sh", "-c", script},
		LogPath:  name + "/0.log",
		Labels:   map[string]string{"container": name},
		Linux: &runtimeapi.LinuxContainerConfig{
			Resources: &runtimeapi.LinuxContainerResources{CpuPeriod: 100000, CpuShares: 102, OomScoreAdj: 1000},
			SecurityContext: &runtimeapi.LinuxContainerSecurityContext{
				NamespaceOptions: &runtimeapi.NamespaceOption{Pid: runtimeapi.NamespaceMode_CONTAINER},
				Seccomp:          &runtimeapi.SecurityProfile{ProfileType: runtimeapi.SecurityProfile_RuntimeDefault},
			},
		},
	}
}

// RunSandbox runs a sandbox and returns its id.
func (b *Berth) RunSandbox(config *runtimeapi.PodSandboxConfig) string {
	b.T.Helper()
	answer, err := b.Runtime.RunPodSandbox(b.Ctx(), &runtimeapi.RunPodSandboxRequest{Config: config})
	if err != nil {
		b.T.Fatalf("RunPodSandbox: %v", err)
	}
	return answer.PodSandboxId
}

// Create creates a container and returns its id.
func (b *Berth) Create(sandbox string, config *runtimeapi.ContainerConfig, sandboxConfig *runtimeapi.PodSandboxConfig) string {
	b.T.Helper()
	answer, err := b.Runtime.CreateContainer(b.Ctx(), &runtimeapi.CreateContainerRequest{
		PodSandboxId: sandbox, Config: config, SandboxConfig: sandboxConfig,
	})
	if err != nil {
		b.T.Fatalf("CreateContainer: %v", err)
	}
	return answer.ContainerId
}

// StartContainer starts a created container.
func (b *Berth) StartContainer(id string) {
	b.T.Helper()
	if _, err := b.Runtime.StartContainer(b.Ctx(), &runtimeapi.StartContainerRequest{ContainerId: id}); err != nil {
		b.T.Fatalf("StartContainer: %v", err)
	}
}

// Pod is a sandbox with one started container.
type Pod struct {
	Sandbox, Container string
	Config             *runtimeapi.PodSandboxConfig
	LogFile            string
}

// RunPod runs a pod whose container runs a shell script.
func (b *Berth) RunPod(name, script string) Pod {
	b.T.Helper()
	config := b.Sandbox(name)
	pod := Pod{Config: config, Sandbox: b.RunSandbox(config), LogFile: filepath.Join(config.LogDirectory, "c", "0.log")}
	pod.Container = b.Create(pod.Sandbox, b.Container("c", script), config)
	b.StartContainer(pod.Container)
	return pod
}

// Status is a container's status.
func (b *Berth) Status(container string) *runtimeapi.ContainerStatus {
	b.T.Helper()
	answer, err := b.Runtime.ContainerStatus(b.Ctx(), &runtimeapi.ContainerStatusRequest{ContainerId: container})
	if err != nil {
		b.T.Fatalf("ContainerStatus: %v", err)
	}
	return answer.Status
}

// SandboxStatus is a sandbox's status.
func (b *Berth) SandboxStatus(id string) *runtimeapi.PodSandboxStatus {
	b.T.Helper()
	answer, err := b.Runtime.PodSandboxStatus(b.Ctx(), &runtimeapi.PodSandboxStatusRequest{PodSandboxId: id})
	if err != nil {
		b.T.Fatalf("PodSandboxStatus: %v", err)
	}
	return answer.Status
}

// AwaitExit waits until a container has exited.
func (b *Berth) AwaitExit(container string) *runtimeapi.ContainerStatus {
	b.T.Helper()
	var last *runtimeapi.ContainerStatus
	b.Await(fmt.Sprintf("container %.12s to exit", container), func() bool {
		last = b.Status(container)
		return last.State == runtimeapi.ContainerState_CONTAINER_EXITED
	})
	return last
}

// Await polls for a condition that has no event to wait for, for half a minute
// (longer on a slow machine).
func (b *Berth) Await(what string, done func() bool) {
	b.T.Helper()
	deadline := time.Now().Add(require.Patience(30 * time.Second))
	for !done() {
		if time.Now().After(deadline) {
			b.T.Fatalf("timed out waiting for %s\n%s", what, b.LogTail())
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// Exec runs a shell script in a container and returns its answer.
func (b *Berth) Exec(container, script string) *runtimeapi.ExecSyncResponse {
	b.T.Helper()
	answer, err := b.Runtime.ExecSync(b.Ctx(), &runtimeapi.ExecSyncRequest{
		ContainerId: container, Cmd: []string{"/bin/sh", "-c", script}, Timeout: int64(require.Patience(30 * time.Second).Seconds()),
	})
	if err != nil {
		b.T.Fatalf("ExecSync %q: %v", script, err)
	}
	return answer
}

// ExecOut is Exec that requires code 0, and returns stdout without its last newline.
func (b *Berth) ExecOut(container, script string) string {
	b.T.Helper()
	answer := b.Exec(container, script)
	if answer.ExitCode != 0 {
		b.T.Fatalf("exec %q: code %d, stderr %s", script, answer.ExitCode, answer.Stderr)
	}
	return strings.TrimSuffix(string(answer.Stdout), "\n")
}

// RemovePod stops and removes a sandbox.
func (b *Berth) RemovePod(sandbox string) {
	b.T.Helper()
	if _, err := b.Runtime.StopPodSandbox(b.Ctx(), &runtimeapi.StopPodSandboxRequest{PodSandboxId: sandbox}); err != nil {
		b.T.Errorf("StopPodSandbox: %v", err)
	}
	if _, err := b.Runtime.RemovePodSandbox(b.Ctx(), &runtimeapi.RemovePodSandboxRequest{PodSandboxId: sandbox}); err != nil {
		b.T.Errorf("RemovePodSandbox: %v", err)
	}
}

// RemoveAllPods stops and removes every sandbox.
func (b *Berth) RemoveAllPods() {
	b.T.Helper()
	list, err := b.Runtime.ListPodSandbox(b.Ctx(), &runtimeapi.ListPodSandboxRequest{})
	if err != nil {
		b.T.Errorf("ListPodSandbox: %v", err)
		return
	}
	for _, sandbox := range list.Items {
		b.RemovePod(sandbox.Id)
	}
}

// LogLines are the lines of a CRI log, partial ones joined, without stream and time.
func LogLines(path string) ([]string, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	var lines []string
	parts := map[crilog.Stream]string{}
	reader := crilog.NewReader(f)
	for {
		entry, err := reader.Next()
		if errors.Is(err, io.EOF) {
			return lines, nil
		}
		if err != nil {
			return lines, err
		}
		parts[entry.Stream] += string(entry.Text)
		if !entry.Partial {
			lines = append(lines, parts[entry.Stream])
			parts[entry.Stream] = ""
		}
	}
}
