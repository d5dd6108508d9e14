package cri

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	imagespec "github.com/opencontainers/image-spec/specs-go/v1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berthrun/berth/internal/engine"
	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/image"
)

// noImages is an image store for tests without images.
func noImages() image.Store { return &fakeImages{} }

// call binds a request to a client's method.
func call[Req, Resp any](method func(context.Context, Req, ...grpc.CallOption) (Resp, error), req Req) func(context.Context) error {
	return func(ctx context.Context) error {
		_, err := method(ctx, req)
		return err
	}
}

func TestExecSyncReturnsOutputAndCode(t *testing.T) {
	pods := &fakePods{exec: func(_ context.Context, spec *engine.ExecSpec) (int32, error) {
		fmt.Fprint(spec.Stdout, "out")
		fmt.Fprint(spec.Stderr, "err")
		return 3, nil
	}}
	c := runtimeapi.NewRuntimeServiceClient(client(t, pods, noImages(), nil))
	resp, err := c.ExecSync(t.Context(), &runtimeapi.ExecSyncRequest{ContainerId: "x", Cmd: []string{"a"}})
	if err != nil || string(resp.Stdout) != "out" || string(resp.Stderr) != "err" || resp.ExitCode != 3 {
		t.Errorf("got %v, %v", resp, err)
	}
}

func TestExecSyncCapsEachStream(t *testing.T) {
	pods := &fakePods{exec: func(_ context.Context, spec *engine.ExecSpec) (int32, error) {
		chunk := bytes.Repeat([]byte("x"), 1<<20)
		for range 20 {
			for _, w := range []interface{ Write([]byte) (int, error) }{spec.Stdout, spec.Stderr} {
				if n, err := w.Write(chunk); n != len(chunk) || err != nil {
					return 0, fmt.Errorf("the command was disturbed: %d, %w", n, err)
				}
			}
		}
		return 0, nil
	}}
	c := runtimeapi.NewRuntimeServiceClient(client(t, pods, noImages(), nil))
	resp, err := c.ExecSync(t.Context(), &runtimeapi.ExecSyncRequest{ContainerId: "x", Cmd: []string{"a"}})
	if err != nil || len(resp.Stdout) < 7<<20 || len(resp.Stderr) < 7<<20 {
		t.Errorf("got %d and %d bytes, %v", len(resp.GetStdout()), len(resp.GetStderr()), err)
	}
	// The kubelet limits the size of a message.
	if size := proto.Size(resp); size > 16<<20 {
		t.Errorf("the answer has %d bytes", size)
	}
}

func TestFitAnswer(t *testing.T) {
	const all = maxExecAnswer
	for _, c := range [][4]int{
		{5, 7, 5, 7},
		{all, 0, all, 0},
		{all, 5, all - 5, 5},
		{5, all, 5, all - 5},
		{all + 1, all + 1, all - all/2, all / 2},
	} {
		out, err := fitAnswer(make([]byte, c[0]), make([]byte, c[1]))
		if len(out) != c[2] || len(err) != c[3] {
			t.Errorf("%d and %d: %d and %d, want %d and %d", c[0], c[1], len(out), len(err), c[2], c[3])
		}
	}
}

// The kubelet recognizes a probe that timed out by the code DeadlineExceeded. The text says so once,
// whatever the engine says of the call that it gave up.
func TestExecSyncTimeout(t *testing.T) {
	pods := &fakePods{exec: func(ctx context.Context, _ *engine.ExecSpec) (int32, error) {
		<-ctx.Done()
		return 0, fmt.Errorf("docker attach exec: the exec timed out: %w", ctx.Err())
	}}
	c := runtimeapi.NewRuntimeServiceClient(client(t, pods, noImages(), nil))
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	_, err := c.ExecSync(ctx, &runtimeapi.ExecSyncRequest{ContainerId: "x", Cmd: []string{"sleep", "9"}, Timeout: 1})
	const want = `command ["sleep" "9"] timed out: timeout 1s exceeded: context deadline exceeded`
	if status.Code(err) != codes.DeadlineExceeded || status.Convert(err).Message() != want {
		t.Errorf("got %v, want %s", err, want)
	}
}

