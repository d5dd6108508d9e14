package handover

import (
	"archive/tar"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/opencontainers/go-digest"
	"google.golang.org/grpc"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/provision"
	"github.com/berthrun/berth/internal/provision/provisiontest"
	"github.com/berthrun/berth/internal/provision/reconciler"
	"github.com/berthrun/berth/internal/provision/tasks"
)

// fakeRuntime is a CRI server with pods and images.
type fakeRuntime struct {
	runtimeapi.UnimplementedRuntimeServiceServer
	runtimeapi.UnimplementedImageServiceServer
	mu     sync.Mutex
	pods   []*runtimeapi.PodSandbox
	images []*runtimeapi.Image
	// stuck is a pod that does not stop.
	stuck string
	calls []string
	// config is what verbose Status shows of the configuration.
	config string
}

func (f *fakeRuntime) Status(_ context.Context, r *runtimeapi.StatusRequest) (*runtimeapi.StatusResponse, error) {
	resp := &runtimeapi.StatusResponse{}
	if r.Verbose && f.config != "" {
		resp.Info = map[string]string{"config": f.config}
	}
	return resp, nil
}

// serve starts it on a socket and returns its endpoint.
func (f *fakeRuntime) serve(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "s")
	listener, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer()
	runtimeapi.RegisterRuntimeServiceServer(server, f)
	runtimeapi.RegisterImageServiceServer(server, f)
	go server.Serve(listener)
	t.Cleanup(server.Stop)
	return "unix://" + path
}

func (f *fakeRuntime) Version(context.Context, *runtimeapi.VersionRequest) (*runtimeapi.VersionResponse, error) {
	return &runtimeapi.VersionResponse{}, nil
}

func (f *fakeRuntime) ListPodSandbox(context.Context, *runtimeapi.ListPodSandboxRequest) (*runtimeapi.ListPodSandboxResponse, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return &runtimeapi.ListPodSandboxResponse{Items: f.pods}, nil
}

func (f *fakeRuntime) StopPodSandbox(_ context.Context, r *runtimeapi.StopPodSandboxRequest) (*runtimeapi.StopPodSandboxResponse, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.calls = append(f.calls, "stop "+r.PodSandboxId)
	if r.PodSandboxId == f.stuck {
		return nil, errors.New("stuck")
	}
	return &runtimeapi.StopPodSandboxResponse{}, nil
}

func (f *fakeRuntime) RemovePodSandbox(_ context.Context, r *runtimeapi.RemovePodSandboxRequest) (*runtimeapi.RemovePodSandboxResponse, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.calls = append(f.calls, "remove "+r.PodSandboxId)
	f.pods = slices.DeleteFunc(f.pods, func(p *runtimeapi.PodSandbox) bool { return p.Id == r.PodSandboxId })
	return &runtimeapi.RemovePodSandboxResponse{}, nil
}

func (f *fakeRuntime) ListImages(context.Context, *runtimeapi.ListImagesRequest) (*runtimeapi.ListImagesResponse, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return &runtimeapi.ListImagesResponse{Images: f.images}, nil
}

func pod(id, name string, state runtimeapi.PodSandboxState) *runtimeapi.PodSandbox {
	return &runtimeapi.PodSandbox{Id: id, State: state, Metadata: &runtimeapi.PodSandboxMetadata{Namespace: "default", Name: name}}
}

func TestDrain(t *testing.T) {
	old := &fakeRuntime{pods: []*runtimeapi.PodSandbox{
		pod("2", "web", runtimeapi.PodSandboxState_SANDBOX_READY),
		pod("1", "db", runtimeapi.PodSandboxState_SANDBOX_NOTREADY),
	}}
	host := provisiontest.New()
	if err := host.Files().Write("/etc/systemd/system/"+kubeletUnit, strings.NewReader("[Service]\n"), provision.Attr{Mode: 0o644}); err != nil {
		t.Fatal(err)
	}
	host.StartNow(kubeletUnit)
	drain := Drain{Old: Runtime{Name: "containerd", Endpoint: old.serve(t)}, New: Runtime{Name: "berth"}, Kubelet: true}
	change, err := drain.Check(t.Context(), host)
	if err != nil {
		t.Fatal(err)
	}
	if len(change.Diffs) != 2 || change.Disrupts != "stops the pods that run in containerd (1); the kubelet starts them in berth" {
		t.Errorf("%+v", change)
	}
	if err := drain.Apply(t.Context(), host); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"stop 1", "remove 1", "stop 2", "remove 2"}, old.calls); diff != "" {
		t.Error(diff)
	}
	if running, err := kubeletRuns(t.Context(), host); err != nil || running {
		t.Errorf("the kubelet runs while its pods are taken away: %v", err)
	}
	if change, err := drain.Check(t.Context(), host); err != nil || !change.Empty() {
		t.Errorf("after apply: %+v, %v", change, err)
	}
	// An apply that fails later brings the kubelet back.
	kind := Kinds()[kindKubelet]
	if err := kind.Restore(t.Context(), host, kubeletUnit, provision.State{Exists: true}, nil); err != nil {
		t.Fatal(err)
	}
	if running, _ := kubeletRuns(t.Context(), host); !running {
		t.Error("the kubelet was not started again")
	}
}

