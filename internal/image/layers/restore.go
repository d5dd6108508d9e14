package layers

import (
	"context"
	"fmt"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/image/tree"
)

// Whole reports whether the files of layer i of an image are where its snapshot says. It does not read
// them.
func (u *Unpacker) Whole(ctx context.Context, t *tree.Tree, i int) (bool, error) {
	return u.db.HasFiles(ctx, t.Chains()[i])
}

// reuseAll takes the snapshots of an image, all of which are there.
func (u *unpacking) reuseAll(ctx context.Context, ready func(ctx context.Context, i int) error) error {
	for i, chain := range u.names {
		whole, shown, err := u.usable(ctx, i)
		if err != nil {
			return err
		}
		if whole && shown {
			continue
		}
		unlock, err := u.lock(ctx, chain)
		if err != nil {
			return err
		}
		err = u.reuse(ctx, i, ready)
		unlock()
		if err != nil {
			return err
		}
	}
	return nil
}

// usable reports whether the files of the snapshot of layer i, which is there, are whole, and whether it was shown that
// they are the content of this image's layer; see database.LayerLabel.
func (u *unpacking) usable(ctx context.Context, i int) (whole, shown bool, err error) {
	if whole, err = u.Whole(ctx, u.t, i); err != nil {
		return false, false, err
	}
	shown, err = u.db.IsFrom(ctx, u.names[i], u.source(i))
	return whole, shown, err
}

// reuse takes the snapshot of layer i, which is there. It unpacks the layer again if this image must show that it has the
// content of the snapshot, and into the place of the snapshot's files if these are gone. The snapshot stays, and so do
// those above it: a container may run on their files. The chain is locked.
func (u *unpacking) reuse(ctx context.Context, i int, ready func(ctx context.Context, i int) error) error {
	whole, shown, err := u.usable(ctx, i)
	if err != nil || whole && shown {
		return err
	}
	if err := awaitAll(ctx, u.t, i, ready); err != nil {
		return err
	}
	if whole {
		return u.again(ctx, i, func(string, bool) error { return nil })
	}
	chain := u.names[i]
	u.log.Warn("unpacking a layer again whose files are gone", "layer", chain)
	err = u.again(ctx, i, func(again string, root bool) error { return u.db.RestoreFiles(ctx, chain, again, root) })
	if err != nil {
		return fmt.Errorf("cannot restore layer %s: %w", chain, errs.OfDisk(err))
	}
	return nil
}
