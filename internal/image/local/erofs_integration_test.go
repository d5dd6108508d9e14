//go:build integration

package local

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/image"
	"github.com/berthrun/berth/internal/image/imagetest"
	"github.com/berthrun/berth/internal/require"
	"github.com/berthrun/berth/internal/sys/sysns"
)

// erofsTest is a store, and an image in a registry, whose layers have each kind of file.
type erofsTest struct {
	*Images
	cfg  Config
	host string
	img  *imagetest.Image
}

func newErofs(t *testing.T) *erofsTest {
	t.Helper()
	require.EROFS(t)
	e := &erofsTest{cfg: testConfig(t)}
	e.cfg.Snapshotter = OverlaySnapshotter
	registry := &imagetest.Registry{}
	e.host = serve(t, registry)
	e.img = build(t, imagetest.Spec{Compression: "gzip", Layers: []imagetest.Layer{
		{
			{Path: ".", Dir: true, Mode: 0o751, Xattrs: map[string]string{"user.root": "low"}},
			{Path: "bin/tool", Content: []byte(strings.Repeat("tool", 9000)), Mode: 0o4755, UID: 7, GID: 7},
			{Path: "bin/again", Hardlink: "bin/tool"},
			{Path: "gone/file", Content: []byte("gone")},
			{Path: "opaque/below", Content: []byte("below")},
			{Path: "link", Symlink: "bin/tool"},
			{Path: "null", Device: 'c', Major: 1, Minor: 3, Mode: 0o666},
			{Path: "fifo", Device: 'p'},
			{Path: "empty", Dir: true, Mode: 0o1777},
		},
		{
			imagetest.Whiteout("gone"),
			{Path: "opaque/.wh..wh..opq"},
			{Path: "opaque/above", Content: []byte("above"), Xattrs: map[string]string{"user.a": "b"}},
			{Path: "bin/again", Content: []byte("alone now")},
		},
		{{Path: "large", Content: []byte(strings.Repeat("large ", 300_000))}},
	}})
	registry.Push("app", "1", e.img)
	e.Images = open(t, e.cfg)
	return e
}

func (e *erofsTest) pull(t *testing.T, snapshotter string) {
	t.Helper()
	id, err := e.PullFor(t.Context(), image.PullTarget{Snapshotter: snapshotter}, e.host+"/app:1", image.Auth{}, nil)
	if err != nil || id != e.img.ID() {
		t.Fatalf("pulled %s, %v", id, err)
	}
}

func (e *erofsTest) prepare(t *testing.T, spec image.RootfsSpec) string {
	t.Helper()
	spec.ImageID = e.img.ID()
	m, err := e.Prepare(t.Context(), spec)
	if err != nil {
		t.Fatal(err)
	}
	if want := spec.Snapshotter; want != "" && e.Snapshotter(spec.Key) != want {
		t.Errorf("%s is from %s", spec.Key, e.Snapshotter(spec.Key))
	}
	return m.Path
}

// again closes the store, and opens it.
func (e *erofsTest) again(t *testing.T) {
	t.Helper()
	e.Images = reopen(t, e.Images)
}

func (e *erofsTest) layerMounts(t *testing.T) []string {
	t.Helper()
	return mountsBelow(t, e.cfg.erofsPaths().State)
}

// awaitLayers returns when that many layers are on disk.
func (e *erofsTest) awaitLayers(t *testing.T, want int) {
	t.Helper()
	await(t, func() error {
		left, err := filepath.Glob(filepath.Join(e.cfg.erofsPaths().Root, "*", "*"))
		if err == nil && len(left) != want {
			err = fmt.Errorf("layers %v, want %d", left, want)
		}
		return err
	})
}

func await(t *testing.T, check func() error) {
	t.Helper()
	for end := time.Now().Add(5 * time.Second); ; time.Sleep(5 * time.Millisecond) {
		err := check()
		if err == nil {
			return
		}
		if time.Now().After(end) {
			t.Fatal(err)
		}
	}
}

func observe(t *testing.T, root string) map[string]imagetest.Node {
	t.Helper()
	tree, err := imagetest.Observe(root)
	if err != nil {
		t.Fatal(err)
	}
	return tree
}

const erofsName = image.ErofsSnapshotter