func TestExecSyncFailureIsNoTimeout(t *testing.T) {
	pods := &fakePods{exec: func(context.Context, *engine.ExecSpec) (int32, error) {
		return 0, fmt.Errorf("no such command: %w", errs.Invalid)
	}}
	c := runtimeapi.NewRuntimeServiceClient(client(t, pods, noImages(), nil))
	_, err := c.ExecSync(t.Context(), &runtimeapi.ExecSyncRequest{ContainerId: "x", Cmd: []string{"a"}, Timeout: 5})
	if status.Code(err) != codes.InvalidArgument {
		t.Errorf("got %v", err)
	}
}

func TestExecChecksTheContainerFirst(t *testing.T) {
	pods := &fakePods{checkExec: func(_ context.Context, id string) (string, *runtimeapi.ContainerConfig, error) {
		if id == "gone" {
			return "", nil, fmt.Errorf("container gone has ended: %w", errs.State)
		}
		return id + "-full", nil, nil
	}}
	c := runtimeapi.NewRuntimeServiceClient(client(t, pods, noImages(), nil))
	_, err := c.Exec(t.Context(), &runtimeapi.ExecRequest{ContainerId: "gone", Cmd: []string{"a"}, Stdout: true})
	if status.Code(err) != codes.FailedPrecondition {
		t.Errorf("got %v", err)
	}
	resp, err := c.Attach(t.Context(), &runtimeapi.AttachRequest{ContainerId: "ab", Stdout: true})
	if err != nil || resp.Url != "http://attach/ab-full" {
		t.Errorf("got %v, %v", resp, err)
	}
}

func TestStatusReportsWhatIsNotReady(t *testing.T) {
	pods := &fakePods{
		info: &engine.Info{
			Name: "libcontainer", CgroupDriver: "systemd", Warnings: []string{"no oom scores"},
			Handlers: []*runtimeapi.RuntimeHandler{{Name: ""}},
			Features: &runtimeapi.RuntimeFeatures{SupplementalGroupsPolicy: true},
		},
		calls:   map[string]engine.CallCount{"info": {Calls: 3, Errors: 2, Timeouts: 1, Seconds: 0.5}},
		network: fmt.Errorf("cni config not initialized: %w", errs.Unavailable),
	}
	c := runtimeapi.NewRuntimeServiceClient(client(t, pods, noImages(), nil))
	resp, err := c.Status(t.Context(), &runtimeapi.StatusRequest{Verbose: true})
	if err != nil {
		t.Fatal(err)
	}
	ready, network := resp.Status.Conditions[0], resp.Status.Conditions[1]
	if ready.Type != "RuntimeReady" || !ready.Status || network.Type != "NetworkReady" || network.Status ||
		network.Reason != "NetworkPluginNotReady" || !strings.Contains(network.Message, "cni config not initialized") {
		t.Errorf("got %v", resp.Status.Conditions)
	}
	if len(resp.RuntimeHandlers) != 1 || !resp.Features.SupplementalGroupsPolicy {
		t.Errorf("got %v, %v", resp.RuntimeHandlers, resp.Features)
	}
	if !strings.Contains(resp.Info["engine"], "no oom scores") || resp.Info["network"] != `{"mode":"cni"}` || resp.Info["instance"] != `{"name":"default"}` || resp.Info["golang"] == "" ||
		resp.Info["cniconfig"] != `{"PluginConfDir":"/etc/cni/net.d"}` || resp.Info["lastCNILoadStatus"] != "10-x.conflist: no name" ||
		resp.Info["engineCalls"] != `{"info":{"calls":3,"errors":2,"timeouts":1,"seconds":0.5}}` {
		t.Errorf("got %v", resp.Info)
	}

	pods.info, pods.infoErr, pods.network = nil, errors.New("supervisor does not answer"), nil
	resp, err = c.Status(t.Context(), &runtimeapi.StatusRequest{Verbose: true})
	if err != nil {
		t.Fatal(err)
	}
	ready, network = resp.Status.Conditions[0], resp.Status.Conditions[1]
	if ready.Status || !strings.Contains(ready.Message, "supervisor does not answer") || !network.Status ||
		network.Reason != "NetworkConfigurationFault" || !strings.Contains(network.Message, "10-x.conflist: no name") {
		t.Errorf("got %v", resp.Status.Conditions)
	}
}

