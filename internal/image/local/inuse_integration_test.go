//go:build integration

package local

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/berthrun/berth/internal/image"
	"github.com/berthrun/berth/internal/sys/sysmount"
)

// overlays is audit of a store that mounts overlays.
func overlays(t *testing.T) *audited {
	t.Helper()
	cfg := testConfig(t)
	cfg.Snapshotter = AutoSnapshotter
	return auditOf(t, cfg)
}

// wrongBase damages the file of a layer that both images have and a container uses. It returns the directory of the layer.
func wrongBase(t *testing.T, a *audited) string {
	t.Helper()
	base := filepath.Join(a.db.LayersDir(), lowerOf(t, a.Images, a.other)[1])
	alter(t, filepath.Join(base, "base"), func(data []byte) []byte { data[0] ^= 1; return data })
	return base
}

// sees returns whether a container sees the right file, and fails if it sees none.
func sees(t *testing.T, s *Images, key string) bool {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(s.rootfs.MountsDir(), key, "base"))
	if err != nil || len(data) != len("base")*10_000 {
		t.Fatalf("container %s sees %d bytes, %v", key, len(data), err)
	}
	return string(data) == strings.Repeat("base", 10_000)
}

// keptFor returns the containers that keep layers which no image has.
func keptFor(t *testing.T, s *Images) []string {
	t.Helper()
	use, err := s.DiskUse(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	usage, err := s.Usage(t.Context())
	if err != nil || usage.Images[0].Bytes != use.Total {
		t.Errorf("total %d, the store says %+v, %v", use.Total, usage.Images, err)
	}
	var all []string
	for _, kept := range use.Kept {
		if kept.Bytes == 0 {
			t.Errorf("layers without bytes: %+v", kept)
		}
		all = append(all, kept.Containers...)
	}
	return all
}

// TestRepairReplacesALayerInUse: new containers get the layer that was unpacked again. The container that runs keeps its files,
// also after a restart, until it is removed.
func TestRepairReplacesALayerInUse(t *testing.T) {
	a := overlays(t)
	wrongBase(t, a)
	before, err := listing(filepath.Join(a.rootfs.MountsDir(), "c1"))
	if err != nil {
		t.Fatal(err)
	}
	damage := a.check(t, true)
	if len(damage) != 1 || !damage[0].Repaired || !slices.Equal(damage[0].Containers, []string{"c1"}) || len(damage[0].Images) != 2 || damage[0].Repair == "" || damage[0].Advice == "" {
		t.Errorf("damage %+v", damage)
	}
	left := func(s *Images) []string {
		dirs, err := filepath.Glob(filepath.Join(s.db.LayersDir(), "*", "replaced-*"))
		if err != nil {
			t.Fatal(err)
		}
		return dirs
	}
	look := func(s *Images, key string) {
		t.Helper()
		for name, id := range map[string]string{key: a.other, key + "-first": a.firstID} {
			if _, err := s.Prepare(t.Context(), image.RootfsSpec{Key: name, ImageID: id}); err != nil {
				t.Fatal(err)
			}
			if !sees(t, s, name) {
				t.Errorf("container %s got the damaged file", name)
			}
			if err := s.Release(t.Context(), name); err != nil {
				t.Fatal(err)
			}
		}
		after, err := listing(filepath.Join(s.rootfs.MountsDir(), "c1"))
		if err != nil || firstDifference(after, before) != "" {
			t.Errorf("the running container: %s, %v", firstDifference(after, before), err)
		}
		if kept := keptFor(t, s); !slices.Equal(kept, []string{"c1"}) || len(left(s)) != 1 {
			t.Errorf("kept for %q in %q", kept, left(s))
		}
	}
	look(a.Images, "c2")
	report, err := a.Check(t.Context(), false, nil)
	if err != nil || len(report.Damage) != 0 || len(report.Notes) != 1 || !strings.Contains(report.Notes[0], "c1") {
		t.Errorf("the next check: %+v, %v", report, err)
	}
	s := reopen(t, a.Images)
	look(s, "c3")
	if err := s.Release(t.Context(), "c1"); err != nil {
		t.Fatal(err)
	}
	if kept := keptFor(t, s); len(kept) != 0 || len(left(s)) != 0 {
		t.Errorf("after the container is gone, %q is kept in %q", kept, left(s))
	}
	report, err = s.Check(t.Context(), false, nil)
	if err != nil || len(report.Damage)+len(report.Notes) != 0 {
		t.Errorf("the last check: %+v, %v", report, err)
	}
}

// TestReplacedLayersGoWithTheirMounts: after a reboot nothing has them open.
func TestReplacedLayersGoWithTheirMounts(t *testing.T) {
	a := overlays(t)
	wrongBase(t, a)
	a.check(t, true)
	if sees(t, a.Images, "c1") {
		t.Error("the running container got another file")
	}
	mount := filepath.Join(a.rootfs.MountsDir(), "c1")
	cfg := a.cfg
	a.Close()
	if err := sysmount.Detach(mount); err != nil {
		t.Fatal(err)
	}
	s := open(t, cfg)
	if kept := keptFor(t, s); len(kept) != 0 {
		t.Errorf("kept for %q", kept)
	}
	if _, err := s.Prepare(t.Context(), image.RootfsSpec{Key: "c1", ImageID: a.other}); err != nil {
		t.Fatal(err)
	}
	if !sees(t, s, "c1") {
		t.Error("the container that is mounted again got the damaged file")
	}
}

// TestReplacedLayersSurviveARebuild: the container that runs keeps its files when the databases are lost.
func TestReplacedLayersSurviveARebuild(t *testing.T) {
	a := overlays(t)
	wrongBase(t, a)
	a.check(t, true)
	cfg, file := a.cfg, a.db.MetadataFile()
	a.Close()
	if err := os.Truncate(file, 0); err != nil {
		t.Fatal(err)
	}
	s := open(t, cfg)
	if sees(t, s, "c1") {
		t.Error("the running container got another file")
	}
	if kept := keptFor(t, s); !slices.Equal(kept, []string{"c1"}) {
		t.Errorf("kept for %q", kept)
	}
}

// TestMountedImagesGetARepairedLayer: a copy that was made of a damaged layer is for those alone that have it already.
func TestMountedImagesGetARepairedLayer(t *testing.T) {
	cfg := testConfig(t)
	cfg.Snapshotter = NativeSnapshotter
	a := auditOf(t, cfg)
	wrongBase(t, a)
	prepare := func(key string) bool {
		t.Helper()
		if _, err := a.Prepare(t.Context(), image.RootfsSpec{Key: key, ImageID: a.firstID, ReadOnly: true}); err != nil {
			t.Fatal(err)
		}
		return sees(t, a.Images, key)
	}
	if prepare("v1") {
		t.Fatal("the file is not damaged")
	}
	if damage := a.check(t, true); len(damage) != 1 || !damage[0].Repaired || !slices.Contains(damage[0].Containers, "v1") {
		t.Errorf("damage %+v", damage)
	}
	if !prepare("v2") {
		t.Error("the damaged copy was handed out")
	}
}

// TestRepairOfALayerOfUserNamespaces: root filesystems with mapped ids, too, keep their files or get the right ones, and a
// directory that is missing is made again for them.
func TestRepairOfALayerOfUserNamespaces(t *testing.T) {
	t.Setenv("BERTH_SNAPSHOTTER", string(AutoSnapshotter))
	inUserNS(t, func(s *Images, img image.Image, m *image.UserMap) {
		layer := filepath.Join(s.db.LayersDir(), lowerOf(t, s, img.ID)[5])
		prepare := func(key, want string) {
			t.Helper()
			mounted, err := s.Prepare(t.Context(), image.RootfsSpec{Key: key, ImageID: img.ID, Map: m})
			if err != nil {
				t.Fatal(err)
			}
			for name, want := range map[string]string{"f": want, "fx": "x"} {
				if data, err := os.ReadFile(filepath.Join(mounted.Path, name)); err != nil || string(data) != want {
					t.Errorf("%s of %s: %q, %v", name, key, data, err)
				}
			}
			wantOwner(t, filepath.Join(mounted.Path, "f"), mappedRoot, 0o644)
		}
		alter(t, filepath.Join(layer, "f"), func([]byte) []byte { return []byte("y") })
		prepare("old", "y")
		report, err := s.Check(t.Context(), true, nil)
		if err != nil || len(report.Damage) != 1 || !report.Damage[0].Repaired {
			t.Errorf("%+v, %v", report, err)
		}
		prepare("new", "x")
		prepare("old", "y")
		if err := os.RemoveAll(filepath.Dir(layer)); err != nil {
			t.Fatal(err)
		}
		prepare("newer", "x")
		for _, key := range []string{"old", "new", "newer"} {
			if err := s.Release(t.Context(), key); err != nil {
				t.Fatal(err)
			}
		}
	})
}

// TestRepairAfterAKilledRepair: a repair that was killed before it exchanged the files has left a record. The container runs on the
// files that are still the layer's, and keeps these when the next repair replaces them.
func TestRepairAfterAKilledRepair(t *testing.T) {
	a := overlays(t)
	base := wrongBase(t, a)
	aside := filepath.Join(filepath.Dir(base), "replaced-killed")
	if err := errors.Join(os.Mkdir(aside, 0o700), os.Mkdir(filepath.Join(aside, "fs"), 0o700),
		os.WriteFile(filepath.Join(aside, "record"), []byte(`{"chain":"sha256:c","users":["c1"]}`), 0o600)); err != nil {
		t.Fatal(err)
	}
	s := reopen(t, a.Images)
	report, err := s.Check(t.Context(), true, nil)
	if err != nil || len(report.Damage) != 1 || !report.Damage[0].Repaired {
		t.Fatalf("%+v, %v", report, err)
	}
	s.trash.Empty(t.Context())
	if sees(t, s, "c1") {
		t.Error("the running container got another file")
	}
	if err := s.Release(t.Context(), "c1"); err != nil {
		t.Fatal(err)
	}
	if dirs, err := filepath.Glob(filepath.Join(s.db.LayersDir(), "*", "replaced-*")); err != nil || len(dirs) != 0 {
		t.Errorf("left: %q, %v", dirs, err)
	}
}
