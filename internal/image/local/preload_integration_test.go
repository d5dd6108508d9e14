//go:build integration

package local

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/image"
	"github.com/berthrun/berth/internal/image/imagetest"
	"github.com/berthrun/berth/internal/image/preload"
	"github.com/berthrun/berth/internal/require"
	"github.com/berthrun/berth/internal/sys/sysmount"
	"github.com/berthrun/berth/internal/sys/sysns"
)

// makePreloadedDir creates a directory with two images. One has two names, and layers that hide
// files of lower ones.
func makePreloadedDir(t *testing.T) string {
	t.Helper()
	require.Root(t)
	dir := t.TempDir()
	specs := []imagetest.Spec{
		{Name: "hello:1", Layers: []imagetest.Layer{
			{{Path: "a", Content: []byte("low")}, {Path: "b", Content: []byte("low")}, {Path: "d/x"}},
			{{Path: "a", Content: []byte("high")}, imagetest.Whiteout("b"), imagetest.Opaque("d"), {Path: "d/y"}},
		}},
		{Name: "registry.example/other:2", Files: []imagetest.File{{Path: "f", Content: bytes.Repeat([]byte("f"), 1<<20)}}},
	}
	specs = append(specs, specs[0])
	specs[2].Name = "hello:also"
	var archives []string
	for i, spec := range specs {
		name := filepath.Join(dir, strings.Repeat("x", i+1)+".tar")
		if err := os.WriteFile(name, archiveOf(t, spec).Bytes(), 0o600); err != nil {
			t.Fatal(err)
		}
		archives = append(archives, name)
	}
	made := filepath.Join(dir, "made", "preloaded")
	list, err := MakePreloaded(context.Background(), made, archives, nil, helper, slog.New(slog.NewTextHandler(testWriter{t}, nil)))
	if err != nil || len(list) != 2 {
		t.Fatalf("%v, %v", list, err)
	}
	if entries, err := os.ReadDir(filepath.Dir(made)); err != nil || len(entries) != 1 {
		t.Errorf("beside what was made: %v, %v", entries, err)
	}
	if _, err := MakePreloaded(context.Background(), made, archives, nil, helper, nil); !errors.Is(err, errs.Exists) {
		t.Errorf("a second time: %v", err)
	}
	return made
}

// tagsOf returns the names of all images.
func tagsOf(t *testing.T, s *Images) []string {
	t.Helper()
	list, err := s.List(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	var tags []string
	for _, img := range list {
		if !img.Pinned {
			t.Errorf("%v is not pinned", img.Tags)
		}
		tags = append(tags, img.Tags...)
	}
	slices.Sort(tags)
	return tags
}

// wantHello checks the root filesystem of hello:1.
func wantHello(t *testing.T, s *Images, key string) {
	t.Helper()
	ctx := context.Background()
	img, err := s.Get(ctx, "hello:1")
	if err != nil {
		t.Fatal(err)
	}
	m, err := s.Prepare(ctx, image.RootfsSpec{Key: key, ImageID: img.ID})
	if err != nil {
		t.Fatal(err)
	}
	if data, err := os.ReadFile(filepath.Join(m.Path, "a")); err != nil || string(data) != "high" {
		t.Errorf("a: %q, %v", data, err)
	}
	for _, gone := range []string{"b", "d/x"} {
		if _, err := os.Lstat(filepath.Join(m.Path, gone)); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s is there: %v", gone, err)
		}
	}
	if err := os.WriteFile(filepath.Join(m.Path, "a"), []byte("written"), 0o600); err != nil {
		t.Error(err)
	}
}