func TestRuntimeConfig(t *testing.T) {
	pods := &fakePods{info: &engine.Info{CgroupDriver: "cgroupfs"}}
	c := runtimeapi.NewRuntimeServiceClient(client(t, pods, noImages(), nil))
	resp, err := c.RuntimeConfig(t.Context(), &runtimeapi.RuntimeConfigRequest{})
	if err != nil || resp.Linux.CgroupDriver != runtimeapi.CgroupDriver_CGROUPFS {
		t.Errorf("got %v, %v", resp, err)
	}
	pods.info.CgroupDriver = "systemd"
	resp, err = c.RuntimeConfig(t.Context(), &runtimeapi.RuntimeConfigRequest{})
	if err != nil || resp.Linux.CgroupDriver != runtimeapi.CgroupDriver_SYSTEMD {
		t.Errorf("got %v, %v", resp, err)
	}
	_, err = c.UpdateRuntimeConfig(t.Context(), &runtimeapi.UpdateRuntimeConfigRequest{
		RuntimeConfig: &runtimeapi.RuntimeConfig{NetworkConfig: &runtimeapi.NetworkConfig{PodCidr: "10.1.0.0/24"}},
	})
	if err != nil || pods.podCIDR != "10.1.0.0/24" {
		t.Errorf("got %q, %v", pods.podCIDR, err)
	}
}

func TestImageStatus(t *testing.T) {
	images := &fakeImages{images: map[string]*image.Image{
		"busybox": {ID: "sha256:1", Tags: []string{"docker.io/library/busybox:latest"}, Size: 5, Config: imagespec.ImageConfig{User: "1000:1"}},
		"nginx":   {ID: "sha256:2", Config: imagespec.ImageConfig{User: "www"}, Pinned: true, Annotations: map[string]string{"of": "the image"}},
		"root":    {ID: "sha256:3", Encrypted: 2},
	}}
	c := runtimeapi.NewImageServiceClient(client(t, &fakePods{}, images, nil))
	get := func(ref string) *runtimeapi.Image {
		t.Helper()
		resp, err := c.ImageStatus(t.Context(), &runtimeapi.ImageStatusRequest{Image: &runtimeapi.ImageSpec{Image: ref}, Verbose: true})
		if err != nil {
			t.Fatal(err)
		}
		if resp.Image != nil && !strings.Contains(resp.Info["info"], `"history":[{"created_by":"COPY `+resp.Image.Id) {
			t.Errorf("verbose info of %s is %v", ref, resp.Info)
		}
		if encrypted := strings.Contains(resp.Info["info"], `"encryptedLayers":2`); encrypted != (ref == "root") {
			t.Errorf("verbose info of %s is %v", ref, resp.Info)
		}
		return resp.Image
	}
	if img := get("busybox"); img.Uid.GetValue() != 1000 || img.Username != "" || img.Size != 5 {
		t.Errorf("got %v", img)
	}
	if img := get("nginx"); img.Uid != nil || img.Username != "www" || !img.Pinned || img.Spec.GetAnnotations()["of"] != "the image" {
		t.Errorf("got %v", img)
	}
	if img := get("root"); img.Uid != nil || img.Username != "" || img.Spec != nil {
		t.Errorf("got %v", img)
	}
	images.getErr = fmt.Errorf("image: %w", errs.NotFound)
	if img := get("nosuch"); img != nil {
		t.Errorf("an absent image is %v", img)
	}
	if _, err := c.RemoveImage(t.Context(), &runtimeapi.RemoveImageRequest{Image: &runtimeapi.ImageSpec{Image: "nosuch"}}); err != nil {
		t.Errorf("removing what is absent gave %v", err)
	}
}