// TestDrainOfOneEngine: berth's engines have one socket. Pods are those of the replaced engine only
// while berth runs with it.
func TestDrainOfOneEngine(t *testing.T) {
	berth := &fakeRuntime{pods: []*runtimeapi.PodSandbox{pod("1", "db", runtimeapi.PodSandboxState_SANDBOX_READY)}}
	endpoint := berth.serve(t)
	for _, c := range []struct {
		config string
		pods   map[string]int
	}{
		{`{"Engine": "docker"}`, map[string]int{"docker": 1, "native": 0, "": 1}},
		{`{"Engine": "native"}`, map[string]int{"docker": 0, "native": 1, "": 1}},
		{"", map[string]int{"docker": 0, "native": 1, "": 1}},
	} {
		berth.config = c.config
		for engine, want := range c.pods {
			drain := Drain{Old: Runtime{Name: "berth", Engine: engine, Endpoint: endpoint}, New: Runtime{Name: "docker"}}
			change, err := drain.Check(t.Context(), provisiontest.New())
			if err != nil || len(change.Diffs) != want {
				t.Errorf("with the configuration %s the engine %q has %+v, %v; want %d pods", c.config, engine, change.Diffs, err, want)
			}
		}
	}
	berth.config = "{"
	drain := Drain{Old: Runtime{Name: "berth", Engine: "native", Endpoint: endpoint}, New: Runtime{Name: "docker"}}
	if _, err := drain.Check(t.Context(), provisiontest.New()); err == nil || !strings.Contains(err.Error(), "which engine berth has") {
		t.Errorf("a broken configuration: %v", err)
	}
}

func TestDrainTellsWhatStays(t *testing.T) {
	old := &fakeRuntime{stuck: "1", pods: []*runtimeapi.PodSandbox{
		pod("1", "db", runtimeapi.PodSandboxState_SANDBOX_READY), pod("2", "web", runtimeapi.PodSandboxState_SANDBOX_READY),
	}}
	drain := Drain{Old: Runtime{Name: "containerd", Endpoint: old.serve(t)}, New: Runtime{Name: "berth"}}
	err := drain.Apply(t.Context(), provisiontest.New())
	if err == nil || !strings.Contains(err.Error(), "cannot stop pod default/db") {
		t.Errorf("%v", err)
	}
	if len(old.pods) != 1 {
		t.Errorf("the other pod stayed too: %v", old.pods)
	}
}

func TestDrainOfNobody(t *testing.T) {
	drain := Drain{Old: Runtime{Name: "containerd", Endpoint: "unix://" + t.TempDir() + "/none"}, New: Runtime{Name: "berth"}, Kubelet: true}
	if change, err := drain.Check(t.Context(), provisiontest.New()); err != nil || !change.Empty() {
		t.Errorf("%+v, %v", change, err)
	}
}

// store fills a directory with blobs.
type store struct {
	t    *testing.T
	host *provisiontest.Host
}

func newStore(t *testing.T) store {
	host := provisiontest.New()
	for _, dir := range []string{"/c", "/c/sha256"} {
		if err := host.Files().Mkdir(dir, provision.Attr{Mode: 0o755}); err != nil {
			t.Fatal(err)
		}
	}
	return store{t, host}
}

func (s store) put(content string) digest.Digest {
	d := digest.FromString(content)
	if err := s.host.Files().Write("/c/sha256/"+d.Encoded(), strings.NewReader(content), provision.Attr{Mode: 0o644}); err != nil {
		s.t.Fatal(err)
	}
	return d
}

func (s store) manifest(config, layer digest.Digest) digest.Digest {
	return s.put(fmt.Sprintf(`{"mediaType":"application/vnd.oci.image.manifest.v1+json","config":{"digest":%q},"layers":[{"digest":%q},{"digest":%q}]}`, config, layer, layer))
}

