package database

import (
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"testing"

	"github.com/containerd/containerd/v2/core/leases"
	"github.com/opencontainers/go-digest"
)

// TestLayersAreCommittedTogether: all layers of a transaction are there, or none.
func TestLayersAreCommittedTogether(t *testing.T) {
	d := openDB(t, t.TempDir())
	defer d.Close()
	ctx := WithNamespace(t.Context())
	lease, err := d.Leases.Create(ctx, leases.WithID(newLease(workLease)))
	if err != nil {
		t.Fatal(err)
	}
	ctx = leases.WithLease(ctx, lease.ID)
	chains := []string{digest.FromString("low").String(), digest.FromString("top").String()}
	there := func(want bool) {
		t.Helper()
		found, keys, err := d.KeepOrPrepare(ctx, chains, map[string]bool{chains[0]: true, chains[1]: true})
		if err = errors.Join(err, d.RemoveActive(ctx, keys)); err != nil || len(keys) != 2 && !want || len(keys) > 0 && want || found[chains[0]] != want || found[chains[1]] != want {
			t.Errorf("there are %v, %v, want %v for both", found, err, want)
		}
	}
	keys, err := d.PrepareSnapshots(ctx, 3)
	if err != nil {
		t.Fatal(err)
	}
	all := []Unpacked{{Key: keys[0], Label: LayerLabel{Chain: chains[0]}}, {Key: keys[1], Label: LayerLabel{Chain: chains[1], Parent: digest.FromString("none").String()}}}
	if err := d.CommitSnapshots(ctx, all); err == nil {
		t.Error("a layer is committed over one that is not there")
	}
	there(false)
	all[1].Label.Parent = chains[0]
	info, err := d.Snapshots.Stat(ctx, keys[1])
	if err != nil {
		t.Fatal(err)
	}
	if all[1].Usage, err = UsageOf(ctx, UpperDir(info)); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(d.CommitSnapshots(ctx, all), d.RemoveActive(ctx, keys)); err != nil {
		t.Fatal(err)
	}
	there(true)
	if usage, err := d.Snapshots.Usage(ctx, chains[1]); err != nil || usage != all[1].Usage || usage.Inodes != 1 {
		t.Errorf("the layer takes %+v, %v, want %+v", usage, err, all[1].Usage)
	}
	if lower, err := d.LowerDirs(ctx, chains[1]); err != nil || len(lower) != 2 {
		t.Errorf("the layers are %q, %v", lower, err)
	}
	d.Collect(ctx)
	if dirs, err := os.ReadDir(d.LayersDir()); err != nil || len(dirs) != 2 {
		t.Errorf("the disk has %v, %v, want the two layers", dirs, err)
	}
	there(true)
}

// TestASnapshotBelowACollectedOneIsRemoved: after a loss of power the start removes a layer over which others were, also if the
// collector has removed these.
func TestASnapshotBelowACollectedOneIsRemoved(t *testing.T) {
	d := openDB(t, t.TempDir())
	defer d.Close()
	ctx := WithNamespace(t.Context())
	for _, layer := range [][2]string{{"low", ""}, {"top", "low"}} {
		if _, err := d.Snapshots.Prepare(ctx, "unpack-"+layer[0], layer[1]); err != nil {
			t.Fatal(err)
		}
		if err := d.Snapshots.Commit(ctx, layer[0], "unpack-"+layer[0]); err != nil {
			t.Fatal(err)
		}
	}
	if err := d.KeepForContainers(ctx, "low"); err != nil {
		t.Fatal(err)
	}
	d.Collect(ctx)
	if there, err := d.HasSnapshot(ctx, "top"); err != nil || there {
		t.Fatalf("the collector has left the snapshot above: %v, %v", there, err)
	}
	if err := d.RemoveSnapshot(ctx, "low"); err != nil {
		t.Error(err)
	}
	if there, err := d.HasSnapshot(ctx, "low"); err != nil || there {
		t.Errorf("the snapshot is there: %v, %v", there, err)
	}
}

// TestADirectoryInThePlaceOfASnapshot: what a transaction that failed has left does not get into a layer.
func TestADirectoryInThePlaceOfASnapshot(t *testing.T) {
	d := openDB(t, t.TempDir())
	defer d.Close()
	ctx := WithNamespace(t.Context())
	for id := range 10 {
		dir := filepath.Join(d.LayersDir(), strconv.Itoa(id), FilesName)
		if err := errors.Join(os.MkdirAll(dir, 0o700), os.WriteFile(filepath.Join(dir, "left"), nil, 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	keys, err := d.PrepareSnapshots(ctx, 2)
	if err != nil {
		t.Fatal(err)
	}
	for _, key := range keys {
		info, err := d.Snapshots.Stat(ctx, key)
		if err != nil {
			t.Fatal(err)
		}
		if files, err := os.ReadDir(UpperDir(info)); err != nil || len(files) > 0 {
			t.Errorf("a new snapshot has %v, %v", files, err)
		}
	}
}