// TestImageStatusOfAnArtifact: clients see what is an artifact, and no image can claim to be one.
func TestImageStatusOfAnArtifact(t *testing.T) {
	artifact := &image.Artifact{Type: "application/vnd.example.model", Files: []image.ArtifactFile{{Name: "model.bin", Digest: "sha256:f1", Size: 7, MediaType: "a/b"}}}
	of := map[string]string{"of": "the manifest", image.AnnotationArtifactType: "claimed"}
	images := &fakeImages{images: map[string]*image.Image{
		"model": {ID: "sha256:1", Tags: []string{"docker.io/library/model:latest"}, Artifact: artifact, Annotations: of},
		"plain": {ID: "sha256:2", Artifact: artifact},
		"image": {ID: "sha256:3", Annotations: of},
	}}
	c := runtimeapi.NewImageServiceClient(client(t, &fakePods{}, images, nil))
	for ref, want := range map[string]string{"model": artifact.Type, "plain": artifact.Type, "image": ""} {
		resp, err := c.ImageStatus(t.Context(), &runtimeapi.ImageStatusRequest{Image: &runtimeapi.ImageSpec{Image: ref}, Verbose: true})
		if err != nil {
			t.Fatal(err)
		}
		annotations := resp.Image.GetSpec().GetAnnotations()
		if annotations[image.AnnotationArtifactType] != want || (annotations["of"] == "") != (ref == "plain") {
			t.Errorf("%s has the annotations %v", ref, annotations)
		}
		if files := strings.Contains(resp.Info["info"], `"files":[{"name":"model.bin","layer":0,"digest":"sha256:f1","mediaType":"a/b","size":7}]`); files != (want != "") {
			t.Errorf("verbose info of %s is %v", ref, resp.Info)
		}
	}
	if of[image.AnnotationArtifactType] != "claimed" {
		t.Error("the store's annotations were changed")
	}
}

func TestPullImage(t *testing.T) {
	images := &fakeImages{}
	c := runtimeapi.NewImageServiceClient(client(t, &fakePods{}, images, nil))
	req := &runtimeapi.PullImageRequest{
		Image: &runtimeapi.ImageSpec{Image: "a"},
		Auth:  &runtimeapi.AuthConfig{Username: "u", Password: "p", IdentityToken: "i", RegistryToken: "r", ServerAddress: "s", Auth: "x"},
	}
	resp, err := c.PullImage(t.Context(), req)
	if err != nil || resp.ImageRef != "sha256:a" {
		t.Errorf("got %v, %v", resp, err)
	}
	if want := (image.Auth{Username: "u", Password: "p", IdentityToken: "i", RegistryToken: "r", ServerAddress: "s", Auth: "x"}); images.auth != want {
		t.Errorf("got %v", images.auth)
	}
	req.SandboxConfig = &runtimeapi.PodSandboxConfig{Metadata: &runtimeapi.PodSandboxMetadata{Name: "web", Namespace: "team", Uid: "1"}}
	if _, err := c.PullImage(t.Context(), req); err != nil || images.target.Namespace != "team" {
		t.Errorf("pulled for namespace %q, %v", images.target.Namespace, err)
	}
	images.pullErr = fmt.Errorf("cannot pull a: connection refused: %w", errs.Unavailable)
	_, err = c.PullImage(t.Context(), req)
	// The kubelet removes the code only from errors with Unknown, and then compares the beginning of the text.
	if status.Code(err) != codes.Unknown || !strings.HasPrefix(status.Convert(err).Message(), "RegistryUnavailable: ") {
		t.Errorf("got %v", err)
	}
	images.pullErr = fmt.Errorf("cannot pull a: %w", &image.RefusedError{Err: fmt.Errorf("rejected: %w", errs.State)})
	_, err = c.PullImage(t.Context(), req)
	if status.Code(err) != codes.Unknown || !strings.HasPrefix(status.Convert(err).Message(), "SignatureValidationFailed: cannot pull a") {
		t.Errorf("an image that the policy refuses: %v", err)
	}
	images.pullErr = fmt.Errorf("cannot pull a: %w", &image.AwayError{Err: fmt.Errorf("the engine does not run: %w", errs.Unavailable)})
	_, err = c.PullImage(t.Context(), req)
	if text := status.Convert(err).Message(); status.Code(err) != codes.Unavailable || strings.Contains(text, "Registry") || !strings.Contains(text, "the engine does not run") {
		t.Errorf("a store that is away: %v", err)
	}
}

