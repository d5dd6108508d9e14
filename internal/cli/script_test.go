package cli

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/berthrun/berth/internal/berthapi"
	"github.com/berthrun/berth/internal/cli/daemon/jobcalls"
	"github.com/berthrun/berth/internal/cli/daemon/pageserver"
	"github.com/berthrun/berth/internal/config"
	"github.com/berthrun/berth/internal/cri"
	"github.com/berthrun/berth/internal/cri/streaming"
	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/image"
	"github.com/berthrun/berth/internal/image/imagetest"
	"github.com/berthrun/berth/internal/metrics"
	"github.com/berthrun/berth/internal/pod/podtest"
	"github.com/berthrun/berth/internal/reload"
)

func TestMain(m *testing.M) {
	run := func() { os.Exit(Main(context.Background())) }
	names := map[string]func(){"berth": run, "kind-linux-amd64": run}
	for _, p := range programs() {
		names[p.name] = run
	}
	testscript.Main(m, names)
}

// TestScripts runs the client commands against the real rules and CRI server, on an
// engine, a network and an image store in memory. Each script has a daemon of its own.
func TestScripts(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txtar")
	if err != nil || len(files) == 0 {
		t.Fatalf("no scripts: %v", err)
	}
	// The caller may ignore the signal, as nohup does. The started processes would then ignore it,
	// too.
	hangup := make(chan os.Signal, 1)
	signal.Notify(hangup, syscall.SIGHUP)
	t.Cleanup(func() { signal.Stop(hangup) })
	for _, file := range files {
		t.Run(filepath.Base(file), func(t *testing.T) {
			t.Parallel()
			endpoint := serveFakes(t)
			testscript.Run(t, testscript.Params{
				Files: []string{file},
				Setup: func(env *testscript.Env) error {
					env.Setenv("BERTH_ENDPOINT", "unix://"+endpoint)
					env.Setenv("DIRS", "--volume-dir="+env.WorkDir+"/vols")
					env.Setenv("LOGS", "--log-dir="+env.WorkDir+"/logs")
					return nil
				},
			})
		})
	}
}

// importer is the fake store with an import that accepts any data.
type importer struct{ *podtest.Images }

func (i importer) Import(_ context.Context, archive io.Reader, _ string, pin bool, progress func(image.Progress)) ([]image.Image, error) {
	n, err := io.Copy(io.Discard, archive)
	if err != nil {
		return nil, err
	}
	progress(image.Progress{Stage: "unpacking", Done: n})
	img := i.Image
	img.Size, img.Pinned = n, pin
	return []image.Image{img}, nil
}

// Export writes a real archive if a name with a digest is asked for, as berth image bundle does.
func (i importer) Export(ctx context.Context, refs []string, to io.Writer) error {
	if !slices.ContainsFunc(refs, func(ref string) bool { return strings.Contains(ref, "@") }) {
		return i.Images.Export(ctx, refs, to)
	}
	var all []imagetest.Spec
	for _, ref := range refs {
		all = append(all, imagetest.Spec{Name: ref, Compression: "zstd", Files: []imagetest.File{
			{Path: "etc/os-release", Content: []byte("ID=debian\nVERSION_ID=\"12\"\n")},
			{Path: "var/lib/dpkg/status", Content: []byte("Package: libc6\nStatus: install ok installed\nArchitecture: amd64\nVersion: 2.36-9\n")},
		}})
	}
	return imagetest.OCIArchive(to, all...)
}

func (i importer) Layers(context.Context) ([]image.Layered, error) {
	return []image.Layered{{ID: i.Image.ID, Tags: i.Image.Tags, Layers: []image.Layer{{DiffID: "sha256:d1ff", Digest: "sha256:b10b", Size: 21}}}}, nil
}

func (i importer) Tag(ctx context.Context, ref string, _ []string) error {
	_, err := i.Get(ctx, ref)
	return err
}

