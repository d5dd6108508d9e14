//go:build integration

package integration

import (
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"

	"google.golang.org/grpc/codes"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berthrun/berth/internal/image/imagetest"
	"github.com/berthrun/berth/test/harness"
)

// TestPlatformOfAHandler: the pods of a handler with a platform have the image of this platform, beside that of the node under
// the same name. A reload changes the platform for new pods. What a shell prints stands for a program of wasm here: the
// handler decides what it runs.
func TestPlatformOfAHandler(t *testing.T) {
	table := func(platform string) string {
		return "[handlers.wasm]\nkind = \"builtin\"\nplatform = \"" + platform + "\"\n[handlers.plain]\nkind = \"builtin\"\n"
	}
	b := harness.Start(t, harness.Options{Config: table("wasi/wasm")})
	b.NeedsPart(t, harness.Supervisors)
	registry, node, other := &imagetest.Registry{}, "linux/"+runtime.GOARCH, "linux/s390x"
	pushed := map[string]*imagetest.Image{}
	for _, platform := range []string{node, other, "wasi/wasm"} {
		spec := harness.BusyboxSpec(b, "", imagetest.File{Path: "/platform", Content: []byte(platform + "\n")})
		spec.OS, spec.Architecture, _ = strings.Cut(platform, "/")
		img, err := imagetest.Build(spec)
		if err != nil {
			t.Fatal(err)
		}
		pushed[platform] = img
	}
	registry.PushIndex("app", "1", pushed)
	ref := b.Serve(registry) + "/app:1"
	status := func(handler string) string {
		t.Helper()
		answer, err := b.Images.ImageStatus(b.Ctx(), &runtimeapi.ImageStatusRequest{Image: &runtimeapi.ImageSpec{Image: ref, RuntimeHandler: handler}})
		if err != nil {
			t.Fatal(err)
		}
		return answer.GetImage().GetId()
	}
	pull := func(want, handler string, pod *runtimeapi.PodSandboxConfig) {
		t.Helper()
		answer, err := b.Images.PullImage(b.Ctx(), &runtimeapi.PullImageRequest{Image: &runtimeapi.ImageSpec{Image: ref, RuntimeHandler: handler}, SandboxConfig: pod})
		if err != nil || answer.ImageRef != pushed[want].ID() {
			t.Errorf("pulled for %q: %v, %v", handler, answer, err)
		}
	}
	sandbox := func(name, handler string) (*runtimeapi.PodSandboxConfig, string) {
		t.Helper()
		config := b.Sandbox(name)
		answer, err := b.Runtime.RunPodSandbox(b.Ctx(), &runtimeapi.RunPodSandboxRequest{Config: config, RuntimeHandler: handler})
		if err != nil {
			t.Fatal(err)
		}
		return config, answer.PodSandboxId
	}
	container := func(name, image string) *runtimeapi.ContainerConfig {
		c := b.Container(name, "cat /platform")
		c.Image = &runtimeapi.ImageSpec{Image: image, UserSpecifiedImage: ref}
		return c
	}
	prints := func(config *runtimeapi.PodSandboxConfig, id, name, image, want string) {
		t.Helper()
		made := b.Create(id, container(name, image), config)
		b.StartContainer(made)
		b.AwaitExit(made)
		if lines, err := harness.LogLines(filepath.Join(config.LogDirectory, name, "0.log")); err != nil || len(lines) != 1 || lines[0] != want {
			t.Errorf("container %s of %s: %q, %v, want %s", name, image, lines, err, want)
		}
	}
	refused := func(id string, config *runtimeapi.PodSandboxConfig, image string, words ...string) {
		t.Helper()
		_, err := b.Runtime.CreateContainer(b.Ctx(), &runtimeapi.CreateContainerRequest{PodSandboxId: id, Config: container("no", image), SandboxConfig: config})
		checkRefusal(t, err, codes.Unimplemented, append(words, ref))
	}

	wasm, wasmID := sandbox("wasm", "wasm")
	plain, plainID := sandbox("plain", "plain")
	pull("wasi/wasm", "", wasm) // a kubelet that does not name the handler
	if status("wasm") != pushed["wasi/wasm"].ID() || status("") != "" || status("plain") != "" {
		t.Errorf("with the image for the handler alone: %q, %q, %q", status("wasm"), status(""), status("plain"))
	}
	refused(plainID, plain, ref, "for wasi/wasm", "the node's platform, "+node)
	pull(node, "", plain)
	pull("wasi/wasm", "wasm", nil)
	prints(wasm, wasmID, "name", ref, "wasi/wasm")
	prints(wasm, wasmID, "id", pushed["wasi/wasm"].ID(), "wasi/wasm")
	prints(plain, plainID, "name", ref, node)
	refused(wasmID, wasm, pushed[node].ID(), "is on this node for "+node, "needs it for wasi/wasm, the platform of its handler wasm", "berth image pull --handler wasm "+ref, "RuntimeClassInImageCriApi")
	if out := b.MustCLI("image", "ls"); strings.Count(out, ref) != 2 || strings.Count(out, "image for wasi/wasm") != 1 {
		t.Errorf("image ls shows\n%s", out)
	}
	if out := b.MustCLI("image", "inspect", "--handler", "wasm", ref); !strings.Contains(out, pushed["wasi/wasm"].ID()) || !strings.Contains(out, "Platform:") {
		t.Errorf("image inspect shows\n%s", out)
	}
	if out := b.MustCLI("image", "explain", "--handler", "wasm", ref); !strings.Contains(out, "The platform is wasi/wasm\n") {
		t.Errorf("image explain shows\n%s", out)
	}
	if out := b.MustCLI("info"); !strings.Contains(out, "platform: wasi/wasm") {
		t.Errorf("info shows\n%s", out)
	}

	bundle := filepath.Join(b.Dir, "bundle.tar")
	b.MustCLI("image", "bundle", "--handler", "wasm", "-o", bundle, ref)
	lock, err := os.ReadFile(filepath.Join(b.Dir, "bundle.lock"))
	if err != nil || !strings.Contains(string(lock), ref+"@"+pushed["wasi/wasm"].Manifest.Digest.String()) {
		t.Errorf("the lock of a bundle: %s, %v", lock, err)
	}
	b.MustCLI("image", "rm", "--handler", "wasm", ref)
	if out := b.MustCLI("image", "import", bundle); !strings.Contains(out, pushed["wasi/wasm"].ID()[7:19]) || status("wasm") != pushed["wasi/wasm"].ID() || status("") == "" {
		t.Errorf("an import of the bundle has %q, and says %s", status("wasm"), out)
	}

	file := filepath.Join(b.Dir, "berth.toml")
	if err := os.WriteFile(file, []byte(table(other)), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Kill(b.DaemonPid(), syscall.SIGHUP); err != nil {
		t.Fatal(err)
	}
	b.Await("the reload", func() bool { return strings.Contains(b.MustCLI("info"), "platform: "+other) })
	b.MustCLI("image", "pull", "--handler", "wasm", ref)
	if status("wasm") != pushed[other].ID() || status("") != pushed[node].ID() {
		t.Errorf("after the reload: %q, %q", status("wasm"), status(""))
	}
	prints(wasm, wasmID, "kept", ref, "wasi/wasm")
	later, laterID := sandbox("later", "wasm")
	prints(later, laterID, "name", ref, other)
	b.KillDaemon()
	b.StartDaemon()
	prints(wasm, wasmID, "restarted", ref, "wasi/wasm")
	b.MustCLI("image", "rm", "--handler", "wasm", ref)
	if status("wasm") != "" || status("") != pushed[node].ID() {
		t.Errorf("after the removal: %q, %q", status("wasm"), status(""))
	}
	prints(wasm, wasmID, "beside", ref, "wasi/wasm")
}
