package database

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/opencontainers/go-digest"
	"golang.org/x/sys/unix"
)

// HasFiles reports whether a committed snapshot has a directory for its files, or the link to a
// preloaded layer, whose name is its chain. It is false for any other link: that leads anywhere.
func (d *DB) HasFiles(ctx context.Context, chain string) (bool, error) {
	dir, _, err := d.LayerFiles(ctx, chain)
	if err != nil {
		return false, err
	}
	if top, err := os.Lstat(filepath.Dir(dir)); err == nil && !top.IsDir() {
		return false, nil
	}
	fi, err := os.Lstat(dir)
	switch {
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, unix.ENOTDIR):
		return false, nil
	case err != nil:
		return false, fmt.Errorf("cannot look at the files of layer %s: %w", chain, err)
	case fi.Mode()&fs.ModeSymlink == 0:
		return fi.IsDir(), nil
	}
	target, err := os.Readlink(dir)
	if err != nil || filepath.Base(target) != digest.Digest(chain).Encoded() {
		return false, nil //nolint:nilerr // it does not lead to a preloaded layer
	}
	to, err := os.Stat(dir)
	return err == nil && to.IsDir(), nil
}

// RestoreFiles moves files into the place of those of a committed snapshot, which are gone. What is
// there instead is removed. If somebody has restored them meanwhile, these stay: a container may use them. root is set if the
// files have the attributes of the image's root directory; see LayerLabel.
func (d *DB) RestoreFiles(ctx context.Context, chain, files string, root bool) error {
	d.restoring.Lock()
	defer d.restoring.Unlock()
	if has, err := d.HasFiles(ctx, chain); err != nil || has {
		return err
	}
	dir, parent, err := d.LayerFiles(ctx, chain)
	if err != nil {
		return err
	}
	top := filepath.Dir(dir)
	label, err := readLabel(top)
	if err != nil {
		label = unknownLabel(chain, parent, files)
		label.Root = root
	}
	if fi, err := os.Lstat(top); err != nil || !fi.IsDir() {
		if err := d.discard(top); err != nil {
			return err
		}
		if err := os.Mkdir(top, 0o700); err != nil {
			return err
		}
	} else if err := d.discard(dir); err != nil {
		return err
	}
	if err := os.Rename(files, dir); err != nil {
		return err
	}
	return WriteLayerLabel(dir, label)
}