// A container sees of EROFS images what it sees of directories, also read-only.
func TestErofsShowsTheSameTree(t *testing.T) {
	e := newErofs(t)
	e.pull(t, erofsName)
	e.pull(t, "")
	plain := observe(t, e.prepare(t, image.RootfsSpec{Key: "plain"}))
	if e.Snapshotter("plain") != image.OverlaySnapshotter || len(plain) != 11 {
		t.Fatalf("files of %s: %q", e.Snapshotter("plain"), plain)
	}
	path := e.prepare(t, image.RootfsSpec{Key: "c1", Snapshotter: erofsName})
	if difference := imagetest.Difference(observe(t, path), plain); difference != "" {
		t.Error(difference)
	}
	readOnly := e.prepare(t, image.RootfsSpec{Key: "c2", Snapshotter: erofsName, ReadOnly: true})
	if difference := imagetest.Difference(observe(t, readOnly), plain); difference != "" {
		t.Errorf("read-only: %s", difference)
	}
	if err := os.WriteFile(filepath.Join(readOnly, "f"), nil, 0o600); !errors.Is(err, unix.EROFS) {
		t.Errorf("a file in a read-only root: %v", err)
	}
	if mounts := e.layerMounts(t); len(mounts) != len(e.img.Layers) {
		t.Errorf("two containers have the mounts %q", mounts)
	}
	// What is written is what is counted, and the image stays as it is.
	if err := errors.Join(os.WriteFile(filepath.Join(path, "large"), make([]byte, 100_000), 0o600), os.RemoveAll(filepath.Join(path, "opaque"))); err != nil {
		t.Fatal(err)
	}
	if usage, err := e.WritableUsage(t.Context(), "c1", nil); err != nil || usage.Bytes < 100_000 || usage.Bytes > 1_000_000 {
		t.Errorf("usage %+v, %v", usage, err)
	}
	third := e.prepare(t, image.RootfsSpec{Key: "c3", Snapshotter: erofsName})
	if difference := imagetest.Difference(observe(t, third), plain); difference != "" {
		t.Errorf("after writes of another one: %s", difference)
	}
}

// Nothing of containers and images is left mounted, or on disk, when they are gone. Layers outlive their image while a container
// has them.
func TestErofsLeavesNothing(t *testing.T) {
	ctx := t.Context()
	e := newErofs(t)
	e.pull(t, erofsName)
	if mounts := e.layerMounts(t); len(mounts) != 0 {
		t.Errorf("after a pull, mounted are %q", mounts)
	}
	path := e.prepare(t, image.RootfsSpec{Key: "c1", Snapshotter: erofsName})
	use, err := e.DiskUse(ctx)
	if err != nil || len(use.Images) != 1 || use.Images[0].Layers < 1_800_000 || use.Images[0].Own < use.Images[0].Layers {
		t.Errorf("the use of the disk: %+v, %v", use, err)
	}
	if usage, err := e.Usage(ctx); err != nil || usage.Images[0].Bytes < 1_800_000 {
		t.Errorf("usage %+v, %v", usage, err)
	}
	if report, err := e.Check(ctx, false, func(image.CheckUpdate) {}); err != nil || len(report.Damage) > 0 {
		t.Errorf("a check found %+v, %v", report, err)
	}
	if err := e.Remove(ctx, e.img.ID()); err != nil {
		t.Fatal(err)
	}
	e.again(t)
	if again := e.prepare(t, image.RootfsSpec{Key: "c1"}); again != path {
		t.Errorf("the root filesystem of the removed image is %s", again)
	}
	e.awaitLayers(t, len(e.img.Layers))
	if got, err := os.ReadFile(filepath.Join(path, "opaque/above")); err != nil || string(got) != "above" {
		t.Errorf("after the removal of the image: %q, %v", got, err)
	}
	if err := e.Release(ctx, "c1"); err != nil {
		t.Fatal(err)
	}
	e.awaitLayers(t, 0)
	if mounts := e.layerMounts(t); len(mounts) != 0 {
		t.Errorf("without layers, mounted are %q", mounts)
	}
}

// A start unmounts what nothing needs, removes what was half done, and mounts again what a reboot has unmounted.
func TestErofsAfterAKill(t *testing.T) {
	e := newErofs(t)
	e.pull(t, erofsName)
	path := e.prepare(t, image.RootfsSpec{Key: "c1", Snapshotter: erofsName})
	want := observe(t, path)
	paths := e.cfg.erofsPaths()
	images, err := filepath.Glob(filepath.Join(paths.LayersDir(), "*", "layer.erofs"))
	if err != nil || len(images) != 3 {
		t.Fatal(images, err)
	}
	if err := e.Close(); err != nil {
		t.Fatal(err)
	}
	left := filepath.Join(paths.State, "77") // of a layer that is not there any more
	half := filepath.Join(paths.Root, "new", "extract-sha256-1")
	if err := errors.Join(os.Mkdir(left, 0o700), unix.Mount(images[0], left, "erofs", unix.MS_RDONLY, ""), os.MkdirAll(filepath.Join(half, "files"), 0o700)); err != nil {
		t.Fatal(err)
	}
	e.Images = open(t, e.cfg)
	if mounts := e.layerMounts(t); len(mounts) != 3 || slices.Contains(mounts, left) {
		t.Errorf("mounted are %q", mounts)
	}
	e.awaitLayers(t, 3)
	// As after a reboot.
	if err := e.Close(); err != nil {
		t.Fatal(err)
	}
	for _, at := range append(e.layerMounts(t), path) {
		if err := unix.Unmount(at, unix.MNT_DETACH); err != nil {
			t.Fatal(err)
		}
	}
	e.Images = open(t, e.cfg)
	if mounts := e.layerMounts(t); len(mounts) != 0 {
		t.Errorf("without a request, mounted are %q", mounts)
	}
	if difference := imagetest.Difference(observe(t, e.prepare(t, image.RootfsSpec{Key: "c1", Snapshotter: erofsName})), want); difference != "" {
		t.Error(difference)
	}
}

