package layers

import (
	"context"
	"fmt"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/image/database"
	"github.com/berthrun/berth/internal/image/tree"
)

// Again unpacks layer i of an image, which has a snapshot already, a second time, for fn. The
// directory that fn gets is removed when fn returns. What fn has moved out of it is on disk soon
// after. root is set if it has the attributes of the image's root directory. unpacked is that of Unpack.
func (u *Unpacker) Again(ctx context.Context, t *tree.Tree, i int, unpacked func(n int64), fn func(dir string, root bool) error) error {
	secrets, err := u.secretsOfLayers(ctx, t, t.LayersOf(i))
	if err != nil {
		return err
	}
	job := &unpacking{Unpacker: u, t: t, names: t.Chains(), secrets: secrets, unpacked: unpacked}
	return job.again(ctx, i, fn)
}

// again is Again.
func (u *unpacking) again(ctx context.Context, i int, fn func(dir string, root bool) error) error {
	parent := ""
	if i > 0 {
		parent = u.names[i-1]
	}
	// As the layer is, so that both can be compared.
	whiteoutFiles, err := u.db.HasWhiteoutFiles(ctx, u.names[i], u.whiteouts)
	if err != nil {
		return err
	}
	done, err := u.listUnsynced(u.names[i : i+1])
	if err != nil {
		return err
	}
	defer done()
	return u.db.WithLease(ctx, func(ctx context.Context) error {
		err := u.filled(ctx, i, parent, whiteoutFiles, func(key string, root bool) error {
			info, err := u.db.Snapshots.Stat(ctx, key)
			if err != nil {
				return err
			}
			dir := database.UpperDir(info)
			defer u.dropFiles(ctx, i, dir)
			if root, err = u.describesRoot(ctx, parent, root); err != nil {
				return err
			}
			if err := fn(dir, root); err != nil {
				return err
			}
			return u.db.AddSource(ctx, u.names[i], u.source(i), u.t.IsEncrypted(i))
		})
		if err != nil {
			return fmt.Errorf("cannot unpack %s: %w", u.t.SourceOf(i), errs.OfDisk(err))
		}
		return nil
	})
}
