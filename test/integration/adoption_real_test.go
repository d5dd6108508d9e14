//go:build integration && e2e

package integration

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berthrun/berth/internal/docker/dockertest"
	"github.com/berthrun/berth/internal/engine/docker/labels"
	"github.com/berthrun/berth/internal/engine/docker/pause"
	"github.com/berthrun/berth/internal/require"
	"github.com/berthrun/berth/test/harness"
)

// startCRIDockerd runs the cri-dockerd that BERTH_CRI_DOCKERD names in the node's host network.
// stop ends it. From cri-dockerd 0.4 on it needs Docker 23 or later.
func (n *formerNode) startCRIDockerd() (runtime runtimeapi.RuntimeServiceClient, stop func()) {
	n.T.Helper()
	program := require.Given(n.T, "BERTH_CRI_DOCKERD", "cri-dockerd")
	_, err := pause.Ensure(n.Ctx(), n.client)
	must(n.T, err)
	socket := "unix://" + filepath.Join(n.dir, "cri-dockerd.sock")
	cmd := n.InHost(program, "--container-runtime-endpoint", socket, "--docker-endpoint", n.Docker.Endpoint,
		"--cri-dockerd-root-directory", filepath.Join(n.dir, "cri-dockerd"), "--network-plugin", "cni", "--pod-infra-container-image", pause.Reference,
		"--cni-conf-dir", filepath.Join(n.dir, "net.d"), "--cni-bin-dir", "/usr/lib/cni", "--cni-cache-dir", filepath.Join(n.dir, "cache"),
		"--streaming-bind-addr", "127.0.0.1:0")
	log, err := os.Create(filepath.Join(n.dir, "cri-dockerd.log"))
	must(n.T, err)
	defer log.Close()
	cmd.Stdout, cmd.Stderr = log, log
	must(n.T, cmd.Start())
	ctx, end := context.WithCancel(n.Ctx())
	go func() {
		defer end()
		_ = cmd.Wait() // it was killed, or its log says why it ended
	}()
	stop = func() {
		_ = cmd.Process.Signal(syscall.SIGKILL) // it may have ended
		<-ctx.Done()
	}
	n.T.Cleanup(stop)
	conn, err := grpc.NewClient(socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	must(n.T, err)
	n.T.Cleanup(func() { conn.Close() })
	runtime = runtimeapi.NewRuntimeServiceClient(conn)
	_, err = runtime.Version(ctx, &runtimeapi.VersionRequest{}, grpc.WaitForReady(true))
	if err != nil {
		text, _ := os.ReadFile(log.Name())
		n.T.Fatalf("cri-dockerd does not answer: %v\n%s", err, text)
	}
	return runtime, stop
}

// TestAdoptionFromCRIDockerd: pods that a real cri-dockerd made through real plugins run on under
// berth, with the same ids, metadata, labels and addresses. After their removal nothing is left.
func TestAdoptionFromCRIDockerd(t *testing.T) {
	for _, plugin := range []string{"bridge", "host-local", "loopback"} {
		require.Binary(t, "/usr/lib/cni/"+plugin)
	}
	n := newFormerNode(t, harness.Options{Args: []string{"--network", "cni"}, Docker: &dockertest.Options{LiveRestore: true}})
	conf := fmt.Sprintf(`{"cniVersion":"1.0.0","name":"real","plugins":[{"type":"bridge","bridge":"cni0","isGateway":true,
 "ipam":{"type":"host-local","dataDir":%q,"ranges":[[{"subnet":"10.96.9.0/24"}]]}}]}`, filepath.Join(n.dir, "ipam"))
	must(t, errors.Join(os.Mkdir(filepath.Join(n.dir, "net.d"), 0o755),
		os.WriteFile(filepath.Join(n.dir, "net.d", "10-real.conflist"), []byte(conf), 0o600),
		os.Remove(filepath.Join(n.dir, "bin", "fake")), os.Remove(filepath.Join(n.dir, "bin")),
		os.Symlink("/usr/lib/cni", filepath.Join(n.dir, "bin"))))
	former, stop := n.startCRIDockerd()
	pod := n.Sandbox("web")
	pod.LogDirectory = filepath.Join(n.Logs, "default_web_uid-web")
	pod.Linux.CgroupParent = n.cgroupOf("web")
	pod.PortMappings = []*runtimeapi.PortMapping{{ContainerPort: 80, HostPort: 0}}
	sandbox, err := former.RunPodSandbox(n.Ctx(), &runtimeapi.RunPodSandboxRequest{Config: pod})
	must(t, err)
	config := n.Container("main", printNumbers)
	config.Image.Image = n.image.Name
	config.Annotations = map[string]string{"io.kubernetes.container.restartCount": "0", "io.kubernetes.container.hash": "8f4f4b1c"}
	must(t, os.MkdirAll(filepath.Join(pod.LogDirectory, "main"), 0o755))
	made, err := former.CreateContainer(n.Ctx(), &runtimeapi.CreateContainerRequest{PodSandboxId: sandbox.PodSandboxId, Config: config, SandboxConfig: pod})
	must(t, err)
	_, err = former.StartContainer(n.Ctx(), &runtimeapi.StartContainerRequest{ContainerId: made.ContainerId})
	must(t, err)
	before, err := former.PodSandboxStatus(n.Ctx(), &runtimeapi.PodSandboxStatusRequest{PodSandboxId: sandbox.PodSandboxId})
	must(t, err)
	beforeContainer, err := former.ContainerStatus(n.Ctx(), &runtimeapi.ContainerStatusRequest{ContainerId: made.ContainerId})
	must(t, err)
	delete(before.GetStatus().GetLabels(), labels.Image) // cri-dockerd reports labels of the image as those of the pod
	stop()

	n.StartDaemon()
	after, afterContainer := n.SandboxStatus(sandbox.PodSandboxId), n.Status(made.ContainerId)
	if diff := cmp.Diff(sandboxFacts(before.GetStatus()), sandboxFacts(after)); diff != "" {
		t.Errorf("sandbox (-cri-dockerd +berth):\n%s", diff)
	}
	if diff := cmp.Diff(containerFacts(beforeContainer.GetStatus()), containerFacts(afterContainer)); diff != "" {
		t.Errorf("container (-cri-dockerd +berth):\n%s", diff)
	}
	if got := n.ExecOut(made.ContainerId, "echo runs"); got != "runs" {
		t.Errorf("exec: %q", got)
	}
	log := afterContainer.GetLogPath()
	n.Await("the log in CRI format", func() bool { return isRegular(log) && numbersIn(t, log) > 3 })
	out, err := n.InHost("busybox", "ping", "-c", "1", "-W", "5", after.GetNetwork().GetIp()).CombinedOutput()
	if err != nil {
		t.Errorf("ping: %v\n%s", err, out)
	}
	n.RemovePod(sandbox.PodSandboxId)
	for _, pattern := range []string{"ipam/real/10.*", "cri-dockerd/sandbox/*", "cache/results/*"} {
		if left, _ := filepath.Glob(filepath.Join(n.dir, pattern)); len(left) > 0 {
			t.Errorf("left: %q", left)
		}
	}
}

// sandboxFacts are what a kubelet compares of a sandbox.
func sandboxFacts(s *runtimeapi.PodSandboxStatus) map[string]any {
	options := s.GetLinux().GetNamespaces().GetOptions()
	return map[string]any{
		"id": s.GetId(), "name": s.GetMetadata().GetName(), "namespace": s.GetMetadata().GetNamespace(), "uid": s.GetMetadata().GetUid(),
		"attempt": s.GetMetadata().GetAttempt(), "state": s.GetState(), "created": s.GetCreatedAt(), "ip": s.GetNetwork().GetIp(),
		"labels": s.GetLabels(), "annotations": s.GetAnnotations(),
		"network": options.GetNetwork(), "pid": options.GetPid(), "ipc": options.GetIpc(),
	}
}

// containerFacts are what a kubelet compares of a container. The times are in microseconds.
func containerFacts(s *runtimeapi.ContainerStatus) map[string]any {
	return map[string]any{
		"id": s.GetId(), "name": s.GetMetadata().GetName(), "attempt": s.GetMetadata().GetAttempt(), "state": s.GetState(),
		"created": s.GetCreatedAt() / int64(time.Microsecond), "started": s.GetStartedAt() / int64(time.Microsecond),
		"labels": s.GetLabels(), "annotations": s.GetAnnotations(), "log": s.GetLogPath(), "image": s.GetImage().GetImage(),
	}
}
