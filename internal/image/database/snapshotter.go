package database

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/containerd/containerd/v2/core/snapshots"
	"github.com/containerd/containerd/v2/core/snapshots/storage"
	"github.com/containerd/containerd/v2/plugins/snapshots/overlay"
	"github.com/containerd/errdefs"
	"go.etcd.io/bbolt"

	"github.com/berthrun/berth/internal/image/dbcheck"
)

// layerStore is the overlay snapshotter with removal of directories in the background: removing an
// image with many files or stopping the daemon does not wait for it.
type layerStore struct {
	snapshots.Snapshotter
	meta    *storage.MetaStore
	layers  string
	discard func(path string) error
}

func openLayerStore(paths Paths, discard func(path string) error) (*layerStore, error) {
	meta, err := storage.NewMetaStore(paths.SnapshotsFile(), func(opts *bbolt.Options) error {
		opts.Timeout = OpenTimeout
		return nil
	})
	if err != nil {
		return nil, err
	}
	store, err := overlay.NewSnapshotter(paths.snapshotsDir(), overlay.WithUpperdirLabel, overlay.AsynchronousRemove, overlay.WithMetaStore(meta))
	if err != nil {
		return nil, errors.Join(err, meta.Close())
	}
	return &layerStore{store, meta, paths.LayersDir(), discard}, nil
}

// check returns dbcheck.ErrDamaged if the database has no snapshot and there are layers: a new
// database has replaced the old one, and Cleanup would remove all layers.
func (l *layerStore) check(ctx context.Context) error {
	return l.meta.WithTransaction(ctx, false, func(ctx context.Context) error {
		known, err := storage.IDMap(ctx)
		if err != nil && !errdefs.IsNotFound(err) {
			return err
		}
		if len(known) > 0 {
			return nil
		}
		entries, err := os.ReadDir(l.layers)
		for _, entry := range entries {
			if _, err := ReadLayerLabel(filepath.Join(l.layers, entry.Name())); err == nil {
				return fmt.Errorf("the snapshots' database knows none, and there are layers: %w", dbcheck.ErrDamaged)
			}
		}
		return err
	})
}

// Cleanup implements snapshots.Cleaner: it discards the directories of no snapshot, of those
// that were removed and of those whose transaction was interrupted.
func (l *layerStore) Cleanup(ctx context.Context) error {
	// A writing transaction keeps others from making directories.
	return l.meta.WithTransaction(ctx, true, func(ctx context.Context) error {
		known, err := storage.IDMap(ctx)
		if err != nil && !errdefs.IsNotFound(err) { // there never was a snapshot
			return err
		}
		entries, err := os.ReadDir(l.layers)
		if err != nil {
			return err
		}
		for _, entry := range entries {
			if _, ok := known[entry.Name()]; ok {
				continue
			}
			if err := l.discard(filepath.Join(l.layers, entry.Name())); err != nil {
				return fmt.Errorf("cannot remove a layer's directory: %w", err)
			}
		}
		return nil
	})
}
