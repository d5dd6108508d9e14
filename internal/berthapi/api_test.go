package berthapi_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"google.golang.org/grpc"

	"github.com/berthrun/berth/internal/berthapi"
	"github.com/berthrun/berth/internal/cri"
	"github.com/berthrun/berth/internal/criclient"
	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/image"
)

type fakeImages struct {
	image.Store
	image.Catalog
	pull  func(ctx context.Context, ref string, auth image.Auth, progress func(image.Progress)) (string, error)
	load  func(ctx context.Context, archive io.Reader, name string, pin bool, progress func(image.Progress)) ([]image.Image, error)
	saved *image.Image
	write func(refs []string, to io.Writer) error
}

func (f *fakeImages) Export(_ context.Context, refs []string, to io.Writer) error {
	return f.write(refs, to)
}

func (f *fakeImages) Pull(ctx context.Context, ref string, auth image.Auth, progress func(image.Progress)) (string, error) {
	return f.pull(ctx, ref, auth, progress)
}

func (f *fakeImages) Get(context.Context, string) (*image.Image, error) { return f.saved, nil }

func (f *fakeImages) Import(ctx context.Context, archive io.Reader, name string, pin bool, progress func(image.Progress)) ([]image.Image, error) {
	return f.load(ctx, archive, name, pin, progress)
}

// connect serves register's services for the test's time and dials them.
func connect(t *testing.T, register func(grpc.ServiceRegistrar)) *criclient.Conn {
	t.Helper()
	return connectBy(t, nil, register)
}

