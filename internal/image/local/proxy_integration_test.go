//go:build integration

package local

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	snapshotsapi "github.com/containerd/containerd/api/services/snapshots/v1"
	"github.com/containerd/containerd/v2/contrib/snapshotservice"
	"github.com/containerd/containerd/v2/core/mount"
	"github.com/containerd/containerd/v2/core/snapshots"
	"github.com/containerd/containerd/v2/plugins/snapshots/overlay"
	"github.com/containerd/errdefs"
	imagespec "github.com/opencontainers/image-spec/specs-go/v1"
	"google.golang.org/grpc"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/image"
	"github.com/berthrun/berth/internal/image/database"
	"github.com/berthrun/berth/internal/image/imagetest"
)

// lazySnapshotter is containerd's overlay snapshotter behind a socket, which provides some layers by itself, as remote
// snapshotters do: a Prepare with the labels of such a layer makes the snapshot of its target, and fails with AlreadyExists.
type lazySnapshotter struct {
	snapshots.Snapshotter
	socket string
	server *grpc.Server

	mu sync.Mutex
	// provides has the layers by the digests of their blobs, labels what it was told of each layer.
	provides map[string]imagetest.Layer
	labels   map[string]map[string]string
}

func startLazySnapshotter(t *testing.T) *lazySnapshotter {
	t.Helper()
	dir, err := os.MkdirTemp("", "berth-proxy-") // a socket's path is short
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	inner, err := overlay.NewSnapshotter(filepath.Join(dir, "root"), overlay.AsynchronousRemove)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { inner.Close() })
	l := &lazySnapshotter{
		Snapshotter: inner, socket: filepath.Join(dir, "s.sock"), provides: map[string]imagetest.Layer{}, labels: map[string]map[string]string{},
	}
	l.serve(t)
	t.Cleanup(l.stop)
	return l
}

func (l *lazySnapshotter) serve(t *testing.T) {
	t.Helper()
	listener, err := net.Listen("unix", l.socket)
	if err != nil {
		t.Fatal(err)
	}
	l.server = grpc.NewServer()
	snapshotsapi.RegisterSnapshotsServer(l.server, snapshotservice.FromSnapshotter(l))
	go func(server *grpc.Server) { _ = server.Serve(listener) }(l.server)
}

func (l *lazySnapshotter) stop() { l.server.Stop() }

// Prepare implements snapshots.Snapshotter.
func (l *lazySnapshotter) Prepare(ctx context.Context, key, parent string, opts ...snapshots.Opt) ([]mount.Mount, error) {
	var info snapshots.Info
	for _, opt := range opts {
		if err := opt(&info); err != nil {
			return nil, err
		}
	}
	blob := info.Labels["containerd.io/snapshot/cri.layer-digest"]
	l.mu.Lock()
	layer, lazy := l.provides[blob]
	if blob != "" {
		l.labels[blob] = info.Labels
	}
	l.mu.Unlock()
	mounts, err := l.Snapshotter.Prepare(ctx, key, parent, opts...)
	if err != nil || !lazy {
		return mounts, err
	}
	upper := mounts[0].Source
	for _, option := range mounts[0].Options {
		if dir, ok := strings.CutPrefix(option, "upperdir="); ok {
			upper = dir
		}
	}
	for _, file := range layer {
		if err := os.WriteFile(filepath.Join(upper, file.Path), file.Content, 0o644); err != nil {
			return nil, err
		}
	}
	target := info.Labels[snapshots.LabelSnapshotRef]
	if err := l.Commit(ctx, target, key, opts...); err != nil {
		return nil, err
	}
	return nil, fmt.Errorf("target snapshot %q: %w", target, errdefs.ErrAlreadyExists)
}

// Cleanup implements snapshots.Cleaner.
func (l *lazySnapshotter) Cleanup(ctx context.Context) error {
	return l.Snapshotter.(snapshots.Cleaner).Cleanup(ctx) //nolint:forcetypeassert // the overlay snapshotter is one
}

