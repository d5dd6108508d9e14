//go:build integration

package local

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/image"
	"github.com/berthrun/berth/internal/image/database"
	"github.com/berthrun/berth/internal/image/imagetest"
	"github.com/berthrun/berth/internal/sys/sysfile"
	"github.com/berthrun/berth/internal/sys/sysmount"
)

// TestOverCopies: what holds of root filesystems that are overlays holds of copies.
func TestOverCopies(t *testing.T) {
	t.Setenv("BERTH_SNAPSHOTTER", string(NativeSnapshotter))
	for name, test := range map[string]func(t *testing.T){
		"a life":                           TestImportPrepareReleaseRemove,
		"a restart":                        TestRootfsSurvivesRestartAndRemovalOfItsImage,
		"of a user namespace":              TestMappedRootfsBelongsToItsUserNamespace,
		"of a user namespace after a kill": TestMappedRootfsIsCreatedAfterAKill,
		"read-only":                        TestReadOnlyRootfsRefusesWrites,
		"volumes":                          TestVolumeIsACopyOfTheImage,
		"volumes of a user namespace":      TestVolumeOfAUserNamespace,
		"storage":                          TestStorageIsKept,
		"storage that is refused":          TestStorageRefused,
	} {
		t.Run(name, test)
	}
}

// deletions is an image whose layers delete, replace and hide what is below, and one of them names a file without the
// directory in which it is.
func deletions(t *testing.T) *bytes.Buffer {
	t.Helper()
	return archiveOf(t, imagetest.Spec{Name: "deletions:1", Layers: []imagetest.Layer{
		{{Path: "gone", Content: []byte("1")}, {Path: "kept", Content: []byte("1")}, {Path: "odd", Dir: true, Mode: 0o1711, UID: 7, GID: 8}, {Path: "odd/low"}, {Path: "opaque/low"}, {Path: "again/low"}},
		{imagetest.Whiteout("gone"), imagetest.Opaque("opaque"), {Path: "opaque/high"}, imagetest.Whiteout("again")},
		{{Path: "again/high"}, {Path: "odd/high", Raw: true}},
	}})
}

// wantDeletions compares a root filesystem with what the image of deletions shows.
func wantDeletions(t *testing.T, root string) {
	t.Helper()
	for name, want := range map[string]bool{
		"kept": true, "odd/low": true, "odd/high": true, "opaque/high": true, "again/high": true,
		"gone": false, "opaque/low": false, "again/low": false, ".wh.gone": false, "opaque/.wh..wh..opq": false,
	} {
		if _, err := os.Lstat(filepath.Join(root, name)); want != (err == nil) {
			t.Errorf("%s: %v", name, err)
		}
	}
	var st unix.Stat_t
	if err := unix.Lstat(filepath.Join(root, "odd"), &st); err != nil || st.Mode&0o7777 != 0o1711 || st.Uid != 7 || st.Gid != 8 {
		t.Errorf("odd has mode %o and the owner %d:%d, %v", st.Mode, st.Uid, st.Gid, err)
	}
}

// onOverlay moves the root of a store to an overlay.
func onOverlay(t *testing.T, cfg *Config) {
	t.Helper()
	dir := t.TempDir()
	overlay := sysmount.Overlay{LowerRoot: dir, Lower: []string{"lower"}, Upper: filepath.Join(dir, "upper"), Work: filepath.Join(dir, "work")}
	cfg.Root = filepath.Join(dir, "root")
	for _, name := range []string{"lower", "upper", "work", "root"} {
		if err := os.Mkdir(filepath.Join(dir, name), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	if err := sysmount.MountOverlay(overlay, cfg.Root); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := sysmount.Detach(cfg.Root); err != nil {
			t.Error(err)
		}
	})
}