// TestAdopt: containerd's images are copied to berth as OCI archives with the same digests. Images
// that berth already has, and incomplete ones, are skipped.
func TestAdopt(t *testing.T) {
	s := newStore(t)
	layer := s.put("layer")
	whole := s.manifest(s.put("config"), layer)
	index := s.put(fmt.Sprintf(`{"mediaType":"application/vnd.oci.image.index.v1+json","manifests":[{"digest":%q},{"digest":%q}]}`, whole, digest.FromString("another platform")))
	broken := s.manifest(s.put("config 2"), digest.FromString("discarded"))
	table := "REF TYPE DIGEST SIZE PLATFORMS LABELS\n"
	for name, d := range map[string]digest.Digest{
		"docker.io/library/app:1": index, "docker.io/library/app:latest": index, "sha256:" + index.Encoded(): index,
		"docker.io/library/app@" + index.String(): index, "r.example:5000/x/there:2": whole, "r.example/broken:1": broken,
	} {
		table += fmt.Sprintf("%s application/x %s 5.0MiB linux/amd64 -\n", name, d)
	}
	s.host.Programs["ctr"] = func(cmd provision.Command) ([]byte, error) { return []byte(table), nil }
	berth := &fakeRuntime{images: []*runtimeapi.Image{{RepoTags: []string{"r.example:5000/x/there:2"}}}}
	var loaded map[string]string
	s.host.Programs["/usr/local/bin/berth"] = func(cmd provision.Command) ([]byte, error) {
		loaded = untar(t, cmd.Stdin)
		berth.mu.Lock()
		defer berth.mu.Unlock()
		berth.images = append(berth.images, &runtimeapi.Image{RepoTags: []string{"docker.io/library/app:1", "docker.io/library/app:latest"}})
		return nil, nil
	}
	adopt := AdoptImages{
		Old: Runtime{Name: "containerd", Endpoint: (&fakeRuntime{}).serve(t), Content: "/c", Binary: "ctr"},
		New: Runtime{Name: "berth", Endpoint: berth.serve(t), Binary: "/usr/local/bin/berth"},
	}
	change, err := adopt.Check(t.Context(), s.host)
	if err != nil {
		t.Fatal(err)
	}
	if len(change.Diffs) != 2 || !strings.HasSuffix(change.Diffs[0].Object.Name, "#docker.io/library/app:1") {
		t.Errorf("%+v", change)
	}
	if err := adopt.Apply(t.Context(), s.host); err != nil {
		t.Fatal(err)
	}
	var top struct {
		Manifests []struct {
			Digest      digest.Digest
			Annotations map[string]string
		}
	}
	if err := json.Unmarshal([]byte(loaded["index.json"]), &top); err != nil {
		t.Fatal(err)
	}
	if len(top.Manifests) != 2 || top.Manifests[0].Digest != index || top.Manifests[1].Annotations["io.containerd.image.name"] != "docker.io/library/app:latest" {
		t.Errorf("%+v", top)
	}
	var blobs []string
	for name, content := range loaded {
		if strings.HasPrefix(name, "blobs/sha256/") {
			blobs = append(blobs, content[:min(len(content), 12)])
			if digest.FromString(content).Encoded() != filepath.Base(name) {
				t.Errorf("%s has other content", name)
			}
		}
	}
	slices.Sort(blobs)
	if diff := cmp.Diff([]string{"config", "layer", `{"mediaType"`, `{"mediaType"`}, blobs); diff != "" {
		t.Error(diff)
	}
	if change, err := adopt.Check(t.Context(), s.host); err != nil || !change.Empty() {
		t.Errorf("after apply: %+v, %v", change, err)
	}
}

// TestAdoptTellsOfFailures: the error has the loader's own message, also if the loader exits early.
func TestAdoptTellsOfFailures(t *testing.T) {
	s := newStore(t)
	whole := s.manifest(s.put("config"), s.put(strings.Repeat("layer", 1<<20)))
	old := &fakeRuntime{images: []*runtimeapi.Image{{RepoTags: []string{"r.example/a:1"}, RepoDigests: []string{"r.example/a@" + whole.String()}}}}
	adopt := AdoptImages{
		Old: Runtime{Name: "berth", Endpoint: old.serve(t), Content: "/c"},
		New: Runtime{Name: "containerd", Endpoint: (&fakeRuntime{}).serve(t), Binary: "ctr"},
	}
	s.host.Programs["ctr"] = func(cmd provision.Command) ([]byte, error) {
		if cmd.Args[6] != "import" {
			t.Errorf("ran %q", cmd.Args)
		}
		return nil, errors.New("no space left")
	}
	err := adopt.Apply(t.Context(), s.host)
	if err == nil || !strings.Contains(err.Error(), "cannot take over image r.example/a:1 from berth") || !strings.Contains(err.Error(), "no space left") {
		t.Errorf("%v", err)
	}
}