// A layer whose file was changed is refused by name, and its image is pulled again.
func TestErofsChangedLayer(t *testing.T) {
	for name, change := range map[string]func(path string) error{
		"other bytes": func(path string) error {
			data, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			data[len(data)/2]++
			return os.WriteFile(path+"-", data, 0o600)
		},
		"shorter":    func(path string) error { return os.WriteFile(path+"-", []byte("short"), 0o600) },
		"not a file": func(path string) error { return os.Mkdir(path+"-", 0o700) },
	} {
		t.Run(name, func(t *testing.T) {
			ctx := t.Context()
			e := newErofs(t)
			e.pull(t, erofsName)
			images, err := filepath.Glob(filepath.Join(e.cfg.erofsPaths().LayersDir(), "*", "layer.erofs"))
			if err != nil || len(images) != 3 {
				t.Fatal(images, err)
			}
			// In place of the file, which fs-verity may protect.
			if err := errors.Join(change(images[0]), os.Remove(images[0]), os.Rename(images[0]+"-", images[0])); err != nil {
				t.Fatal(err)
			}
			_, err = e.Prepare(ctx, image.RootfsSpec{Key: "c1", ImageID: e.img.ID(), Snapshotter: erofsName})
			if !errors.Is(err, errs.Unavailable) || !strings.Contains(err.Error(), images[0]) || !strings.Contains(err.Error(), "pull the image again") {
				t.Errorf("a changed layer: %v", err)
			}
			if mounts := e.layerMounts(t); len(mounts) != 0 {
				t.Errorf("mounted are %q", mounts)
			}
			await(t, func() error {
				if _, err := e.Get(ctx, e.img.ID()); !errors.Is(err, errs.NotFound) {
					return fmt.Errorf("the image is there: %v", err) //nolint:errorlint // for people
				}
				return nil
			})
			e.pull(t, erofsName)
			e.prepare(t, image.RootfsSpec{Key: "c1", Snapshotter: erofsName})
		})
	}
}

// A check of the store finds what no container has read, and with --repair the image is pulled again.
func TestErofsCheck(t *testing.T) {
	ctx := t.Context()
	e := newErofs(t)
	e.pull(t, erofsName)
	images, err := filepath.Glob(filepath.Join(e.cfg.erofsPaths().LayersDir(), "*", "layer.erofs"))
	if err != nil || len(images) != 3 {
		t.Fatal(images, err)
	}
	st, err := os.Stat(images[1])
	if err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(images[1])
	if err != nil {
		t.Fatal(err)
	}
	data[5000]++
	if err := errors.Join(os.Remove(images[1]), os.WriteFile(images[1], data, 0o600), os.Chtimes(images[1], st.ModTime(), st.ModTime())); err != nil {
		t.Fatal(err)
	}
	for _, repair := range []bool{false, true} {
		report, err := e.Check(ctx, repair, func(image.CheckUpdate) {})
		if err != nil || len(report.Damage) != 1 || report.Damage[0].Repaired != repair || !strings.Contains(report.Damage[0].Problem, images[1]) || len(report.Damage[0].Images) != 1 {
			t.Fatalf("repair %v: %+v, %v", repair, report, err)
		}
	}
	await(t, func() error {
		if _, err := e.Get(ctx, e.img.ID()); !errors.Is(err, errs.NotFound) {
			return fmt.Errorf("the image is there: %v", err) //nolint:errorlint // for people
		}
		return nil
	})
	e.pull(t, erofsName)
	if report, err := e.Check(ctx, false, func(image.CheckUpdate) {}); err != nil || len(report.Damage) != 0 {
		t.Errorf("after a pull: %+v, %v", report, err)
	}
}

// A layer that is damaged while berth does not run is found at the start.
func TestErofsLayerIsLostMeanwhile(t *testing.T) {
	e := newErofs(t)
	e.pull(t, erofsName)
	if err := e.Close(); err != nil {
		t.Fatal(err)
	}
	records, err := filepath.Glob(filepath.Join(e.cfg.erofsPaths().LayersDir(), "*", "record"))
	if err != nil || len(records) != 3 {
		t.Fatal(records, err)
	}
	if err := os.Truncate(records[0], 5); err != nil {
		t.Fatal(err)
	}
	e.Images = open(t, e.cfg)
	await(t, func() error {
		if _, err := e.Get(t.Context(), e.img.ID()); !errors.Is(err, errs.NotFound) {
			return fmt.Errorf("the image is there: %v", err) //nolint:errorlint // for people
		}
		return nil
	})
	e.pull(t, erofsName)
	e.awaitLayers(t, 3)
}

