package database

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"path/filepath"
	"strings"

	"github.com/containerd/containerd/v2/core/snapshots"
	"github.com/containerd/errdefs"
	"go.etcd.io/bbolt"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/image/database/crosscheck"
	"github.com/berthrun/berth/internal/image/dbcheck"
	"github.com/berthrun/berth/internal/sys/sysfile"
)

// upperdirLabel is the label with the directory of a snapshot's files.
const upperdirLabel = "containerd.io/snapshot/overlay.upperdir"

// UpperDir is where a snapshot's files are.
func UpperDir(info snapshots.Info) string { return info.Labels[upperdirLabel] }

// snapshotsPath are the buckets that lead to the snapshots in the metadata.
func snapshotsPath() []string { return []string{"v1", namespace, "snapshots", snapshotter} }

// LowerDirs lists the directories of a committed snapshot and all below it,
// topmost first, relative to LayersDir. dbcheck.ErrDamaged when the snapshot is there, but not in the metadata.
func (d *DB) LowerDirs(ctx context.Context, chain string) ([]string, error) {
	var lower []string
	for chain != "" {
		info, err := d.Snapshots.Stat(ctx, chain)
		if dir, ok := d.strays[chain]; ok && errdefs.IsNotFound(err) {
			return nil, fmt.Errorf("%s does not have snapshot %s, whose files are in directory %s: %w", d.MetadataFile(), chain, dir, dbcheck.ErrDamaged)
		}
		if err != nil {
			return nil, fmt.Errorf("cannot find snapshot %s: %w", chain, err)
		}
		if info.Kind != snapshots.KindCommitted {
			return nil, fmt.Errorf("snapshot %s is not complete", chain)
		}
		dir, err := filepath.Rel(d.LayersDir(), UpperDir(info))
		if err != nil {
			return nil, fmt.Errorf("cannot find the directory of snapshot %s: %w", chain, err)
		}
		lower = append(lower, dir)
		chain = info.Parent
	}
	return lower, nil
}

// KnowsRoot reports whether a committed snapshot has the attributes of the image's root directory; see LayerLabel.
func (d *DB) KnowsRoot(ctx context.Context, chain string) (bool, error) {
	info, err := d.Snapshots.Stat(ctx, chain)
	if err != nil {
		return false, fmt.Errorf("cannot find snapshot %s: %w", chain, err)
	}
	label, err := ReadLayerLabel(filepath.Dir(UpperDir(info)))
	return err == nil && label.Root, nil
}

// WithSnapshot makes an active snapshot for fn, and removes it unless fn has
// committed it.
func (d *DB) WithSnapshot(ctx context.Context, parent string, fn func(key string) error) error {
	key := "unpack-" + strings.ToLower(rand.Text())
	if _, err := d.Snapshots.Prepare(ctx, key, parent); err != nil {
		return fmt.Errorf("cannot prepare a snapshot: %w", err)
	}
	err := fn(key)
	return errors.Join(err, d.RemoveActive(context.WithoutCancel(ctx), []string{key}))
}