// names lists the snapshots.
func (l *lazySnapshotter) names(t *testing.T) []string {
	t.Helper()
	var names []string
	err := l.Walk(t.Context(), func(_ context.Context, info snapshots.Info) error {
		names = append(names, info.Name)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return names
}

// awaitNames returns when the names that contain part are want.
func (l *lazySnapshotter) awaitNames(t *testing.T, part string, want int) {
	t.Helper()
	var names []string
	for end := time.Now().Add(5 * time.Second); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		names = slices.DeleteFunc(l.names(t), func(name string) bool { return !strings.Contains(name, part) })
		if len(names) == want {
			return
		}
	}
	t.Errorf("snapshots %q, want %d", names, want)
}

// proxied is a store with a snapshotter that provides the lowest and the topmost layer of an image of three layers.
type proxied struct {
	*lazySnapshotter
	cfg      Config
	registry *imagetest.Registry
	host     string
	spec     imagetest.Spec
	img      *imagetest.Image
}

func newProxied(t *testing.T) *proxied {
	t.Helper()
	p := &proxied{cfg: testConfig(t), lazySnapshotter: startLazySnapshotter(t), registry: &imagetest.Registry{}}
	p.host = serve(t, p.registry)
	p.cfg.Snapshotters = map[string]string{"lazy": p.socket}
	layers := []imagetest.Layer{
		{{Path: "low", Content: []byte("low")}, {Path: "gone", Content: []byte("low")}},
		{imagetest.Whiteout("gone"), {Path: "middle", Content: []byte("middle")}},
		{{Path: "high", Content: []byte("high")}},
	}
	p.spec = imagetest.Spec{Layers: layers}
	p.img = build(t, p.spec)
	p.registry.Push("app", "1", p.img)
	for _, i := range []int{0, 2} {
		p.provides[p.img.Layers[i].Digest.String()] = layers[i]
	}
	return p
}

func (p *proxied) pull(t *testing.T, s *Images) {
	t.Helper()
	id, err := s.PullFor(t.Context(), image.PullTarget{Snapshotter: "lazy"}, p.host+"/app:1", image.Auth{}, nil)
	if err != nil || id != p.img.ID() {
		t.Fatalf("pulled %s, %v", id, err)
	}
}

// fetched lists the layers whose blobs the registry has sent.
func (p *proxied) fetched() (layers []int) {
	for i, layer := range p.img.Layers {
		if p.registry.Sent(layer.Digest) > 0 {
			layers = append(layers, i)
		}
	}
	return layers
}

func TestPullIntoASnapshotter(t *testing.T) {
	ctx := t.Context()
	p := newProxied(t)
	s := open(t, p.cfg)
	p.pull(t, s)
	if got := p.fetched(); !slices.Equal(got, []int{1}) {
		t.Errorf("layers %v were fetched, want the one that the snapshotter does not provide", got)
	}
	digests := func(from int) string {
		var all []string
		for _, layer := range p.img.Layers[from:] {
			all = append(all, layer.Digest.String())
		}
		return strings.Join(all, ",")
	}
	for i, layer := range p.img.Layers {
		got := maps.Clone(p.labels[layer.Digest.String()])
		delete(got, snapshots.LabelSnapshotRef)
		want := map[string]string{
			"containerd.io/snapshot/cri.image-ref": p.host + "/app:1", "containerd.io/snapshot/cri.manifest-digest": p.img.Manifest.Digest.String(),
			"containerd.io/snapshot/cri.layer-digest": layer.Digest.String(), "containerd.io/snapshot/cri.image-layers": digests(i),
		}
		if !maps.Equal(got, want) {
			t.Errorf("layer %d was prepared with the labels %v, want %v", i, got, want)
		}
	}
	img, err := s.Get(ctx, p.img.ID())
	if err != nil || !img.Lazy || !slices.Equal(img.Snapshotters, []string{"lazy"}) {
		t.Errorf("image %+v, %v", img, err)
	}
	m, err := s.Prepare(ctx, image.RootfsSpec{Key: "c1", ImageID: img.ID, Snapshotter: "lazy"})
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{"low": "low", "middle": "middle", "high": "high"} {
		if got, err := os.ReadFile(filepath.Join(m.Path, name)); err != nil || string(got) != want {
			t.Errorf("%s is %q, %v", name, got, err)
		}
	}
	if _, err := os.Lstat(filepath.Join(m.Path, "gone")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a file that a layer removes: %v", err)
	}
	if err := os.WriteFile(filepath.Join(m.Path, "written"), make([]byte, 100_000), 0o644); err != nil {
		t.Fatal(err)
	}
	if usage, err := s.WritableUsage(ctx, "c1", nil); err != nil || usage.Bytes < 100_000 {
		t.Errorf("usage %+v, %v", usage, err)
	}
	if name := s.Snapshotter("c1"); name != "lazy" {
		t.Errorf("snapshotter %q", name)
	}
	for _, spec := range []image.RootfsSpec{{Map: &image.UserMap{}}, {Limit: 1 << 20}} {
		spec.Key, spec.ImageID = "c2", img.ID
		if _, err := s.Prepare(ctx, spec); !errors.Is(err, errs.Unsupported) {
			t.Errorf("%+v: %v", spec, err)
		}
	}
	if err := s.Export(ctx, []string{img.ID}, io.Discard); !errors.Is(err, errs.Unsupported) || !strings.Contains(err.Error(), "run 'berth image pull") {
		t.Errorf("an export: %v", err)
	}
	report, err := s.Check(ctx, false, func(image.CheckUpdate) {})
	if err != nil || len(report.Damage) > 0 {
		t.Errorf("a check found %+v, %v", report, err)
	}
	if use, err := s.DiskUse(ctx); err != nil || len(use.Images) != 1 || !slices.Equal(use.Images[0].Containers, []string{"c1"}) || len(use.Kept) > 0 {
		t.Errorf("the use of the disk: %+v, %v", use, err)
	}
	// The container keeps its files when the image goes.
	if err := s.Remove(ctx, img.ID); err != nil {
		t.Fatal(err)
	}
	s.proxies.Wake()
	if got, err := os.ReadFile(filepath.Join(m.Path, "low")); err != nil || string(got) != "low" {
		t.Errorf("after the removal of the image: %q, %v", got, err)
	}
	if err := s.Release(ctx, "c1"); err != nil {
		t.Fatal(err)
	}
	p.awaitNames(t, "berth-", 0)
	files := filepath.Join(filepath.Dir(p.socket), "root", "snapshots")
	for end := time.Now().Add(5 * time.Second); ; time.Sleep(5 * time.Millisecond) {
		if left, err := os.ReadDir(files); err == nil && len(left) == 0 {
			break
		} else if time.Now().After(end) {
			t.Fatalf("files of removed snapshots are left: %v, %v", left, err)
		}
	}
}

// A store that is opened again finds its images and root filesystems, and removes what was left. A default pull unpacks
// the image, too.
func TestSnapshotterAfterARestart(t *testing.T) {
	ctx := t.Context()
	p := newProxied(t)
	first, err := Open(ctx, p.cfg)
	if err != nil {
		t.Fatal(err)
	}
	prefix := "" // of the snapshots of this store
	p.pull(t, first)
	m, err := first.Prepare(ctx, image.RootfsSpec{Key: "c1", ImageID: p.img.ID()}) // nothing else has the layers
	if err != nil {
		t.Fatal(err)
	}
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	for _, name := range p.names(t) {
		if before, _, ok := strings.Cut(name, "rootfs/"); ok {
			prefix = before
		}
	}
	// What a pull that was killed has left, a release, and another user of the snapshotter.
	for _, key := range []string{prefix + "extract/" + p.img.DiffIDs[0].String(), prefix + "rootfs/none", "other/1/sha256:x"} {
		if _, err := p.Snapshotter.Prepare(ctx, key, ""); err != nil {
			t.Fatal(err)
		}
	}
	s := open(t, p.cfg)
	p.awaitNames(t, "berth-", 4) // three layers and a container
	p.awaitNames(t, "other/", 1)
	if again, err := s.Prepare(ctx, image.RootfsSpec{Key: "c1", ImageID: p.img.ID(), Snapshotter: "lazy"}); err != nil || again.Path != m.Path {
		t.Errorf("the same root filesystem: %+v, %v", again, err)
	}
	if _, err := s.Pull(ctx, p.host+"/app:1", image.Auth{}, nil); err != nil {
		t.Fatal(err)
	}
	if img, err := s.Get(ctx, p.img.ID()); err != nil || img.Lazy || len(img.Snapshotters) != 1 {
		t.Errorf("unpacked, too: %+v, %v", img, err)
	}
	plain := image.OverlaySnapshotter
	if s.copies {
		plain = image.NativeSnapshotter
	}
	for key, want := range map[string]string{"plain": plain, "lazy": "lazy"} {
		if _, err := s.Prepare(ctx, image.RootfsSpec{Key: key, ImageID: p.img.ID(), Snapshotter: key}); err != nil || s.Snapshotter(key) != want {
			t.Errorf("a root filesystem for %s is from %s, %v", key, s.Snapshotter(key), err)
		}
	}
}

// An image whose layers a snapshotter has lost is gone, so that it is pulled again.
func TestSnapshotterLosesALayer(t *testing.T) {
	ctx := t.Context()
	p := newProxied(t)
	s := open(t, p.cfg)
	p.pull(t, s)
	for left := p.names(t); len(left) > 0; left = p.names(t) {
		for _, name := range left {
			_ = p.Snapshotter.Remove(ctx, name) // those with others above fail
		}
	}
	_, err := s.Prepare(ctx, image.RootfsSpec{Key: "c1", ImageID: p.img.ID(), Snapshotter: "lazy"})
	if !errors.Is(err, errs.Unavailable) || !strings.Contains(err.Error(), "pull the image again") {
		t.Errorf("without its layers: %v", err)
	}
	for end := time.Now().Add(5 * time.Second); err != nil && !errors.Is(err, errs.NotFound); time.Sleep(5 * time.Millisecond) {
		if _, err = s.Get(ctx, p.img.ID()); time.Now().After(end) {
			t.Fatal("the image is still there")
		}
		if err == nil {
			err = errs.Unavailable
		}
	}
	p.pull(t, s)
	if _, err := s.Prepare(ctx, image.RootfsSpec{Key: "c1", ImageID: p.img.ID(), Snapshotter: "lazy"}); err != nil {
		t.Error(err)
	}
}

// A snapshotter that is away fails what needs it, and nothing else.
func TestSnapshotterIsAway(t *testing.T) {
	ctx := t.Context()
	p := newProxied(t)
	s := open(t, p.cfg)
	p.pull(t, s)
	if _, err := s.Prepare(ctx, image.RootfsSpec{Key: "c1", ImageID: p.img.ID(), Snapshotter: "lazy"}); err != nil {
		t.Fatal(err)
	}
	p.stop()
	_, err := s.PullFor(ctx, image.PullTarget{Snapshotter: "lazy"}, p.host+"/app:1", image.Auth{}, nil)
	var away *image.AwayError
	if !errors.As(err, &away) || !errors.Is(err, errs.Unavailable) || !strings.Contains(err.Error(), p.socket) {
		t.Errorf("a pull: %v", err)
	}
	if _, err := s.PullFor(ctx, image.PullTarget{Snapshotter: "other"}, p.host+"/app:1", image.Auth{}, nil); !errors.As(err, &away) || !strings.Contains(err.Error(), `"other" is not in image.snapshotters`) {
		t.Errorf("a snapshotter that does not exist: %v", err)
	}
	if _, err := s.Prepare(ctx, image.RootfsSpec{Key: "c2", ImageID: p.img.ID(), Snapshotter: "lazy"}); !errors.Is(err, errs.Unavailable) {
		t.Errorf("a root filesystem: %v", err)
	}
	if err := s.Release(ctx, "c1"); err != nil {
		t.Errorf("a release: %v", err)
	}
	p.serve(t)
	stop := make(chan struct{})
	defer close(stop)
	go func() { // else it tries again in a minute
		for {
			select {
			case <-stop:
				return
			case <-time.After(50 * time.Millisecond):
				s.proxies.Wake()
			}
		}
	}()
	p.awaitNames(t, "/rootfs/", 0)
}

// pushEvil pushes an image with the config, and so the id, of another one, but other layers, which the snapshotter provides.
func (p *proxied) pushEvil(t *testing.T, of *imagetest.Image) {
	t.Helper()
	var blobs []imagetest.Blob
	for _, layer := range []imagetest.Layer{{{Path: "low", Content: []byte("evil")}}, {{Path: "middle"}}, {{Path: "high"}}} {
		data, err := imagetest.Tar(layer)
		if err != nil {
			t.Fatal(err)
		}
		blobs = append(blobs, imagetest.NewBlob(imagespec.MediaTypeImageLayer, data))
		p.provides[blobs[len(blobs)-1].Digest.String()] = layer
	}
	evil, err := of.WithLayers(blobs...)
	if err != nil {
		t.Fatal(err)
	}
	p.registry.Push("evil", "1", evil)
}

// Whoever may pull an image with the config of another one does not choose the files of that one.
func TestOneConfigWithOtherLayers(t *testing.T) {
	for name, before := range map[string]func(t *testing.T, p *proxied, s *Images){
		"pulled before": func(t *testing.T, p *proxied, s *Images) {
			if id, err := p.pullEvil(t, s); err != nil || id != p.img.ID() {
				t.Fatalf("pulled %s, %v", id, err)
			}
			if low := p.lowIn(t, s, "evil"); low != "evil" {
				t.Errorf("its own container has %q", low)
			}
			p.pull(t, s)
			if img, err := s.Get(t.Context(), p.img.ID()); err != nil || img.Lazy || len(img.Snapshotters) > 0 {
				t.Errorf("an image of two kinds of layers: %+v, %v", img, err)
			}
		},
		"pulled after": func(t *testing.T, p *proxied, s *Images) { p.pull(t, s) },
		"pulled after an image that is unpacked": func(t *testing.T, p *proxied, s *Images) {
			if _, err := s.Pull(t.Context(), p.host+"/app:1", image.Auth{}, nil); err != nil {
				t.Fatal(err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			p := newProxied(t)
			p.pushEvil(t, p.img)
			s := open(t, p.cfg)
			before(t, p, s)
			// Where the node has the layers of the config, it takes these; else it finds that the others do not match it.
			if _, err := p.pullEvil(t, s); err != nil && !errors.Is(err, errs.Invalid) {
				t.Error(err)
			}
			if low := p.lowIn(t, s, "c1"); low != "low" {
				t.Errorf("the container has %q of another image", low)
			}
		})
	}
}

func (p *proxied) pullEvil(t *testing.T, s *Images) (string, error) {
	t.Helper()
	return s.PullFor(t.Context(), image.PullTarget{Snapshotter: "lazy"}, p.host+"/evil:1", image.Auth{}, nil)
}

// lowIn reads the file low in a new root filesystem.
func (p *proxied) lowIn(t *testing.T, s *Images, key string) string {
	t.Helper()
	m, err := s.Prepare(t.Context(), image.RootfsSpec{Key: key, ImageID: p.img.ID(), Snapshotter: "lazy"})
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(filepath.Join(m.Path, "low"))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// An image that is only in a snapshotter does not get the layers that the node has unpacked for an image with the same chain:
// its config names them, and nothing has shown that it has them.
func TestChainOfAnotherImage(t *testing.T) {
	ctx := t.Context()
	p := newProxied(t)
	p.spec.Cmd = []string{"/evil"}
	evil := build(t, p.spec)
	p.pushEvil(t, evil)
	first, err := Open(ctx, p.cfg)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := first.Pull(ctx, p.host+"/app:1", image.Auth{}, nil); err != nil {
		t.Fatal(err)
	}
	if _, err := p.pullEvil(t, first); err != nil {
		t.Fatal(err)
	}
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	s := open(t, p.cfg)
	m, err := s.Prepare(ctx, image.RootfsSpec{Key: "c1", ImageID: evil.ID()})
	if err != nil {
		t.Fatal(err)
	}
	if low, err := os.ReadFile(filepath.Join(m.Path, "low")); err != nil || string(low) != "evil" {
		t.Errorf("a container of an image that was never unpacked reads %q, %v", low, err)
	}
}

// What is lost of an image that was unpacked, and is in a snapshotter, too, is unpacked again at the start.
func TestUnpackedImageInASnapshotterIsRepaired(t *testing.T) {
	ctx := t.Context()
	p := newProxied(t)
	first, err := Open(ctx, p.cfg)
	if err != nil {
		t.Fatal(err)
	}
	p.pull(t, first)
	if _, err := first.Pull(ctx, p.host+"/app:1", image.Auth{}, nil); err != nil {
		t.Fatal(err)
	}
	if err := first.db.RemoveSnapshot(database.WithNamespace(ctx), p.img.DiffIDs[0].String()); err != nil { // and those above
		t.Fatal(err)
	}
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	s := open(t, p.cfg)
	if img, err := s.Get(ctx, p.img.ID()); err != nil || img.Lazy || !slices.Equal(img.Snapshotters, []string{"lazy"}) {
		t.Errorf("after the start: %+v, %v", img, err)
	}
	if low := p.lowIn(t, s, "c1"); low != "low" {
		t.Errorf("low is %q", low)
	}
}

// When a snapshotter leaves the configuration, its images are pulled again, and the log says with whose credentials.
func TestSnapshotterLeavesTheConfiguration(t *testing.T) {
	ctx := t.Context()
	p := newProxied(t)
	first, err := Open(ctx, p.cfg)
	if err != nil {
		t.Fatal(err)
	}
	p.pull(t, first)
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	var log bytes.Buffer
	p.cfg.Snapshotters, p.cfg.Log = nil, slog.New(slog.NewTextHandler(&log, nil))
	s, err := Open(ctx, p.cfg)
	if err != nil {
		t.Fatal(err)
	}
	var img *image.Image
	for end := time.Now().Add(5 * time.Second); img == nil && time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		img, err = s.Get(ctx, p.host+"/app:1")
	}
	if img == nil || img.Lazy || len(img.Snapshotters) > 0 {
		t.Errorf("pulled again: %+v, %v", img, err)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	if text := log.String(); !strings.Contains(text, "not in image.snapshotters any more") || !strings.Contains(text, "snapshotters=[lazy]") {
		t.Errorf("the log has no reason: %s", text)
	}
}