// A copy of a store has other times, and the same content.
func TestErofsCopiedStore(t *testing.T) {
	e := newErofs(t)
	e.pull(t, erofsName)
	images, err := filepath.Glob(filepath.Join(e.cfg.erofsPaths().LayersDir(), "*", "layer.erofs"))
	if err != nil || len(images) != 3 {
		t.Fatal(images, err)
	}
	for _, path := range images {
		data, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(os.Remove(path), os.WriteFile(path, data, 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	e.prepare(t, image.RootfsSpec{Key: "c1", Snapshotter: erofsName})
}

// A pod with a user namespace has its layers with mapped ids.
func TestErofsInAUserNamespace(t *testing.T) {
	e := newErofs(t)
	if err := os.Chmod(filepath.Dir(filepath.Dir(e.cfg.State)), 0o711); err != nil {
		t.Fatal(err)
	}
	e.pull(t, erofsName)
	ids := []syscall.SysProcIDMap{{ContainerID: 0, HostID: mappedRoot, Size: 65536}}
	ns := sysns.UserNamespace{UIDs: ids, GIDs: ids, Program: require.Binary(t, "sleep"), Args: []string{"1000"}}
	err := sysns.WithUserNamespace(ns, func(path string) error {
		if err := e.CanMap(path); err != nil {
			return err
		}
		mapped := e.prepare(t, image.RootfsSpec{Key: "c1", Snapshotter: erofsName, Map: &image.UserMap{UserNS: path, UID: mappedRoot, GID: mappedRoot}})
		wantOwner(t, filepath.Join(mapped, "opaque/above"), mappedRoot, 0o644)
		wantOwner(t, filepath.Join(mapped, "bin/tool"), mappedRoot+7, 0o4755)
		if _, err := os.Lstat(filepath.Join(mapped, "gone")); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("a file that a layer removes: %v", err)
		}
		if mounts := mountsBelow(t, e.rootfs.MappedDir()); len(mounts) != 1 {
			t.Errorf("mounts: %q", mounts)
		}
		return e.Release(context.Background(), "c1")
	})
	if err != nil {
		t.Fatal(err)
	}
	if mounts := mountsBelow(t, e.rootfs.MappedDir()); len(mounts) != 0 {
		t.Errorf("left: %q", mounts)
	}
	if err := e.Close(); err != nil {
		t.Fatal(err)
	}
	if mounts := e.layerMounts(t); len(mounts) != 0 {
		t.Errorf("after berth's end, mounted are %q", mounts)
	}
}

// A pull for which the disk is too small does not fill it.
func TestErofsOnASmallDisk(t *testing.T) {
	require.EROFS(t)
	cfg := testConfig(t)
	cfg.Snapshotter = OverlaySnapshotter
	fill := onSmallDisk(t, &cfg, smallDisk)
	registry := &imagetest.Registry{}
	host := serve(t, registry)
	img := build(t, imagetest.Spec{Layers: []imagetest.Layer{{{Path: "small"}}, {{Path: "large", Content: make([]byte, 4<<20)}}}})
	registry.Push("app", "1", img)
	s := open(t, cfg)
	fill(3 << 20)
	_, err := s.PullFor(t.Context(), image.PullTarget{Snapshotter: erofsName}, host+"/app:1", image.Auth{}, nil)
	if !errors.Is(err, errs.Exhausted) {
		t.Errorf("an image that is larger than the disk: %v", err)
	}
	for _, layer := range img.Layers {
		if n := registry.Sent(layer.Digest); n > 0 {
			t.Errorf("%d bytes of a layer were fetched", n)
		}
	}
}

// A storage keeps what a container writes over the layers.
func TestErofsStorage(t *testing.T) {
	e := newErofs(t)
	e.pull(t, erofsName)
	storage := filepath.Join(t.TempDir(), "storage")
	path := e.prepare(t, image.RootfsSpec{Key: "c1", Snapshotter: erofsName, Storage: storage})
	if err := os.WriteFile(filepath.Join(path, "kept"), []byte("kept"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := e.Release(t.Context(), "c1"); err != nil {
		t.Fatal(err)
	}
	path = e.prepare(t, image.RootfsSpec{Key: "c2", Snapshotter: erofsName, Storage: storage})
	if got, err := os.ReadFile(filepath.Join(path, "kept")); err != nil || string(got) != "kept" {
		t.Errorf("%q, %v", got, err)
	}
}