func (i importer) Explain(_ context.Context, target image.PullTarget, ref string, auth image.Auth, try bool) (*image.Explanation, error) {
	if ref == "searched" {
		return &image.Explanation{
			Ref: "registry.test/searched:latest", ShortName: true, Candidates: []string{"registry.test/searched:latest", "docker.io/library/searched:latest"},
			Present:   "docker.io/library/searched:latest",
			Endpoints: []image.Endpoint{{URL: "https://registry.test/v2", Source: "default", Credentials: "none"}},
			Next:      []image.Explanation{{Ref: "docker.io/library/searched:latest", Endpoints: []image.Endpoint{{URL: "https://registry-1.docker.io/v2", Source: "default", Credentials: "none"}}}},
		}, nil
	}
	e := &image.Explanation{Platform: target.Platform, Ref: "registry.test/" + ref, ShortName: true, Candidates: []string{"registry.test/" + ref}, Endpoints: []image.Endpoint{
		{URL: "https://mirror.test/v2", Mirror: true, Source: "/etc/berth/certs.d/registry.test/hosts.toml:3", Credentials: "none", TLS: []string{"verified"}, Capabilities: []string{"pull"}},
		{URL: "https://registry.test/v2", Credentials: "those of user " + auth.Username, Skipped: "not asked"},
	}}
	if ref == "broken:1" {
		e.Fault = "hosts.toml:2: capabilities"
	}
	if ref == "fake:1" || ref == "refused:1" {
		e.Admission = &image.Admission{
			Policy: &image.PolicyDecision{File: "/etc/policy.json", Scope: "docker:registry.test", Requirements: []image.Requirement{
				{Type: "sigstoreSigned", Means: "signed", Keys: []string{"/etc/a.pub (Ed25519)", "/etc/b.pub (Ed25519)"}, Identity: "matchRepository: the repository registry.test/fake"},
			}},
			Verifiers: &image.Verifiers{Dir: "/etc/verifiers", Programs: []string{"first", "second"}},
		}
	}
	if try && (ref == "there:1" || ref == "refused:1") {
		e.Endpoints[0].Attempt = &image.Attempt{Took: 3 * time.Millisecond, Digest: "sha256:d1"}
	} else if try && ref != "broken:1" {
		e.Endpoints[0].Attempt = &image.Attempt{Took: 3 * time.Millisecond, Fault: "connection refused"}
	}
	if try && e.Admission != nil {
		e.Referrers = &image.Referrers{Of: "sha256:d1", List: []image.Referrer{{ArtifactType: "application/vnd.example.sbom", Digest: "sha256:5b0", Size: 12}}, LeftOut: 3}
		e.Admission.Trial = &image.AdmissionTrial{Digest: "sha256:d1", Fault: "because", Signatures: []image.SignatureTrial{{Place: "tag sha256-d1.sig", Fault: "not made with a trusted key"}, {Place: "other"}}}
	}
	return e, nil
}

func (i importer) DiskUse(context.Context) (*image.DiskUse, error) {
	return &image.DiskUse{
		Images: []image.ImageUse{{ID: i.Image.ID, Names: i.Image.Tags, Content: 5, Layers: 9, Own: 10, Shared: 4, Containers: []string{"c1", "c2"}}},
		Kept:   []image.LayerUse{{Chain: "sha256:c4a1", Bytes: 6, Containers: []string{"c3"}}}, Unfinished: 7, Total: 27,
	}, nil
}

// Check finds damage that a repair mends.
func (i importer) Check(_ context.Context, repair bool, seen func(image.CheckUpdate)) (*image.CheckReport, error) {
	seen(image.CheckUpdate{Progress: image.Progress{Stage: image.CheckReading, Done: 1, Total: 21}})
	d := image.Damage{Object: "layer", Digest: "sha256:d1ff", Problem: "bin/x: it has 1 bytes, want 2", Images: i.Image.Tags, Containers: []string{"c1"}, Repaired: repair}
	if repair {
		d.Repair = "unpacked again"
	} else {
		d.Advice = "run the check with --repair"
	}
	seen(image.CheckUpdate{Damage: &d})
	return &image.CheckReport{Blobs: 3, Layers: 1, Bytes: 21, Damage: []image.Damage{d}, Notes: []string{"a note"}}, nil
}

// serveFakes serves CRI and berth's own service for the test's time.
func serveFakes(t *testing.T) (socket string) {
	t.Helper()
	log := slog.New(slog.DiscardHandler)
	world := podtest.NewWorld(t, podtest.Fake())
	service := world.Daemon(nil)
	images := importer{world.Images.(*podtest.Images)}
	streams, err := streaming.Listen(t.Context(), streaming.Options{Runtime: service, Log: log})
	if err != nil {
		t.Fatal(err)
	}
	cfg := config.DefaultDaemon()
	cfg.Root, cfg.State, cfg.Default.Env = world.RootDir, world.StateDir, []string{"TOKEN=s3cr3t"}
	api, err := cri.New(cri.Options{
		Lifecycle: service, Sessions: service, View: service, Events: service, Node: service, Images: images, Streams: streams, Version: "1.2.3",
		Instance: map[string]string{"name": "ab12", "root": world.RootDir},
		Page:     func() any { return pageserver.State{} },
		Reload: func() any {
			return reload.State{At: time.Unix(0, 0), Refused: true, Error: "a.toml:1: key: no such key; token=https://joe:s3cr3t@host", NeedRestart: []string{"network.mtu", "root"}}
		},
		Config: func() any { return cfg },
	})
	if err != nil {
		t.Fatal(err)
	}
	server := cri.NewGRPCServer(log, nil, nil)
	api.Register(server)
	own := &berthapi.Server{
		Images: images, Jobs: jobcalls.List(service), Control: jobcalls.Control(service), Metrics: metrics.New("1.2.3", "abc").Text,
		Platform: func(handler string) (string, error) {
			if handler != "wasm" {
				return "", fmt.Errorf("unknown runtime handler %q: %w", handler, errs.Invalid)
			}
			return "wasi/wasm", nil
		},
	}
	own.Register(server)
	// The path of a unix socket must be short. The path of a test's directory may be too long.
	dir, err := os.MkdirTemp("", "berth-cli-")
	if err != nil {
		t.Fatal(err)
	}
	listener, err := net.Listen("unix", filepath.Join(dir, "s"))
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 2)
	go func() { served <- server.Serve(listener) }()
	go func() { served <- streams.Serve() }()
	t.Cleanup(func() {
		server.Stop()
		if err := streams.Close(); err != nil {
			t.Error(err)
		}
		for range 2 {
			if err := <-served; err != nil {
				t.Error(err)
			}
		}
		os.RemoveAll(dir)
	})
	return listener.Addr().String()
}