// TestStoreOnAnOverlay: where no overlay can be, the store copies, says so once, and all else is as on a disk.
func TestStoreOnAnOverlay(t *testing.T) {
	ctx := t.Context()
	cfg := testConfig(t)
	onOverlay(t, &cfg)
	var said bytes.Buffer
	cfg.Log = slog.New(slog.NewTextHandler(&said, nil))
	s := open(t, cfg)
	if w := s.Warnings(); len(w) != 1 || !strings.Contains(w[0], cfg.Root+" cannot hold overlays: ") {
		t.Errorf("warnings: %q", w)
	}
	if n := strings.Count(said.String(), "because the image store cannot hold overlays"); n != 1 {
		t.Errorf("it is logged %d times", n)
	}
	list, err := s.Import(ctx, deletions(t), "", true, nil)
	if err != nil {
		t.Fatal(err)
	}
	m, err := s.Prepare(ctx, image.RootfsSpec{Key: "c", ImageID: list[0].ID})
	if err != nil {
		t.Fatal(err)
	}
	wantDeletions(t, m.Path)
	if name := s.Snapshotter("c"); name != "native" {
		t.Errorf("the snapshotter is %s", name)
	}
	if used, err := s.WritableUsage(ctx, "c", nil); err != nil || used.Bytes != 0 || used.Inodes != 0 {
		t.Errorf("a container that has written nothing uses %+v, %v", used, err)
	}
	if err := errors.Join(os.WriteFile(filepath.Join(m.Path, "kept"), make([]byte, 1<<20), 0o600), os.WriteFile(filepath.Join(m.Path, "new"), nil, 0o600)); err != nil {
		t.Fatal(err)
	}
	if used, err := s.WritableUsage(ctx, "c", nil); err != nil || used.Bytes < 1<<20-8192 || used.Bytes > 1<<20+8192 || used.Inodes != 1 {
		t.Errorf("one that has written 1 MiB uses %+v, %v", used, err)
	}
	report, err := s.Check(ctx, false, nil)
	if err != nil || len(report.Damage) > 0 || report.Layers != 3 || len(report.Notes) > 0 {
		t.Errorf("fsck: %+v, %v", report, err)
	}
	if use, err := s.DiskUse(ctx); err != nil || len(use.Images) != 1 || len(use.Images[0].Containers) != 1 {
		t.Errorf("du: %+v, %v", use, err)
	}
	s = reopen(t, s)
	if again, err := s.Prepare(ctx, image.RootfsSpec{Key: "c", ImageID: list[0].ID}); err != nil || *again != *m {
		t.Errorf("after a restart: %+v, %v", again, err)
	}
	if err := errors.Join(s.Release(ctx, "c"), s.Remove(ctx, list[0].ID)); err != nil {
		t.Error(err)
	}
	s.Close()
	assertEmpty(t, s)
}

// TestPreloadedLayersAreForOverlays: a directory of preloaded images has layers in the form of overlays, or is not made.
func TestPreloadedLayersAreForOverlays(t *testing.T) {
	cfg := testConfig(t)
	onOverlay(t, &cfg)
	archive, dir := filepath.Join(t.TempDir(), "a.tar"), filepath.Join(cfg.Root, "preloaded")
	if err := os.WriteFile(archive, deletions(t).Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := MakePreloaded(t.Context(), dir, []string{archive}, nil, cfg.UnpackHelper, cfg.Log); err != nil {
		if _, err := os.Lstat(dir); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("a directory that could not be made is there: %v", err)
		}
		return // the overlay takes no deletions of another one
	}
	layers, err := filepath.Glob(filepath.Join(dir, "layers", "*"))
	if err != nil || len(layers) != 3 {
		t.Fatalf("layers: %q, %v", layers, err)
	}
	for _, layer := range layers {
		if has, err := sysfile.HasWhiteoutFiles(layer); err != nil || has {
			t.Errorf("%s says by files what it deletes: %v", layer, err)
		}
	}
}

// copiesOf lists the shared copies of a store.
func copiesOf(t *testing.T, s *Images) []string {
	t.Helper()
	entries, err := os.ReadDir(s.rootfs.CopiesDir())
	if err != nil {
		t.Fatal(err)
	}
	names := make([]string, len(entries))
	for i, entry := range entries {
		names[i] = entry.Name()
	}
	return names
}

