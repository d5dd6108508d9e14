//go:build integration

package sysmount

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/moby/sys/mountinfo"

	"github.com/berthrun/berth/internal/require"
	"github.com/berthrun/berth/internal/sys/sysfd"
)

// TestVolatileOverlayIsMountedAgain: what was written to a volatile overlay is there when it is mounted again,
// as after a crash of the daemon. The kernel alone would refuse that.
func TestVolatileOverlayIsMountedAgain(t *testing.T) {
	require.Root(t)
	dir := t.TempDir()
	// An upper directory cannot be on the overlay that a test machine may have as its root.
	if err := MountTmpfs(dir, 1<<20, sysfd.Owner{}); err != nil {
		t.Fatal(err)
	}
	defer Detach(dir)
	for _, name := range []string{"lower", "upper", "work", "merged"} {
		if err := os.Mkdir(filepath.Join(dir, name), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	merged := filepath.Join(dir, "merged")
	o := Overlay{LowerRoot: dir, Lower: []string{"lower"}, Upper: filepath.Join(dir, "upper"), Work: filepath.Join(dir, "work"), Volatile: true}
	mount := func() {
		t.Helper()
		if err := MountOverlay(o, merged); err != nil {
			t.Fatal(err)
		}
		infos, err := mountinfo.GetMounts(mountinfo.SingleEntryFilter(merged))
		if err != nil || len(infos) != 1 {
			t.Fatalf("%v, %v", infos, err)
		}
		if !strings.Contains(infos[0].VFSOptions, "volatile") {
			t.Errorf("the overlay has the options %s", infos[0].VFSOptions)
		}
	}
	mount()
	if err := os.WriteFile(filepath.Join(merged, "file"), []byte("text"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := Detach(merged); err != nil {
		t.Fatal(err)
	}
	mount()
	defer Detach(merged)
	if text, err := os.ReadFile(filepath.Join(merged, "file")); err != nil || string(text) != "text" {
		t.Errorf("mounted again, the file has %q, %v", text, err)
	}
}