// connectBy is connect with a listener that wrap creates from the socket's listener. wrap may be
// nil.
func connectBy(t *testing.T, wrap func(net.Listener) net.Listener, register func(grpc.ServiceRegistrar)) *criclient.Conn {
	t.Helper()
	server := cri.NewGRPCServer(slog.New(slog.DiscardHandler), nil, nil)
	register(server)
	path := filepath.Join(t.TempDir(), "s")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	if wrap != nil {
		l = wrap(l)
	}
	done := make(chan error, 1)
	go func() { done <- server.Serve(l) }()
	t.Cleanup(func() {
		server.Stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	conn, err := criclient.Dial(t.Context(), "unix://"+path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return conn
}

func TestListJobs(t *testing.T) {
	want := berthapi.Job{Key: "web_ns_u_0", Kind: "run sandbox", ID: "ab", Stage: "network", WaitsFor: "CNI ADD", StageAge: time.Second, Age: time.Minute, Waiters: 2}
	api := &berthapi.Server{Images: &fakeImages{}, Jobs: func() []berthapi.Job { return []berthapi.Job{want} }}
	jobs, err := connect(t, api.Register).Berth.ListJobs(t.Context())
	if err != nil || len(jobs) != 1 || jobs[0] != want {
		t.Errorf("got %v, %v", jobs, err)
	}
}

// TestListJobsOfAnyBytes: a job can wait for a path in an image that is not valid UTF-8.
func TestListJobsOfAnyBytes(t *testing.T) {
	api := &berthapi.Server{Images: &fakeImages{}, Jobs: func() []berthapi.Job { return []berthapi.Job{{ID: "ab", WaitsFor: "/data\xff"}} }}
	jobs, err := connect(t, api.Register).Berth.ListJobs(t.Context())
	if err != nil || len(jobs) != 1 || jobs[0].WaitsFor != "/data\uFFFD" {
		t.Errorf("got %v, %v", jobs, err)
	}
}

func TestListOwned(t *testing.T) {
	want := berthapi.Owned{Root: "/r", State: "/s", NetworkMode: "builtin", IDs: []string{"a", "b"}}
	api := &berthapi.Server{Images: &fakeImages{}, Jobs: func() []berthapi.Job { return nil }, Owned: func() (berthapi.Owned, error) { return want, nil }}
	owned, err := connect(t, api.Register).Berth.ListOwned(t.Context())
	if err != nil || !reflect.DeepEqual(*owned, want) {
		t.Errorf("%+v, %v", owned, err)
	}
	api.Owned = nil
	if _, err := connect(t, api.Register).Berth.ListOwned(t.Context()); !errors.Is(err, errs.Unsupported) {
		t.Errorf("a daemon without: %v, want kind Unsupported", err)
	}
}

func TestAnotherRuntimeHasNoSuchService(t *testing.T) {
	_, err := connect(t, func(grpc.ServiceRegistrar) {}).Berth.ListJobs(t.Context())
	if !errors.Is(err, errs.Unsupported) || !strings.Contains(err.Error(), "not berth") {
		t.Errorf("got %v", err)
	}
}

func TestPullTellsProgress(t *testing.T) {
	seen := make(chan struct{})
	images := &fakeImages{
		saved: &image.Image{ID: "sha256:1", Tags: []string{"a:1"}, Size: 9},
		pull: func(_ context.Context, ref string, auth image.Auth, progress func(image.Progress)) (string, error) {
			if ref != "a:1" || auth.Username != "u" || auth.Password != "p" {
				return "", fmt.Errorf("asked for %s as %v", ref, auth)
			}
			for i := range int64(1000) { // far more than any client reads
				progress(image.Progress{Stage: "fetching", Done: i, Total: 1000})
			}
			<-seen
			return "sha256:1", nil
		},
	}
	api := &berthapi.Server{Images: images, Jobs: func() []berthapi.Job { return nil }}
	img, err := connect(t, api.Register).Berth.PullImage(t.Context(),
		berthapi.PullRequest{Ref: "a:1", Auth: berthapi.Auth{Username: "u", Password: "p"}},
		func(p berthapi.Progress) {
			if p.Done == 999 { // the newest always arrives
				close(seen)
			}
		})
	if err != nil || img.ID != "sha256:1" || img.Size != 9 {
		t.Errorf("got %v, %v", img, err)
	}
}

func TestPullErrorsKeepTheirKind(t *testing.T) {
	images := &fakeImages{pull: func(context.Context, string, image.Auth, func(image.Progress)) (string, error) {
		return "", fmt.Errorf("cannot pull a:1: no such manifest: %w", errs.NotFound)
	}}
	api := &berthapi.Server{Images: images, Jobs: func() []berthapi.Job { return nil }}
	_, err := connect(t, api.Register).Berth.PullImage(t.Context(), berthapi.PullRequest{Ref: "a:1"}, nil)
	if !errors.Is(err, errs.NotFound) || err.Error() != "cannot pull a:1: no such manifest: not found" {
		t.Errorf("got %v", err)
	}
}

func TestImportSendsTheWholeArchive(t *testing.T) {
	archive := bytes.Repeat([]byte("layer"), 1<<20)
	images := &fakeImages{load: func(_ context.Context, r io.Reader, name string, pin bool, progress func(image.Progress)) ([]image.Image, error) {
		got, err := io.ReadAll(r)
		if err != nil {
			return nil, err
		}
		if !bytes.Equal(got, archive) || name != "x:1" || !pin {
			return nil, fmt.Errorf("got %d bytes, name %q, pin %v", len(got), name, pin)
		}
		progress(image.Progress{Stage: "done"})
		return []image.Image{{ID: "sha256:1"}, {ID: "sha256:2"}}, nil
	}}
	api := &berthapi.Server{Images: images, Jobs: func() []berthapi.Job { return nil }}
	got, err := connect(t, api.Register).Berth.ImportImage(t.Context(), berthapi.ImportRequest{Name: "x:1", Pin: true}, bytes.NewReader(archive), nil)
	if err != nil || len(got) != 2 {
		t.Errorf("got %v, %v", got, err)
	}
}

func TestImportErrorEndsTheSending(t *testing.T) {
	images := &fakeImages{load: func(_ context.Context, r io.Reader, _ string, _ bool, _ func(image.Progress)) ([]image.Image, error) {
		if _, err := io.ReadFull(r, make([]byte, 10)); err != nil {
			return nil, err
		}
		return nil, fmt.Errorf("cannot import: not an archive: %w", errs.Invalid)
	}}
	api := &berthapi.Server{Images: images, Jobs: func() []berthapi.Job { return nil }}
	_, err := connect(t, api.Register).Berth.ImportImage(t.Context(), berthapi.ImportRequest{}, endless{}, nil)
	if !errors.Is(err, errs.Invalid) || !strings.Contains(err.Error(), "not an archive") {
		t.Errorf("got %v", err)
	}
}

type endless struct{}

func (endless) Read(p []byte) (int, error) { return len(p), nil }

// If the archive ends early on the client's side, no image is created.
func TestBrokenArchiveIsNeverWhole(t *testing.T) {
	ended := make(chan error, 1)
	images := &fakeImages{load: func(_ context.Context, r io.Reader, _ string, _ bool, _ func(image.Progress)) ([]image.Image, error) {
		_, err := io.Copy(io.Discard, r)
		ended <- err
		return nil, err
	}}
	api := &berthapi.Server{Images: images, Jobs: func() []berthapi.Job { return nil }}
	broken := io.MultiReader(bytes.NewReader(make([]byte, 3<<20)), iotest.ErrReader(errors.New("disk on fire")))
	_, err := connect(t, api.Register).Berth.ImportImage(t.Context(), berthapi.ImportRequest{}, broken, nil)
	if err == nil || !strings.Contains(err.Error(), "disk on fire") {
		t.Errorf("the client got %v", err)
	}
	select {
	case err := <-ended:
		if err == nil {
			t.Error("the daemon saw a whole archive")
		}
	case <-time.After(20 * time.Second):
		t.Error("the daemon still reads")
	}
}

func TestExportSendsTheWholeArchive(t *testing.T) {
	archive := bytes.Repeat([]byte("layer"), 1<<20)
	images := &fakeImages{write: func(refs []string, to io.Writer) error {
		if len(refs) != 2 || refs[1] != "b:2" {
			return fmt.Errorf("asked for %q", refs)
		}
		for _, part := range [][]byte{archive[:7], archive[7:100], archive[100:]} {
			if _, err := to.Write(part); err != nil {
				return err
			}
		}
		return nil
	}}
	api := &berthapi.Server{Images: images, Jobs: func() []berthapi.Job { return nil }}
	var got bytes.Buffer
	err := connect(t, api.Register).Berth.ExportImage(t.Context(), berthapi.ExportRequest{Refs: []string{"a:1", "b:2"}}, &got)
	if err != nil || !bytes.Equal(got.Bytes(), archive) {
		t.Errorf("got %d of %d bytes, %v", got.Len(), len(archive), err)
	}
}

// If the archive ends early on either side, both sides report an error.
func TestExportThatBreaksOff(t *testing.T) {
	ended := make(chan error, 1)
	images := &fakeImages{write: func(refs []string, to io.Writer) error {
		if refs[0] == "none" {
			return fmt.Errorf("image: %w", errs.NotFound)
		}
		for {
			if _, err := to.Write(make([]byte, 1<<20)); err != nil {
				ended <- err
				return err
			}
		}
	}}
	api := &berthapi.Server{Images: images, Jobs: func() []berthapi.Job { return nil }}
	conn := connect(t, api.Register)
	if err := conn.Berth.ExportImage(t.Context(), berthapi.ExportRequest{Refs: []string{"none"}}, io.Discard); !errors.Is(err, errs.NotFound) {
		t.Errorf("got %v", err)
	}
	err := conn.Berth.ExportImage(t.Context(), berthapi.ExportRequest{Refs: []string{"a"}}, fullDisk{})
	if err == nil || !strings.Contains(err.Error(), "disk is full") {
		t.Errorf("got %v", err)
	}
	select {
	case <-ended:
	case <-time.After(20 * time.Second):
		t.Error("the daemon still writes")
	}
}

type fullDisk struct{}

func (fullDisk) Write([]byte) (int, error) { return 0, errors.New("the disk is full") }

type fakeCatalog struct{ tagged []string }

func (fakeCatalog) Layers(context.Context) ([]image.Layered, error) {
	return []image.Layered{{ID: "sha256:1", Tags: []string{"a:1"}, Layers: []image.Layer{{DiffID: "sha256:d", Digest: "sha256:b", MediaType: "tar", Size: 3}}}}, nil
}

func (f *fakeCatalog) Tag(_ context.Context, ref string, names []string) error {
	if ref == "absent" {
		return fmt.Errorf("image %q: %w", ref, errs.NotFound)
	}
	f.tagged = append(append(f.tagged, ref), names...)
	return nil
}

func TestLayersAndNames(t *testing.T) {
	catalog := &fakeCatalog{}
	api := &berthapi.Server{Images: &fakeImages{Catalog: catalog}, Jobs: func() []berthapi.Job { return nil }}
	conn := connect(t, api.Register)
	all, err := conn.Berth.ListLayers(t.Context())
	if want := "[{sha256:1 [a:1] [{sha256:d sha256:b tar 3}]}]"; err != nil || fmt.Sprint(all) != want {
		t.Errorf("%v, %v; want %s", all, err, want)
	}
	if err := conn.Berth.TagImage(t.Context(), berthapi.TagRequest{Image: "a:1", Names: []string{"b:1", "c:1"}}); err != nil || fmt.Sprint(catalog.tagged) != "[a:1 b:1 c:1]" {
		t.Errorf("%v, %v", catalog.tagged, err)
	}
	for want, req := range map[error]berthapi.TagRequest{errs.NotFound: {Image: "absent", Names: []string{"x"}}, errs.Invalid: {Image: "a:1"}} {
		if err := conn.Berth.TagImage(t.Context(), req); !errors.Is(err, want) {
			t.Errorf("%+v: %v, want %v", req, err, want)
		}
	}
}
