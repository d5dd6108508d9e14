package crosscheck

import (
	"context"
	"errors"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containerd/containerd/v2/core/snapshots"
	"github.com/containerd/containerd/v2/core/snapshots/storage"
	"go.etcd.io/bbolt"

	"github.com/berthrun/berth/internal/image/dbcheck"
)

// records are what a store has recorded of two layers, low and top.
type records struct {
	metadata map[string]recorded
	// snapshots are in the order of their numbers, from 1.
	snapshots []struct{ name, parent string }
	labels    map[string]string
}

var low, top, other = "sha256:" + strings.Repeat("a", 64), "sha256:" + strings.Repeat("b", 64), "sha256:" + strings.Repeat("c", 64)

func newRecords() *records {
	return &records{
		metadata:  map[string]recorded{low: {"k8s.io/2/" + low, ""}, top: {"k8s.io/4/" + top, low}},
		snapshots: []struct{ name, parent string }{{"k8s.io/2/" + low, ""}, {"k8s.io/4/" + top, "k8s.io/2/" + low}},
		labels:    map[string]string{"1": low, "2": top},
	}
}

// write makes databases of the records.
func (r *records) write(t *testing.T) Layers {
	t.Helper()
	dir := t.TempDir()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	db, err := bbolt.Open(filepath.Join(dir, "metadata.db"), 0o600, nil)
	must(err)
	t.Cleanup(func() { must(db.Close()) })
	must(db.Update(func(tx *bbolt.Tx) error {
		all, err := tx.CreateBucket([]byte("snapshots"))
		for key, one := range r.metadata {
			b, bucketErr := all.CreateBucket([]byte(key))
			if err = errors.Join(err, bucketErr); err == nil {
				err = errors.Join(b.Put([]byte("name"), []byte(one.name)), b.Put([]byte("parent"), []byte(one.parent)))
			}
		}
		return err
	}))
	must(os.Mkdir(filepath.Join(dir, "snapshots"), 0o700))
	meta, err := storage.NewMetaStore(filepath.Join(dir, "snapshots", "metadata.db"))
	must(err)
	t.Cleanup(func() { must(meta.Close()) })
	for _, one := range r.snapshots {
		ctx, tx, err := meta.TransactionContext(t.Context(), true)
		must(err)
		key, committed := strings.CutPrefix(one.name, "active ")
		_, err = storage.CreateSnapshot(ctx, snapshots.KindActive, "making "+key, one.parent)
		if !committed && err == nil {
			_, err = storage.CommitActive(ctx, "making "+key, one.name, snapshots.Usage{})
		}
		must(errors.Join(err, tx.Commit()))
	}
	return Layers{Metadata: db, Path: []string{"snapshots"}, Snapshots: meta, Labels: r.labels, Replaced: true}
}

// TestNumberOfTheNext: a new snapshot would get the directory of another one.
func TestNumberOfTheNext(t *testing.T) {
	l := newRecords().write(t)
	err := l.Snapshots.WithTransaction(t.Context(), true, func(ctx context.Context) error {
		_, err := storage.CreateSnapshot(ctx, snapshots.KindActive, "third", "")
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := l.Snapshots.Close(); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(filepath.Dir(l.Metadata.Path()), "snapshots", "metadata.db")
	db, err := bbolt.Open(path, 0o600, nil)
	if err != nil {
		t.Fatal(err)
	}
	err = db.Update(func(tx *bbolt.Tx) error { return tx.Bucket([]byte("v1")).Bucket([]byte("snapshots")).SetSequence(1) })
	if err := errors.Join(err, db.Close()); err != nil {
		t.Fatal(err)
	}
	if l.Snapshots, err = storage.NewMetaStore(path); err != nil {
		t.Fatal(err)
	}
	defer l.Snapshots.Close()
	if _, err := l.Compare(t.Context()); !errors.Is(err, dbcheck.ErrDamaged) {
		t.Errorf("got %v", err)
	}
}

// TestCompare: Compare accepts what a kill leaves, and refuses what a flipped bit leaves.
func TestCompare(t *testing.T) {
	for name, c := range map[string]struct {
		change func(r *records)
		// problem is a part of the error, "" for none.
		problem string
		strays  []string
	}{
		"as it should be": {func(*records) {}, "", nil},
		"a layer that is being unpacked, before it is in the snapshots' database": {func(r *records) {
			r.metadata["unpack-1"] = recorded{"k8s.io/5/unpack-1", ""}
		}, "", nil},
		"a layer that is only in the snapshots' database": {func(r *records) {
			delete(r.metadata, top)
		}, "", []string{top}},
		"such a layer without its files": {func(r *records) {
			delete(r.metadata, top)
			delete(r.labels, "2")
		}, "", nil},
		"files of a removed layer, which was unpacked again": {func(r *records) { r.labels["7"] = top }, "", nil},
		"a layer without a label":                            {func(r *records) { delete(r.labels, "1") }, "", nil},
		"a label with a flipped bit":                         {func(r *records) { r.labels["1"] = other }, "", nil},
		"no record at all":                                   {func(r *records) { *r = records{} }, "", nil},
		"files, and no snapshot":                             {func(r *records) { r.metadata, r.snapshots = nil, nil }, "know no layer", nil},
		"another key in the metadata": {func(r *records) {
			r.metadata[other] = r.metadata[top]
			delete(r.metadata, top)
		}, "has the name", nil},
		"another name in the metadata":                      {func(r *records) { r.metadata[top] = recorded{"k8s.io/6/" + top, low} }, "does not have layer", nil},
		"another parent in the metadata":                    {func(r *records) { r.metadata[top] = recorded{"k8s.io/4/" + top, other} }, "is above", nil},
		"no parent in the metadata":                         {func(r *records) { r.metadata[top] = recorded{"k8s.io/4/" + top, ""} }, "is above", nil},
		"another name in the snapshots' database":           {func(r *records) { r.snapshots[1].name = "k8s.io/4/" + other }, "does not have layer", nil},
		"another parent in the snapshots' database":         {func(r *records) { r.snapshots[1].parent = "" }, "is above", nil},
		"a layer that is active in the snapshots' database": {func(r *records) { r.snapshots[1].name = "active " + r.snapshots[1].name }, "does not have layer", nil},
		"the directory of another layer": {func(r *records) {
			r.snapshots[0], r.snapshots[1] = r.snapshots[1], r.snapshots[0]
			r.snapshots[0].parent = ""
			r.metadata[top] = recorded{"k8s.io/4/" + top, ""}
		}, "has number", nil},
		"a directory that is not there": {func(r *records) {
			r.labels = map[string]string{"1": low, "9": top}
		}, "has number", nil},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRecords()
			c.change(r)
			strays, err := r.write(t).Compare(t.Context())
			if c.problem == "" && err != nil || c.problem != "" && (!errors.Is(err, dbcheck.ErrDamaged) || !strings.Contains(err.Error(), c.problem)) {
				t.Errorf("got %v, want %q", err, c.problem)
			}
			want := map[string]string{}
			for _, chain := range c.strays {
				want[chain] = "2"
			}
			if err == nil && !maps.Equal(strays, want) {
				t.Errorf("strays %v, want %v", strays, want)
			}
		})
	}
}
