//go:build integration

package local

import (
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/berthrun/berth/internal/image"
	"github.com/berthrun/berth/internal/image/database"
	"github.com/berthrun/berth/internal/image/imagetest"
)

// rootsImage has layers that are unpacked without those below: the lowest describes the root directory, the middle one deletes what
// is nowhere in a directory of its own, and the topmost says nothing of the root.
var rootsImage = imagetest.Spec{Name: "roots:1", Layers: []imagetest.Layer{
	{{Path: "./", Dir: true, Raw: true, Mode: 0o1711, UID: 3, GID: 4}, {Path: "both", Dir: true}, {Path: "both/low"}},
	{{Path: "new", Dir: true}, {Path: "new/f"}, imagetest.Whiteout("new/gone"), {Path: "both", Dir: true}, imagetest.Whiteout("both/low"), imagetest.Whiteout("both/gone")},
	{{Path: "top"}},
}}

// wantRoot compares the root directory of a container with what it is to be.
func wantRoot(t *testing.T, root string, mode, uid, gid uint32) {
	t.Helper()
	var st unix.Stat_t
	if err := unix.Stat(root, &st); err != nil || st.Mode&0o7777 != mode || st.Uid != uid || st.Gid != gid {
		t.Errorf("the root directory has mode %o and owner %d:%d, want %o and %d:%d; %v", st.Mode&0o7777, st.Uid, st.Gid, mode, uid, gid, err)
	}
}

// TestLayersThatAreUnpackedAlone take the attributes of the root directory from those below, and list no deletion as a file.
func TestLayersThatAreUnpackedAlone(t *testing.T) {
	for _, snapshotter := range []Snapshotter{OverlaySnapshotter, NativeSnapshotter} {
		t.Run(string(snapshotter), func(t *testing.T) {
			cfg := testConfig(t)
			cfg.Snapshotter = snapshotter
			s := open(t, cfg)
			list, err := s.Import(t.Context(), archiveOf(t, rootsImage), "", true, nil)
			if err != nil {
				t.Fatal(err)
			}
			m, err := s.Prepare(t.Context(), image.RootfsSpec{Key: "c", ImageID: list[0].ID})
			if err != nil {
				t.Fatal(err)
			}
			wantRoot(t, m.Path, 0o1711, 3, 4)
			for dir, want := range map[string]int{"new": 1, "both": 0} {
				if entries, err := os.ReadDir(filepath.Join(m.Path, dir)); err != nil || len(entries) != want {
					t.Errorf("%s has %v, %v", dir, entries, err)
				}
			}
		})
	}
}

// TestRootOfAnOldLayer: what an older berth has unpacked has a root directory as the umask was.
func TestRootOfAnOldLayer(t *testing.T) {
	cfg := testConfig(t)
	cfg.Snapshotter = OverlaySnapshotter
	s := open(t, cfg)
	list, err := s.Import(t.Context(), archiveOf(t, rootsImage), "", true, nil)
	if err != nil {
		t.Fatal(err)
	}
	top := filepath.Join(s.db.LayersDir(), lowerOf(t, s, list[0].ID)[0])
	label, err := database.ReadLayerLabel(filepath.Dir(top))
	if err != nil || !label.Root {
		t.Fatalf("label %+v, %v", label, err)
	}
	label.Root = false
	if err := database.WriteLayerLabel(top, label); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(top, 0o700); err != nil {
		t.Fatal(err)
	}
	m, err := s.Prepare(t.Context(), image.RootfsSpec{Key: "c", ImageID: list[0].ID})
	if err != nil {
		t.Fatal(err)
	}
	wantRoot(t, m.Path, 0o755, 0, 0)
}
