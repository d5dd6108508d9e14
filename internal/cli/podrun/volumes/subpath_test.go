package volumes

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/berthrun/berth/internal/cli/podyaml"
)

// A container may create links in a volume. No link makes a mount leave the volume.
func TestSubPathStaysInItsVolume(t *testing.T) {
	volume, outside := t.TempDir(), t.TempDir()
	if err := os.Symlink(outside, filepath.Join(volume, "out")); err != nil {
		t.Fatal(err)
	}
	target := filepath.Join(t.TempDir(), "target")
	for _, path := range []string{"out", "out/new", "../x"} {
		err := BindSubPath(&podyaml.SubPath{Volume: volume, Path: path, Target: target})
		if err == nil || !strings.Contains(err.Error(), "escapes") {
			t.Errorf("%s: got %v", path, err)
		}
	}
	if entries, _ := os.ReadDir(outside); len(entries) != 0 {
		t.Errorf("made outside: %v", entries)
	}
}