// filesBelow counts regular files, and links.
func filesBelow(t *testing.T, dir string) (files, links int) {
	t.Helper()
	err := filepath.WalkDir(dir, func(_ string, entry os.DirEntry, err error) error {
		if entry.Type().IsRegular() {
			files++
		}
		if entry.Type()&os.ModeSymlink != 0 {
			links++
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return files, links
}

func TestPreloadedImagesAreUsedInPlace(t *testing.T) {
	ctx := context.Background()
	dir := makePreloadedDir(t)
	cfg := testConfig(t)
	cfg.PreloadedDirs = []string{filepath.Join(dir, "nothing"), dir}
	s := open(t, cfg)
	all := []string{"docker.io/library/hello:1", "docker.io/library/hello:also", "registry.example/other:2"}
	if tags := tagsOf(t, s); !slices.Equal(tags, all) {
		t.Errorf("images %q, want %q", tags, all)
	}
	wantHello(t, s, "c1")
	if files, links := filesBelow(t, s.db.ContentDir()); files != 0 || links != 7 {
		t.Errorf("%d blobs were copied, %d linked", files, links)
	}
	if _, links := filesBelow(t, s.db.LayersDir()); links != 3 {
		t.Errorf("%d layers are linked", links)
	}
	if usage, err := s.Usage(ctx); err != nil || usage.Images[0].Bytes > 64<<10 {
		t.Errorf("%+v, %v", usage, err)
	}
	var saved bytes.Buffer
	if err := s.Export(ctx, []string{"hello:1", "registry.example/other:2"}, &saved); err != nil {
		t.Fatal(err)
	}
	second := open(t, testConfig(t))
	if _, err := second.Import(ctx, &saved, "", true, nil); err != nil {
		t.Fatal(err)
	}
	wantHello(t, second, "c1")

	// A removed image stays removed, and running containers of it are not disturbed.
	if err := s.Remove(ctx, "hello:1"); err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	s = open(t, cfg)
	if tags := tagsOf(t, s); !slices.Equal(tags, all[2:]) {
		t.Errorf("after a start: %q", tags)
	}
	if data, err := os.ReadFile(filepath.Join(s.rootfs.MountsDir(), "c1", "a")); err != nil || string(data) != "written" {
		t.Errorf("%q, %v", data, err)
	}
	if err := errors.Join(s.Release(ctx, "c1"), s.Remove(ctx, "registry.example/other:2"), s.Close()); err != nil {
		t.Fatal(err)
	}
	if files, links := filesBelow(t, filepath.Join(dir, "layers")); files+links == 0 {
		t.Error("files of the directory went with the image")
	}
	if files, _ := filesBelow(t, filepath.Join(dir, "blobs")); files != 7 {
		t.Errorf("%d blobs of the directory are left", files)
	}

	// A directory that changes is scanned again.
	index := filepath.Join(dir, "index.json")
	data, err := os.ReadFile(index)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(index, append(data, '\n'), 0o600); err != nil {
		t.Fatal(err)
	}
	s = open(t, cfg)
	if tags := tagsOf(t, s); !slices.Equal(tags, all) {
		t.Errorf("after a change: %q", tags)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	// If a directory disappears, so do its images.
	if err := os.Rename(dir, dir+".away"); err != nil {
		t.Fatal(err)
	}
	s = open(t, cfg)
	if tags := tagsOf(t, s); len(tags) != 0 {
		t.Errorf("without the directory: %q", tags)
	}
	if _, err := s.Import(ctx, archiveOf(t, imagetest.Spec{Name: "hello:1", Files: []imagetest.File{{Path: "a", Content: []byte("high")}}}), "", true, nil); err != nil {
		t.Error(err)
	}
	wantHello(t, s, "c2")
}

// The store reports an invalid directory, and keeps the valid images before it.
func TestBadPreloadedDirectories(t *testing.T) {
	for name, harm := range map[string]func(dir string) error{
		"no index":  func(dir string) error { return os.WriteFile(filepath.Join(dir, "index.json"), []byte("{"), 0o600) },
		"no layout": func(dir string) error { return os.Remove(filepath.Join(dir, "oci-layout")) },
		"a layer is missing": func(dir string) error {
			layers, err := filepath.Glob(filepath.Join(dir, "layers", "*"))
			return errors.Join(err, os.RemoveAll(layers[0]), os.RemoveAll(layers[1]), os.RemoveAll(layers[2]))
		},
		"no blobs": func(dir string) error { return os.RemoveAll(filepath.Join(dir, "blobs")) },
		"a document that is another": func(dir string) error {
			blobs, err := filepath.Glob(filepath.Join(dir, "blobs/sha256/*"))
			for _, blob := range blobs {
				data, readErr := os.ReadFile(blob)
				if err = errors.Join(err, readErr); bytes.HasPrefix(data, []byte("{")) {
					err = errors.Join(err, os.Chmod(blob, 0o600), os.WriteFile(blob, append(data[:len(data)-1], ' '), 0o600))
				}
			}
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			dir := makePreloadedDir(t)
			if err := harm(dir); err != nil {
				t.Fatal(err)
			}
			var log bytes.Buffer
			cfg := testConfig(t)
			cfg.PreloadedDirs = []string{dir, makePreloadedDir(t)}
			cfg.Log = slog.New(slog.NewTextHandler(&log, nil))
			s := open(t, cfg)
			if text := log.String(); strings.Count(text, "level=ERROR") != 1 || !strings.Contains(text, dir) {
				t.Errorf("log: %s", text)
			}
			wantHello(t, s, "c1")
		})
	}
}

// If nothing can be mounted on the directory's layers, they are unpacked.
func TestPreloadedLayersThatCannotBeMounted(t *testing.T) {
	dir := makePreloadedDir(t)
	for range 2 { // the kernel refuses a third level of overlays
		over := t.TempDir()
		parts := map[string]string{}
		for _, name := range []string{"upper", "work", "merged"} {
			parts[name] = filepath.Join(over, name)
			if err := os.Mkdir(parts[name], 0o755); err != nil {
				t.Fatal(err)
			}
		}
		overlay := sysmount.Overlay{LowerRoot: filepath.Dir(dir), Lower: []string{filepath.Base(dir)}, Upper: parts["upper"], Work: parts["work"]}
		if err := sysmount.MountOverlay(overlay, parts["merged"]); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := syscall.Unmount(parts["merged"], syscall.MNT_DETACH); err != nil {
				t.Error(err)
			}
		})
		dir = parts["merged"]
	}
	cfg := testConfig(t)
	cfg.PreloadedDirs = []string{dir}
	s := open(t, cfg)
	wantHello(t, s, "c1")
	if _, links := filesBelow(t, s.db.LayersDir()); links != 0 {
		t.Errorf("%d layers are linked", links)
	}
	if files, _ := filesBelow(t, s.db.ContentDir()); files != 0 {
		t.Errorf("%d blobs were copied", files)
	}
}

// If a start is killed while it imports images, the next start continues.
func TestPartlyAdoptedPreloadedImages(t *testing.T) {
	dir := makePreloadedDir(t)
	cfg := testConfig(t)
	cfg.PreloadedDirs = []string{dir}
	s := open(t, cfg)
	if err := errors.Join(s.Remove(context.Background(), "hello:1"), s.Close(), preload.Forget(s.cfg.Root)); err != nil {
		t.Fatal(err)
	}
	blobs, err := filepath.Glob(filepath.Join(dir, "blobs/sha256/*"))
	if err != nil {
		t.Fatal(err)
	}
	for _, blob := range blobs { // links without a record
		link := filepath.Join(s.db.ContentDir(), "blobs/sha256", filepath.Base(blob))
		if err := os.Symlink(blob, link); err != nil && !errors.Is(err, os.ErrExist) {
			t.Fatal(err)
		}
	}
	s = open(t, cfg)
	wantHello(t, s, "c1")
	if tags := tagsOf(t, s); len(tags) != 3 {
		t.Errorf("%q", tags)
	}
}

func TestPreloadedLayersForAUserNamespace(t *testing.T) {
	dir := makePreloadedDir(t)
	cfg := testConfig(t)
	cfg.PreloadedDirs = []string{dir}
	if err := os.Chmod(filepath.Dir(filepath.Dir(cfg.State)), 0o711); err != nil {
		t.Fatal(err)
	}
	s := open(t, cfg)
	img, err := s.Get(context.Background(), "hello:1")
	if err != nil {
		t.Fatal(err)
	}
	ids := []syscall.SysProcIDMap{{ContainerID: 0, HostID: mappedRoot, Size: 65536}}
	ns := sysns.UserNamespace{UIDs: ids, GIDs: ids, Program: require.Binary(t, "sleep"), Args: []string{"1000"}}
	err = sysns.WithUserNamespace(ns, func(path string) error {
		if err := s.CanMap(path); err != nil {
			return err
		}
		m, err := s.Prepare(context.Background(), image.RootfsSpec{Key: "c", ImageID: img.ID, Map: &image.UserMap{UserNS: path, UID: mappedRoot, GID: mappedRoot}})
		if err != nil {
			return err
		}
		wantOwner(t, filepath.Join(m.Path, "a"), mappedRoot, 0o644)
		wantOwner(t, filepath.Join(m.Path, "d/y"), mappedRoot, 0o644)
		if mounts := mountsBelow(t, s.rootfs.MappedDir()); len(mounts) != 1 {
			t.Errorf("mounts: %q", mounts)
		}
		return s.Release(context.Background(), "c")
	})
	if err != nil {
		t.Fatal(err)
	}
	if left := mountsBelow(t, s.rootfs.MappedDir()); len(left) != 0 {
		t.Errorf("left: %q", left)
	}
}