// TestMountedImagesShareACopy: it is there while it is mounted, and no longer than that.
func TestMountedImagesShareACopy(t *testing.T) {
	ctx := t.Context()
	cfg := testConfig(t)
	cfg.Snapshotter = NativeSnapshotter
	s := open(t, cfg)
	list, err := s.Import(ctx, deletions(t), "", true, nil)
	if err != nil {
		t.Fatal(err)
	}
	prepare := func(key, label string) string {
		t.Helper()
		m, err := s.Prepare(ctx, image.RootfsSpec{Key: key, ImageID: list[0].ID, ReadOnly: true, MountLabel: label})
		if err != nil {
			t.Fatal(err)
		}
		wantDeletions(t, m.Path)
		return m.Path
	}
	one, two := prepare("a", ""), prepare("b", "")
	a, err1 := os.Stat(filepath.Join(one, "kept"))
	b, err2 := os.Stat(filepath.Join(two, "kept"))
	if err := errors.Join(err1, err2); err != nil || !os.SameFile(a, b) || len(copiesOf(t, s)) != 1 {
		t.Errorf("two mounts have different files, of %q: %v", copiesOf(t, s), err)
	}
	prepare("labelled", "system_u:object_r:container_file_t:s0")
	if n := len(copiesOf(t, s)); n != 2 {
		t.Errorf("%d copies, want one for each label", n)
	}
	if err := errors.Join(s.Release(ctx, "a"), s.Release(ctx, "labelled")); err != nil {
		t.Fatal(err)
	}
	record := filepath.Join(s.rootfs.ContainersDir(), "b", "image")
	if err := os.WriteFile(record, []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	s = reopen(t, s) // with a damaged record
	if left := copiesOf(t, s); len(left) != 1 || s.Snapshotter("b") != "native" {
		t.Errorf("after a restart there are the copies %q, and b is of %s", left, s.Snapshotter("b"))
	}
	wantDeletions(t, two)
	if err := s.Release(ctx, "b"); err != nil {
		t.Fatal(err)
	}
	prepare("c", "")
	if err := sysmount.Detach(filepath.Join(cfg.State, "rootfs", "c")); err != nil { // as a reboot does
		t.Fatal(err)
	}
	s = reopen(t, s)
	if left := copiesOf(t, s); len(left) != 0 {
		t.Errorf("after a reboot there are %q", left)
	}
	prepare("c", "")
	if err := errors.Join(s.Release(ctx, "c"), s.Remove(ctx, list[0].ID)); err != nil {
		t.Error(err)
	}
	s = reopen(t, s)
	s.Close()
	assertEmpty(t, s)
}

// TestCopyThatWasCutShort: nothing of it is used, and it is removed, after an end of the request and after a kill.
func TestCopyThatWasCutShort(t *testing.T) {
	cfg := testConfig(t)
	cfg.Snapshotter = NativeSnapshotter
	s := open(t, cfg)
	list, err := s.Import(t.Context(), deletions(t), "", true, nil)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	_, err = s.Prepare(ctx, image.RootfsSpec{Key: "c", ImageID: list[0].ID, Progress: func(at sysfile.Copied) {
		if at.Files == 3 {
			cancel()
		}
	}})
	if !errors.Is(err, context.Canceled) {
		t.Errorf("a request that ended: %v", err)
	}
	if keys, err := s.Keys(t.Context()); err != nil || len(keys) > 0 {
		t.Errorf("left: %q, %v", keys, err)
	}
	storage := filepath.Join(t.TempDir(), "storage")
	half := []string{filepath.Join(s.rootfs.PoolDir(), "half", "upper"), filepath.Join(storage, "upper.part")}
	for _, dir := range half {
		if err := errors.Join(os.MkdirAll(filepath.Join(dir, "odd"), 0o755), os.WriteFile(filepath.Join(dir, "gone"), []byte("half"), 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	s = reopen(t, s)
	if _, err := os.Lstat(half[0]); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the next start has left the half of a copy: %v", err)
	}
	for key, spec := range map[string]image.RootfsSpec{"c": {}, "stored": {Storage: storage}} {
		spec.Key, spec.ImageID = key, list[0].ID
		m, err := s.Prepare(t.Context(), spec)
		if err != nil {
			t.Fatal(err)
		}
		wantDeletions(t, m.Path)
	}
}

// TestStorageOfACopyWithoutARecord: what may be a container's files is not removed, and with a record a copy that is not in
// its place yet is used.
func TestStorageOfACopyWithoutARecord(t *testing.T) {
	ctx := t.Context()
	cfg := testConfig(t)
	cfg.Snapshotter = NativeSnapshotter
	s := open(t, cfg)
	list, err := s.Import(ctx, deletions(t), "", true, nil)
	if err != nil {
		t.Fatal(err)
	}
	storage := filepath.Join(t.TempDir(), "storage")
	prepare := func() (string, error) {
		m, err := s.Prepare(ctx, image.RootfsSpec{Key: "c", ImageID: list[0].ID, Storage: storage})
		if err != nil {
			return "", err
		}
		wantDeletions(t, m.Path)
		return m.Path, nil
	}
	path, err := prepare()
	if err != nil {
		t.Fatal(err)
	}
	record, upper, part := filepath.Join(storage, "image"), filepath.Join(storage, "upper"), filepath.Join(storage, "upper.part")
	if err := errors.Join(os.WriteFile(filepath.Join(path, "written"), nil, 0o600), s.Release(ctx, "c"), os.Rename(record, record+".away")); err != nil {
		t.Fatal(err)
	}
	if _, err := prepare(); !errors.Is(err, errs.State) || !strings.Contains(err.Error(), storage) {
		t.Errorf("without a record: %v", err)
	}
	if _, err := os.Lstat(filepath.Join(upper, "written")); err != nil {
		t.Error(err)
	}
	// A loss of power may take the last step.
	if err := errors.Join(os.Rename(record+".away", record), os.Rename(upper, part), os.Mkdir(upper, 0o755)); err != nil {
		t.Fatal(err)
	}
	if path, err = prepare(); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Lstat(filepath.Join(path, "written")); err != nil {
		t.Error(err)
	}
	if _, err := os.Lstat(part); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("upper.part: %v", err)
	}
}

// TestLostLabelsOfCopiedLayers: a store that is to mount overlays finds out by itself that layers without a label are not for
// them.
func TestLostLabelsOfCopiedLayers(t *testing.T) {
	cfg := testConfig(t)
	cfg.Snapshotter = NativeSnapshotter
	s := open(t, cfg)
	list, err := s.Import(t.Context(), deletions(t), "", true, nil)
	if err != nil {
		t.Fatal(err)
	}
	for i, dir := range lowerOf(t, s, list[0].ID) {
		label := filepath.Join(filepath.Dir(filepath.Join(s.db.LayersDir(), dir)), database.LabelName)
		if err := os.WriteFile(label, []byte("{")[:i%2], 0o600); err != nil {
			t.Fatal(err)
		}
	}
	s.cfg.Snapshotter = AutoSnapshotter
	s = reopen(t, s)
	m, err := s.Prepare(t.Context(), image.RootfsSpec{Key: "c", ImageID: list[0].ID})
	if err != nil {
		t.Fatal(err)
	}
	wantDeletions(t, m.Path)
}

// TestSnapshotterIsChanged: the next start makes root filesystems in the other way, from the same images. Those that are there
// stay as they are.
func TestSnapshotterIsChanged(t *testing.T) {
	ctx := t.Context()
	cfg := testConfig(t)
	cfg.Snapshotter = NativeSnapshotter
	s := open(t, cfg)
	list, err := s.Import(ctx, deletions(t), "", true, nil)
	if err != nil {
		t.Fatal(err)
	}
	storage := filepath.Join(t.TempDir(), "storage")
	paths := map[string]string{}
	for i, kind := range []Snapshotter{NativeSnapshotter, OverlaySnapshotter, NativeSnapshotter, AutoSnapshotter} {
		if i > 0 {
			s.cfg.Snapshotter = kind
			s = reopen(t, s)
		}
		key := "c" + string(rune('0'+i))
		m, err := s.Prepare(ctx, image.RootfsSpec{Key: key, ImageID: list[0].ID})
		if err != nil {
			t.Fatal(err)
		}
		paths[key] = m.Path
		for key, path := range paths {
			wantDeletions(t, path)
			want := map[bool]string{true: "native", false: "overlayfs"}[key == "c0" || key == "c2"]
			if got := s.Snapshotter(key); got != want {
				t.Errorf("%s is of %s, want %s", key, got, want)
			}
		}
		if report, err := s.Check(ctx, false, nil); err != nil || len(report.Damage) > 0 {
			t.Errorf("fsck in turn %d: %+v, %v", i, report, err)
		}
		_, err = s.Prepare(ctx, image.RootfsSpec{Key: key + "-s", ImageID: list[0].ID, Storage: storage})
		if copies := i%2 == 0; copies && err != nil || !copies && !errors.Is(err, errs.State) {
			t.Errorf("the storage of the first one in turn %d: %v", i, err)
		}
		if err := s.Release(ctx, key+"-s"); err != nil {
			t.Error(err)
		}
	}
	for _, dir := range lowerOf(t, s, list[0].ID) {
		label, err := database.ReadLayerLabel(filepath.Dir(filepath.Join(s.db.LayersDir(), dir)))
		if err != nil || label.WhiteoutFiles {
			t.Errorf("layer %s of overlays has the label %+v, %v", dir, label, err)
		}
	}
}

// onSmallDisk moves the root of a store to a file system of a size. What fill is called with is its free space from then on.
func onSmallDisk(t *testing.T, cfg *Config, size int) (fill func(left int64)) {
	t.Helper()
	disk := t.TempDir()
	if err := unix.Mount("small", disk, "tmpfs", 0, fmt.Sprintf("size=%d", size)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := sysmount.Detach(disk); err != nil {
			t.Error(err)
		}
	})
	cfg.Root = filepath.Join(disk, "root")
	filler := filepath.Join(disk, "filler")
	return func(left int64) {
		t.Helper()
		err := errs.IgnoreNotExist(os.Remove(filler))
		free, freeErr := sysfile.DiskFree(disk)
		if err := errors.Join(err, freeErr, os.WriteFile(filler, make([]byte, max(0, free-left)), 0o600)); err != nil {
			t.Fatal(err)
		}
	}
}

// TestSnapshotterIsChangedOnASmallDisk: berth removes old layers from the disk before it unpacks them again. If the disk
// still lacks room, the store keeps the image, and the next start with room unpacks it.
func TestSnapshotterIsChangedOnASmallDisk(t *testing.T) {
	ctx := t.Context()
	cfg := testConfig(t)
	fill := onSmallDisk(t, &cfg, 72<<20)
	cfg.Snapshotter = NativeSnapshotter
	s := open(t, cfg)
	noise := make([]byte, 16<<20)
	rand.NewChaCha8([32]byte{}).Read(noise)
	spec := imagetest.Spec{Name: "large:1", Layers: []imagetest.Layer{{{Path: "gone"}, {Path: "noise", Content: noise}}, {imagetest.Whiteout("gone")}}}
	list, err := s.Import(ctx, archiveOf(t, spec), "", true, nil)
	if err != nil {
		t.Fatal(err)
	}
	layers := lowerOf(t, s, list[0].ID)
	file := filepath.Join(s.db.LayersDir(), layers[len(layers)-1], "noise")
	if err := errors.Join(s.Close(), os.Remove(file)); err != nil {
		t.Fatal(err)
	}
	fill(8 << 20) // no room, even after the layers have left
	s.cfg.Snapshotter = OverlaySnapshotter
	s = open(t, s.cfg)
	if img, err := s.Get(ctx, "large:1"); !errors.Is(err, errs.NotFound) {
		t.Errorf("an image that cannot be unpacked: %+v, %v", img, err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	fill(48 << 20)
	s.cfg.Snapshotter = NativeSnapshotter
	s = open(t, s.cfg)
	wantFiles := func() {
		t.Helper()
		m, err := s.Prepare(ctx, image.RootfsSpec{Key: "probe", ImageID: list[0].ID, ReadOnly: true})
		if err != nil {
			t.Fatal(err)
		}
		if data, err := os.ReadFile(filepath.Join(m.Path, "noise")); err != nil || !bytes.Equal(data, noise) {
			t.Errorf("noise has %d bytes, %v", len(data), err)
		}
		if err := errors.Join(s.Release(ctx, "probe"), s.Close()); err != nil {
			t.Fatal(err)
		}
	}
	wantFiles()
	fill(8 << 20) // room only for one of both
	s.cfg.Snapshotter = OverlaySnapshotter
	s = open(t, s.cfg)
	wantFiles()
}