func untar(t *testing.T, r io.Reader) map[string]string {
	files := map[string]string{}
	for reader := tar.NewReader(r); ; {
		header, err := reader.Next()
		if errors.Is(err, io.EOF) {
			return files
		}
		if err != nil {
			t.Error(err)
			return files
		}
		var b bytes.Buffer
		if _, err := io.Copy(&b, reader); err != nil {
			t.Error(err)
		}
		files[header.Name] = b.String()
	}
}

func TestKubeletEndpoint(t *testing.T) {
	const endpoint = "unix:///run/berth/berth.sock"
	cases := map[string]struct {
		in, want string
		add      bool
	}{
		"kubeadm's flags":   {"KUBELET_KUBEADM_ARGS=\"--container-runtime-endpoint=unix:///run/containerd/containerd.sock --x=y\"\n", "KUBELET_KUBEADM_ARGS=\"--container-runtime-endpoint=" + endpoint + " --x=y\"\n", false},
		"at the end":        {"A=\"--x --container-runtime-endpoint=unix:///a\"\n", "A=\"--x --container-runtime-endpoint=" + endpoint + "\"\n", false},
		"configuration":     {"a: b\ncontainerRuntimeEndpoint: unix:///a\nc: d\n", "a: b\ncontainerRuntimeEndpoint: " + endpoint + "\nc: d\n", false},
		"quoted":            {"containerRuntimeEndpoint: \"unix:///a\"\n", "containerRuntimeEndpoint: \"" + endpoint + "\"\n", false},
		"empty, then other": {"containerRuntimeEndpoint: \"\"\nvolume: x\n", "containerRuntimeEndpoint: \"\"\nvolume: x\n", false},
		"JSON":              {"{\n  \"containerRuntimeEndpoint\": \"unix:///a\",\n  \"a\": 1\n}\n", "{\n  \"containerRuntimeEndpoint\": \"" + endpoint + "\",\n  \"a\": 1\n}\n", false},
		"JSON, empty":       {`{"containerRuntimeEndpoint":"","a":1}`, `{"containerRuntimeEndpoint":"","a":1}`, false},
		"indented":          {" a: b\n containerRuntimeEndpoint: unix:///a\n c: d\n", " a: b\n containerRuntimeEndpoint: " + endpoint + "\n c: d\n", false},
		"adds it indented":  {"---\n# a\n  a:\n    b: c\n", "---\n# a\n  a:\n    b: c\n  containerRuntimeEndpoint: " + endpoint + "\n", true},
		"says nothing":      {"a: b\n", "a: b\n", false},
		"adds it":           {"a: b", "a: b\ncontainerRuntimeEndpoint: " + endpoint + "\n", true},
		"adds it to none":   {"", "containerRuntimeEndpoint: " + endpoint + "\n", true},
		"fills it":          {"containerRuntimeEndpoint: \"\"\nvolume: x\n", "volume: x\ncontainerRuntimeEndpoint: " + endpoint + "\n", true},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			host := provisiontest.New()
			if err := host.Files().Write("/etc/k", strings.NewReader(c.in), provision.Attr{Mode: 0o600}); err != nil {
				t.Fatal(err)
			}
			task := KubeletEndpoint{Path: "/etc/k", Endpoint: endpoint, Add: c.add}
			change, err := task.Check(t.Context(), host)
			if err != nil || change.Empty() != (c.in == c.want) {
				t.Errorf("%+v, %v", change, err)
			}
			if err := task.Apply(t.Context(), host); err != nil {
				t.Fatal(err)
			}
			r, err := host.Files().Open("/etc/k")
			if err != nil {
				t.Fatal(err)
			}
			got, _ := io.ReadAll(r)
			if diff := cmp.Diff(c.want, string(got)); diff != "" {
				t.Error(diff)
			}
			info, _ := host.Files().Stat("/etc/k")
			if info.Mode != 0o600 {
				t.Errorf("mode %v", info.Mode)
			}
			if change, err := task.Check(t.Context(), host); err != nil || !change.Empty() {
				t.Errorf("after apply: %+v, %v", change, err)
			}
		})
	}
}