// PrepareSnapshots makes active snapshots without a parent, in one transaction. Call RemoveActive for those that are not
// committed.
func (d *DB) PrepareSnapshots(ctx context.Context, n int) (keys []string, err error) {
	err = d.together(ctx, nil, func(ctx context.Context) (err error) {
		keys, err = d.prepare(ctx, n)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("cannot prepare snapshots: %w", errs.OfDisk(err))
	}
	return keys, nil
}

// prepare makes active snapshots without a parent. The context is that of a batch; see together.
func (d *DB) prepare(ctx context.Context, n int) (keys []string, err error) {
	for range n {
		key := "unpack-" + strings.ToLower(rand.Text())
		if _, err := d.Snapshots.Prepare(ctx, key, ""); err != nil {
			return nil, err
		}
		keys = append(keys, key)
	}
	return keys, nil
}

// KeepOrPrepare has the context's lease keep the snapshots of an image, lowest first, and is PrepareSnapshots for those of wanted
// that are not there, all in one transaction.
func (d *DB) KeepOrPrepare(ctx context.Context, chains []string, wanted map[string]bool) (there map[string]bool, keys []string, err error) {
	there = map[string]bool{}
	d.collection.Lock() // see together
	defer d.collection.Unlock()
	err = d.update(ctx, func(ctx context.Context) (err error) {
		missing := 0
		for _, chain := range chains {
			if there[chain], err = d.KeepSnapshot(ctx, chain); err != nil {
				return err
			}
			if !there[chain] && wanted[chain] {
				missing++
			}
		}
		if missing == 0 {
			return nil
		}
		return d.overlay.together(ctx, nil, func(ctx context.Context) (err error) {
			keys, err = d.prepare(ctx, missing)
			return err
		})
	})
	if err != nil {
		return nil, nil, fmt.Errorf("cannot prepare snapshots: %w", errs.OfDisk(err))
	}
	return there, keys, nil
}

// RemoveActive removes active snapshots, in one transaction. It leaves out those that have been committed.
func (d *DB) RemoveActive(ctx context.Context, keys []string) error {
	var left []string
	for _, key := range keys {
		_, err := d.Snapshots.Stat(ctx, key)
		if err == nil {
			left = append(left, key)
		} else if !errdefs.IsNotFound(err) {
			return fmt.Errorf("cannot look up a snapshot: %w", err)
		}
	}
	if len(left) == 0 {
		return nil
	}
	d.collection.Lock() // see together
	defer d.collection.Unlock()
	err := d.update(ctx, func(ctx context.Context) error {
		for _, key := range left {
			if err := d.Snapshots.Remove(ctx, key); err != nil && !errdefs.IsNotFound(err) {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("cannot remove unfinished snapshots: %w", err)
	}
	return nil
}

// Unpacked is an active snapshot without a parent that has all files of a layer.
type Unpacked struct {
	Key   string
	Label LayerLabel
	// Usage is what the files take on disk; see UsageOf.
	Usage snapshots.Usage
}

// UsageOf is what the files of a snapshot take on disk. upper is its directory.
func UsageOf(ctx context.Context, upper string) (snapshots.Usage, error) {
	usage, err := sysfile.UsageOf(ctx, nil, upper)
	if err != nil {
		return snapshots.Usage{}, fmt.Errorf("cannot get the size of a snapshot: %w", err)
	}
	return snapshots.Usage{Size: usage.Bytes, Inodes: usage.Inodes}, nil
}

// CommitSnapshots makes each snapshot the layer of its label, over its label's parent, in one transaction. Parents come first.
func (d *DB) CommitSnapshots(ctx context.Context, all []Unpacked) error {
	usages := map[string]snapshots.Usage{}
	for _, one := range all {
		info, err := d.Snapshots.Stat(ctx, one.Key)
		if err != nil {
			return fmt.Errorf("cannot look up a snapshot: %w", err)
		}
		if err := WriteLayerLabel(UpperDir(info), one.Label); err != nil {
			return fmt.Errorf("cannot label a snapshot: %w", errs.OfDisk(err))
		}
		usages[one.Key] = one.Usage
	}
	err := d.together(ctx, usages, func(ctx context.Context) error {
		for _, one := range all {
			var opts []snapshots.Opt
			if one.Label.Parent != "" {
				opts = append(opts, snapshots.WithParent(one.Label.Parent))
			}
			if err := d.Snapshots.Commit(ctx, one.Label.Chain, one.Key, opts...); err != nil {
				return fmt.Errorf("layer %s: %w", one.Label.Chain, err)
			}
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("cannot commit snapshots: %w", errs.OfDisk(err))
	}
	return nil
}

// CommitSnapshot makes an active snapshot the layer of the label.
func (d *DB) CommitSnapshot(ctx context.Context, label LayerLabel, key string, opts ...snapshots.Opt) error {
	info, err := d.Snapshots.Stat(ctx, key)
	if err != nil {
		return fmt.Errorf("cannot look up a snapshot: %w", err)
	}
	if err := WriteLayerLabel(UpperDir(info), label); err != nil {
		return fmt.Errorf("cannot label a snapshot: %w", errs.OfDisk(err))
	}
	if err := d.Snapshots.Commit(ctx, label.Chain, key, opts...); err != nil {
		return fmt.Errorf("cannot commit a snapshot: %w", err)
	}
	return nil
}

// DropUnsynced is RemoveSnapshot for a layer whose files may be damaged: it removes them first, so that nothing can take them
// for complete.
func (d *DB) DropUnsynced(ctx context.Context, chain string) error {
	info, err := d.Snapshots.Stat(ctx, chain)
	dir := filepath.Dir(UpperDir(info))
	if errdefs.IsNotFound(err) {
		stray, ok := d.strays[chain]
		if !ok {
			return nil
		}
		delete(d.strays, chain)
		dir, err = filepath.Join(d.LayersDir(), stray), nil
	}
	if err == nil {
		err = d.discard(dir)
	}
	if err != nil {
		return fmt.Errorf("cannot remove the files of layer %s: %w", chain, err)
	}
	return d.RemoveSnapshot(ctx, chain)
}

// RemoveSnapshot removes a committed snapshot and all above it.
func (d *DB) RemoveSnapshot(ctx context.Context, chain string) error {
	var children []string
	err := d.Snapshots.Walk(ctx, func(_ context.Context, info snapshots.Info) error {
		if info.Parent == chain {
			children = append(children, info.Name)
		}
		return nil
	})
	if err != nil {
		return err
	}
	for _, child := range children {
		if err := d.RemoveSnapshot(ctx, child); err != nil {
			return err
		}
	}
	if err := d.dropCollectedChildren(chain); err != nil {
		return err
	}
	if err := d.Snapshots.Remove(ctx, chain); err != nil && !errdefs.IsNotFound(err) {
		return fmt.Errorf("cannot remove snapshot %s: %w", chain, err)
	}
	return nil
}

// dropCollectedChildren removes from the record of a snapshot the names of those above it that are gone: the collector removes a
// snapshot, and leaves its name in the record of the one below, which could not be removed then.
func (d *DB) dropCollectedChildren(chain string) error {
	err := d.db.Update(func(tx *bbolt.Tx) error {
		all := crosscheck.Bucket(tx, snapshotsPath())
		if all == nil || all.Bucket([]byte(chain)) == nil {
			return nil
		}
		children := all.Bucket([]byte(chain)).Bucket([]byte("children"))
		if children == nil {
			return nil
		}
		var gone [][]byte
		err := children.ForEach(func(name, _ []byte) error {
			if all.Bucket(name) == nil {
				gone = append(gone, name)
			}
			return nil
		})
		for _, name := range gone {
			err = errors.Join(err, children.Delete(name))
		}
		return err
	})
	if err != nil {
		return fmt.Errorf("cannot tidy the record of snapshot %s: %w", chain, errs.OfDisk(err))
	}
	return nil
}

// IsBelow reports whether a snapshot is top, or below it. A top that is gone has none below.
func (d *DB) IsBelow(ctx context.Context, chain, top string) (bool, error) {
	for at := top; at != ""; {
		if at == chain {
			return true, nil
		}
		info, err := d.Snapshots.Stat(ctx, at)
		if errdefs.IsNotFound(err) {
			return false, nil
		}
		if err != nil {
			return false, fmt.Errorf("cannot look up snapshot %s: %w", at, err)
		}
		at = info.Parent
	}
	return false, nil
}

// LayerFiles is the directory with the files of a committed snapshot, and the snapshot below.
func (d *DB) LayerFiles(ctx context.Context, chain string) (dir, parent string, err error) {
	info, err := d.Snapshots.Stat(ctx, chain)
	if err != nil {
		return "", "", fmt.Errorf("cannot find snapshot %s: %w", chain, err)
	}
	return UpperDir(info), info.Parent, nil
}
