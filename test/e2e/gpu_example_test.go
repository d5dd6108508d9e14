//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/berthrun/berth/test/docs/scripts"
)

// A GPU for tests is this host's /dev/net/tun under another name. A container may open it only if
// its device rules allow it. A read of it is an error, because the tun has no interface.
const (
	fakeGPU  = "/dev/nvidia0"
	makeGPU  = "mknod /dev/nvidia0 c 10 200 && chmod 666 /dev/nvidia0"
	smi      = "#!/bin/sh\ncat /dev/nvidia0\necho looked\n"
	openedIt = "read /dev/nvidia0: "
	plugins  = "/var/lib/kubelet/device-plugins/"
)

// TestExampleOfGPUs types the part of docs/howto/gpu.md that applies examples/gpu-pod.yaml, on a
// cluster whose node has a fake GPU, a device plugin for it, and runc as NVIDIA's runtime.
func TestExampleOfGPUs(t *testing.T) {
	h := newClusterHost(t, engine{"docker", dockerOnly})
	runc, err := filepath.Glob(filepath.Join(repository, "out/systemd-assets/runc.*"))
	if err != nil || len(runc) != 1 {
		t.Fatalf("runc is not made: run test/systemd/containerd.sh out/systemd-assets: %q, %v", runc, err)
	}
	dir := t.TempDir()
	for name, text := range map[string]string{
		"nvidia-smi": smi, "Dockerfile": "FROM berth.run/hello:demo\nCOPY nvidia-smi /bin/nvidia-smi\n",
		"handler.toml": "\n" + scripts.Block(t, repository, "docs/howto/gpu.md", "With the handler nvidia", "toml"),
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	h.run("docker", "load", "-i", filepath.Join(filepath.Dir(h.berth), "hello-image.tar"))
	h.run("docker", "build", "-q", "-t", "registry.example/cuda:12", dir)
	t.Log(h.cluster("build-image", "--kubernetes", h.bin, "--rootfs", "../../out/systemd/root"))
	t.Log(h.cluster("create", "gpu", "--wait", h.patience()))
	t.Log(h.cluster("load", "--name", "gpu", "registry.example/cuda:12"))

	const node = "gpu-control-plane"
	h.run("docker", "exec", node, "sh", "-c", makeGPU)
	h.run("docker", "cp", runc[0], node+":/usr/bin/nvidia-container-runtime")
	h.run("docker", "cp", filepath.Join(dir, "handler.toml"), node+":/root/handler.toml")
	h.run("docker", "exec", node, "sh", "-c", "cat /root/handler.toml >> /etc/berth/berth.toml")
	servesGPU(t, filepath.Join("/proc", h.run("docker", "inspect", "-f", "{{.State.Pid}}", node), "root"))
	h.until(t, "1", "get", "node", node, "-o", `jsonpath={.status.allocatable.nvidia\.com/gpu}`)

	inNode := func(line string) scripts.Row {
		return scripts.Row{Line: line, Run: "docker exec " + node + " " + line, Why: "the node is a container"}
	}
	page := scripts.Page(t, repository, "docs/howto/gpu.md", "With the handler nvidia", []scripts.Row{
		inNode("systemctl reload berth"), inNode("berth info"),
	})
	out := page.All(h.shell())
	if got := out.Of(t, "berth info"); !strings.Contains(got, "nvidia") {
		t.Errorf("berth info does not list the handler:\n%s", got)
	}
	h.kubectl("wait", "--for=jsonpath={.status.phase}=Succeeded", "pod/gpu", "--timeout="+h.patience())
	if got := h.kubectl("logs", "gpu"); !strings.Contains(got, openedIt) {
		t.Errorf("the container could not open its GPU: %q", got)
	}
	t.Log(h.cluster("delete", "gpu"))
	h.nothingLeft("gpu")
}

// raw passes messages of gRPC as they are on the wire.
type raw struct{}

func (raw) Name() string { return "proto" }

func (raw) Marshal(v any) ([]byte, error) {
	message, ok := v.(*[]byte)
	if !ok {
		return nil, fmt.Errorf("cannot encode %T", v)
	}
	return *message, nil
}

func (raw) Unmarshal(data []byte, v any) error {
	message, ok := v.(*[]byte)
	if !ok {
		return fmt.Errorf("cannot decode %T", v)
	}
	*message = append([]byte(nil), data...)
	return nil
}

// message encodes fields of strings or messages, which are numbered from 1; "" leaves one out.
func message(fields ...string) string {
	var encoded []byte
	for i, field := range fields {
		if field != "" {
			encoded = protowire.AppendTag(encoded, protowire.Number(i+1), protowire.BytesType)
			encoded = protowire.AppendString(encoded, field)
		}
	}
	return string(encoded)
}

// servesGPU is a device plugin with one device, the fake GPU, in the interface v1beta1 of a kubelet
// whose root directory is root. It ends with the test.
func servesGPU(t *testing.T, root string) {
	t.Helper()
	const socket = "gpu.sock"
	listener, err := new(net.ListenConfig).Listen(t.Context(), "unix", filepath.Join(root, plugins, socket))
	if err != nil {
		t.Fatal(err)
	}
	ended, end := context.WithCancel(context.WithoutCancel(t.Context()))
	server := grpc.NewServer(grpc.ForceServerCodec(raw{}), grpc.UnknownServiceHandler(func(_ any, stream grpc.ServerStream) error {
		var request []byte
		if err := stream.RecvMsg(&request); err != nil {
			return err
		}
		method, _ := grpc.MethodFromServerStream(stream)
		answer := []byte{}
		switch {
		case strings.HasSuffix(method, "/ListAndWatch"):
			answer = []byte(message(message("gpu0", "Healthy")))
			if err := stream.SendMsg(&answer); err != nil {
				return err
			}
			<-ended.Done()
			return nil
		case strings.HasSuffix(method, "/Allocate"): // one container: its devices are field 3
			answer = []byte(message(message("", "", message(fakeGPU, fakeGPU, "rw"))))
		}
		return stream.SendMsg(&answer)
	}))
	go func() { _ = server.Serve(listener) }() // it ends with Stop
	t.Cleanup(func() { end(); server.Stop() })

	kubelet, err := grpc.NewClient("unix://"+filepath.Join(root, plugins, "kubelet.sock"),
		grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithDefaultCallOptions(grpc.ForceCodec(raw{})))
	if err != nil {
		t.Fatal(err)
	}
	defer kubelet.Close()
	request, response := []byte(message("v1beta1", socket, "nvidia.com/gpu")), []byte(nil)
	if err := kubelet.Invoke(t.Context(), "/v1beta1.Registration/Register", &request, &response, grpc.WaitForReady(true)); err != nil {
		t.Fatalf("the kubelet refuses the device plugin: %v", err)
	}
}
