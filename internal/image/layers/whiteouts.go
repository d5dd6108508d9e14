package layers

import (
	"context"
	"path/filepath"

	"github.com/containerd/containerd/v2/core/snapshots"

	"github.com/berthrun/berth/internal/image/database"
)

// DropWhiteoutFiles removes the snapshots over which no overlay can be mounted, where this store mounts overlays: an earlier
// process has copied them. Images that have them are unpacked again when they are loaded. It returns whether there were any.
// Call it once, before the first Unpack.
func (u *Unpacker) DropWhiteoutFiles(ctx context.Context) (dropped bool, err error) {
	if u.whiteouts {
		return false, nil // a copy is made of layers of both forms
	}
	var chains []string
	err = u.db.Snapshots.Walk(ctx, func(_ context.Context, info snapshots.Info) error {
		if info.Kind != snapshots.KindCommitted {
			return nil
		}
		label, err := database.ReadLayerLabel(filepath.Dir(database.UpperDir(info)))
		if err == nil && label.WhiteoutFiles {
			chains = append(chains, info.Name)
		}
		return nil
	})
	if err != nil {
		return false, err
	}
	for _, chain := range chains {
		u.log.Info("unpacking a layer again, because root filesystems were copies before and are overlays now", "layer", chain)
		if err := u.db.RemoveSnapshot(ctx, chain); err != nil {
			return false, err
		}
	}
	return len(chains) > 0, nil
}