// TestKubeletEndpointRefuses: a file that berth could only spoil stays.
func TestKubeletEndpointRefuses(t *testing.T) {
	for name, content := range map[string]string{
		"too large": "containerRuntimeEndpoint: unix:///a\n" + strings.Repeat("#\n", sizeLimit/2), "JSON": "{}\n",
	} {
		host := provisiontest.New()
		if err := host.Files().Write("/etc/k", strings.NewReader(content), provision.Attr{Mode: 0o600}); err != nil {
			t.Fatal(err)
		}
		task := KubeletEndpoint{Path: "/etc/k", Endpoint: "unix:///b", Add: true}
		if change, err := task.Check(t.Context(), host); !errors.Is(err, errs.State) {
			t.Errorf("%s: %+v, %v", name, change, err)
		}
		if err := task.Apply(t.Context(), host); !errors.Is(err, errs.State) {
			t.Errorf("%s: applied with %v", name, err)
		}
	}
}

// TestEvict: the kubelet is stopped during the eviction of its pods, and started after it, also by a second run of a command
// that was killed meanwhile.
func TestEvict(t *testing.T) {
	for _, verb := range []string{"reset", "prune", "rollback"} {
		for _, fault := range []provisiontest.Fault{provisiontest.None, provisiontest.KillAfter} {
			t.Run(fmt.Sprint(verb, " ", fault), func(t *testing.T) { evict(t, verb, fault) })
		}
	}
}

func evict(t *testing.T, verb string, fault provisiontest.Fault) {
	old := &fakeRuntime{pods: []*runtimeapi.PodSandbox{pod("1", "web", runtimeapi.PodSandboxState_SANDBOX_READY)}}
	endpoint, host := old.serve(t), provisiontest.New()
	if err := host.Files().Write("/etc/systemd/system/"+kubeletUnit, strings.NewReader("[Service]\n"), provision.Attr{Mode: 0o644}); err != nil {
		t.Fatal(err)
	}
	if err := host.Units().Start(t.Context(), kubeletUnit); err != nil {
		t.Fatal(err)
	}
	kinds := tasks.Kinds()
	maps.Copy(kinds, Kinds())
	first, second := tasks.File{Path: "/etc/first", Content: "1"}, tasks.File{Path: "/etc/second", Content: "2"}
	less, more := provision.Target{Tasks: []provision.Task{first}}, provision.Target{Tasks: []provision.Task{first, second}}
	newReconciler := func() *reconciler.Reconciler {
		t.Helper()
		rc, err := reconciler.New(reconciler.Config{Host: host, Kinds: kinds, Version: "test"})
		if err != nil {
			t.Fatal(err)
		}
		return rc
	}
	for _, target := range []provision.Target{less, more} {
		if _, err := newReconciler().Apply(t.Context(), target, reconciler.ApplyOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	run := func() (err error) {
		rc := newReconciler()
		var back *reconciler.Back
		switch verb {
		case "reset":
			back, err = rc.PlanReset(t.Context())
		case "prune":
			back, err = rc.PlanPrune(t.Context(), less)
		default:
			back, err = rc.PlanRollback(t.Context(), 1, less)
		}
		if err == nil {
			err = rc.Keep(t.Context(), back, RunningKubelet())
		}
		if err != nil {
			t.Fatal(err)
		}
		opts := reconciler.BackOptions{Evict: func(ctx context.Context) error {
			if err := Evict(ctx, host, []string{endpoint}); err != nil {
				return err
			}
			if running, err := kubeletRuns(ctx, host); err != nil || running || len(old.pods) > 0 {
				t.Errorf("pods %v are left, the kubelet runs: %t, %v", old.pods, running, err)
			}
			return nil
		}}
		switch verb {
		case "reset":
			_, err = rc.Reset(t.Context(), back, opts)
		case "prune":
			_, err = rc.Prune(t.Context(), back, opts)
		default:
			_, err = rc.Rollback(t.Context(), 1, back, opts)
		}
		return err
	}
	host.Fault = func(_ int, op string) provisiontest.Fault {
		if op == "stop "+kubeletUnit {
			return fault
		}
		return provisiontest.None
	}
	err := run()
	if (err != nil) != (fault != provisiontest.None) {
		t.Fatalf("%s: %v", verb, err)
	}
	if host.StartProcess(); fault != provisiontest.None {
		if err := run(); err != nil {
			t.Fatalf("%s again: %v", verb, err)
		}
	}
	if running, err := kubeletRuns(t.Context(), host); err != nil || !running || provision.Exists(host.Files(), "/etc/second") {
		t.Errorf("the kubelet does not run again, or /etc/second stays: %v", err)
	}
	if rc := newReconciler(); verb != "reset" {
		if _, ok := rc.Journal().Owns(RunningKubelet()); ok {
			t.Error("the running kubelet stays berth's")
		}
	}
}
