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

// restoreLost unpacks again the layers of an image, all of which have snapshots, whose files are gone.
func (u *Unpacker) restoreLost(ctx context.Context, t *tree.Tree, ready func(ctx context.Context, i int) error) error {
	for i, chain := range t.Chains() {
		whole, err := u.Whole(ctx, t, i)
		if err != nil {
			return err
		}
		if whole {
			continue
		}
		if err := awaitAll(ctx, t, i, ready); err != nil {
			return err
		}
		unlock, err := u.chains.Lock(ctx, chain)
		if err != nil {
			return err
		}
		err = u.restore(ctx, t, i)
		unlock()
		if err != nil {
			return err
		}
	}
	return nil
}

// restore unpacks layer i into the place of its snapshot if its files are gone. The snapshot stays,
// and so do those above it: a container may run on their files.
func (u *Unpacker) restore(ctx context.Context, t *tree.Tree, i int) error {
	whole, err := u.Whole(ctx, t, i)
	if err != nil || whole {
		return err
	}
	chain := t.Chains()[i]
	u.log.Warn("unpacking a layer again whose files are gone", "layer", chain)
	err = u.Again(ctx, t, i, func(int64) {}, func(again string) error { return u.db.RestoreFiles(ctx, chain, again) })
	if err != nil {
		return fmt.Errorf("cannot restore layer %s: %w", chain, errs.OfDisk(err))
	}
	return nil
}
