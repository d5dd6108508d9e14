//go:build integration

package device

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/berthrun/berth/internal/ocispec"
	"github.com/berthrun/berth/internal/require"
	"github.com/berthrun/berth/internal/sys/sysfile"
)

// TestOwned: a device that is to have another owner than its source gets a source with that owner; others
// keep theirs.
func TestOwned(t *testing.T) {
	require.Root(t)
	host, ok, err := sysfile.StatDevice("/dev/null")
	if err != nil || !ok {
		t.Fatalf("/dev/null: %v", err)
	}
	null := ocispec.Device{Path: "/dev/inner", Source: "/dev/null", Type: "c", Major: 1, Minor: 3, Mode: 0o640, UID: host.UID, GID: host.GID}
	other := null
	other.UID, other.GID = 1000, 2000
	dir := filepath.Join(t.TempDir(), "devices")
	owned, err := Owned(dir, []ocispec.Device{null, other})
	if err != nil {
		t.Fatal(err)
	}
	if owned[0] != null {
		t.Errorf("the host's owner: %+v", owned[0])
	}
	node, ok, err := sysfile.StatDevice(owned[1].Source)
	if err != nil || !ok || node.Major != 1 || node.Minor != 3 || node.Block || node.UID != 1000 || node.GID != 2000 || node.Mode&0o777 != 0o640 {
		t.Errorf("another owner: %s is %+v, %v", owned[1].Source, node, err)
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) != 1 {
		t.Errorf("nodes %v, %v", left, err)
	}
	null.Source = filepath.Join(dir, "absent")
	if _, err := Owned(dir, []ocispec.Device{null}); err == nil {
		t.Error("a source that is gone is used")
	}
}
