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

	"github.com/berthrun/berth/internal/errs"
)

// upperdirLabel is the label with the directory of a snapshot's files.
const upperdirLabel = "containerd.io/snapshot/overlay.upperdir"

// UpperDir is where a snapshot's files are.
func UpperDir(info snapshots.Info) string { return info.Labels[upperdirLabel] }

// LowerDirs lists the directories of a committed snapshot and all below it,
// topmost first, relative to LayersDir.
func (d *DB) LowerDirs(ctx context.Context, chain string) ([]string, error) {
	var lower []string
	for chain != "" {
		info, err := d.Snapshots.Stat(ctx, chain)
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
	removeErr := d.Snapshots.Remove(context.WithoutCancel(ctx), key)
	if errdefs.IsNotFound(removeErr) {
		removeErr = nil
	}
	return errors.Join(err, removeErr)
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
	if err := d.Snapshots.Remove(ctx, chain); err != nil && !errdefs.IsNotFound(err) {
		return fmt.Errorf("cannot remove snapshot %s: %w", chain, err)
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