// An image is the same for every existing runtime handler, and unknown handlers are refused.
func TestRuntimeHandlersOfImages(t *testing.T) {
	pods := &fakePods{info: &engine.Info{Handlers: []*runtimeapi.RuntimeHandler{{Name: ""}, {Name: "sandboxed"}}}}
	images := &fakeImages{images: map[string]*image.Image{"a": {ID: "sha256:a"}}}
	c := runtimeapi.NewImageServiceClient(client(t, pods, images, nil))
	for handler, code := range map[string]codes.Code{"": codes.OK, "sandboxed": codes.OK, "kata": codes.InvalidArgument} {
		spec := &runtimeapi.ImageSpec{Image: "a", RuntimeHandler: handler}
		for what, ask := range map[string]func(context.Context) error{
			"PullImage":   call(c.PullImage, &runtimeapi.PullImageRequest{Image: spec}),
			"ImageStatus": call(c.ImageStatus, &runtimeapi.ImageStatusRequest{Image: spec}),
			"RemoveImage": call(c.RemoveImage, &runtimeapi.RemoveImageRequest{Image: spec}),
			"ListImages":  call(c.ListImages, &runtimeapi.ListImagesRequest{Filter: &runtimeapi.ImageFilter{Image: spec}}),
		} {
			err := ask(t.Context())
			if status.Code(err) != code {
				t.Errorf("%s for %q: %v, want %s", what, handler, err, code)
			}
			if text := status.Convert(err).Message(); err != nil && !strings.Contains(text, `image.runtime_handler: unknown runtime handler "kata"; accepted are "", "sandboxed"`) {
				t.Errorf("%s for %q: %s", what, handler, text)
			}
		}
	}
}

// If an update needs something that berth cannot do, the error names it.
func TestUpdatesRefuseWhatTheyCannotDo(t *testing.T) {
	c := runtimeapi.NewRuntimeServiceClient(client(t, &fakePods{}, noImages(), nil))
	linux := &runtimeapi.LinuxContainerResources{CpuShares: 2}
	for want, req := range map[string]*runtimeapi.UpdateContainerResourcesRequest{
		"windows":            {ContainerId: "x", Linux: linux, Windows: &runtimeapi.WindowsContainerResources{}},
		`annotations["a.b"]`: {ContainerId: "x", Linux: linux, Annotations: map[string]string{"b": "2", "a.b": "1"}},
	} {
		_, err := c.UpdateContainerResources(t.Context(), req)
		if status.Code(err) != codes.Unimplemented || !strings.Contains(status.Convert(err).Message(), want) {
			t.Errorf("%s: %v", want, err)
		}
	}
}

func TestImageFsInfo(t *testing.T) {
	c := runtimeapi.NewImageServiceClient(client(t, &fakePods{}, noImages(), nil))
	resp, err := c.ImageFsInfo(t.Context(), &runtimeapi.ImageFsInfoRequest{})
	if err != nil {
		t.Fatal(err)
	}
	fs := resp.ImageFilesystems[0]
	if fs.FsId.Mountpoint != "/var/lib/berth" || fs.UsedBytes.Value != 7 || fs.InodesUsed.Value != 3 || fs.Timestamp != 1e9 {
		t.Errorf("got %v", fs)
	}
}

// A list of a full node is larger than gRPC's default limit.
func TestLargeLists(t *testing.T) {
	pods := &fakePods{}
	for range 300 {
		pods.list = append(pods.list, &runtimeapi.PodSandbox{Annotations: map[string]string{"a": strings.Repeat("x", 100<<10)}})
	}
	c := runtimeapi.NewRuntimeServiceClient(client(t, pods, noImages(), nil))
	resp, err := c.ListPodSandbox(t.Context(), &runtimeapi.ListPodSandboxRequest{})
	if err != nil || len(resp.Items) != 300 {
		t.Errorf("got %d, %v", len(resp.GetItems()), err)
	}
}
