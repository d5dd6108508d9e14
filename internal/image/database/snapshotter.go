package database

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/containerd/containerd/v2/core/metadata/boltutil"
	"github.com/containerd/containerd/v2/core/mount"
	"github.com/containerd/containerd/v2/core/snapshots"
	"github.com/containerd/containerd/v2/core/snapshots/storage"
	"github.com/containerd/containerd/v2/plugins/snapshots/overlay"
	"github.com/containerd/errdefs"
	"go.etcd.io/bbolt"

	"github.com/berthrun/berth/internal/image/database/crosscheck"
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

// layerBatch is what one transaction changes of several snapshots.
type layerBatch struct {
	// usages are those of the snapshots that are committed, by their keys.
	usages map[string]snapshots.Usage
	// made are the directories of new snapshots.
	made []string
}

type layerBatchKey struct{}

// together has fn change several snapshots in one transaction: Prepare and Commit with fn's context are part of it. One
// batch is under way at a time.
func (l *layerStore) together(ctx context.Context, usages map[string]snapshots.Usage, fn func(context.Context) error) error {
	batch := &layerBatch{usages: usages}
	err := l.meta.WithTransaction(ctx, true, func(ctx context.Context) error {
		return fn(context.WithValue(ctx, layerBatchKey{}, batch))
	})
	if err != nil { // the next snapshots get the same numbers
		for _, dir := range batch.made {
			err = errors.Join(err, l.discard(dir))
		}
	}
	return err
}

// Prepare implements snapshots.Snapshotter. In a batch a snapshot has no parent.
func (l *layerStore) Prepare(ctx context.Context, key, parent string, opts ...snapshots.Opt) ([]mount.Mount, error) {
	batch, ok := ctx.Value(layerBatchKey{}).(*layerBatch)
	if !ok || parent != "" {
		return l.Snapshotter.Prepare(ctx, key, parent, opts...)
	}
	made, err := storage.CreateSnapshot(ctx, snapshots.KindActive, key, "", opts...)
	if err != nil {
		return nil, fmt.Errorf("cannot record snapshot %s: %w", key, err)
	}
	dir := filepath.Join(l.layers, made.ID)
	// A transaction that failed may have left one.
	if _, err := os.Lstat(dir); err == nil {
		if err := l.discard(dir); err != nil {
			return nil, fmt.Errorf("cannot remove what is in the place of snapshot %s: %w", key, err)
		}
	}
	batch.made = append(batch.made, dir)
	err = os.Mkdir(dir, 0o700)
	if err == nil {
		err = os.Mkdir(filepath.Join(dir, FilesName), 0o755) //nolint:gosec // of a container
	}
	if err == nil {
		err = os.Mkdir(filepath.Join(dir, "work"), 0o711) //nolint:gosec // as those of the overlay snapshotter
	}
	return nil, err
}

// Commit implements snapshots.Snapshotter.
func (l *layerStore) Commit(ctx context.Context, name, key string, opts ...snapshots.Opt) error {
	batch, ok := ctx.Value(layerBatchKey{}).(*layerBatch)
	if !ok {
		return l.Snapshotter.Commit(ctx, name, key, opts...)
	}
	if _, err := storage.CommitActive(ctx, key, name, batch.usages[crosscheck.ChainOf(key)], opts...); err != nil {
		return fmt.Errorf("cannot record snapshot %s: %w", name, err)
	}
	return nil
}

// together has fn change the metadata, and several snapshots, in one transaction of each database. No collection runs
// meanwhile: it locks the snapshotter before it changes the snapshots' database, and fn locks the snapshotter for each
// snapshot while it has that database.
func (d *DB) together(ctx context.Context, usages map[string]snapshots.Usage, fn func(context.Context) error) error {
	d.collection.Lock()
	defer d.collection.Unlock()
	return d.update(ctx, func(ctx context.Context) error { return d.overlay.together(ctx, usages, fn) })
}

// update has fn change the metadata in one transaction.
func (d *DB) update(ctx context.Context, fn func(context.Context) error) error {
	return d.db.Update(func(tx *bbolt.Tx) error { return fn(boltutil.WithTransaction(ctx, tx)) })
}
