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
// after. unpacked is that of Unpack.
func (u *Unpacker) Again(ctx context.Context, t *tree.Tree, i int, unpacked func(n int64), fn func(dir string) error) error {
	chains := t.Chains()
	parent := ""
	if i > 0 {
		parent = chains[i-1]
	}
	job := &unpacking{Unpacker: u, t: t, names: chains, unpacked: unpacked}
	done, err := u.listUnsynced(chains[i : i+1])
	if err != nil {
		return err
	}
	defer done()
	return u.db.WithLease(ctx, func(ctx context.Context) error {
		return u.db.WithSnapshot(ctx, parent, func(key string) error {
			if _, err := job.fill(ctx, i, key, parent, false); err != nil {
				return fmt.Errorf("cannot unpack %s: %w", t.SourceOf(i), errs.OfDisk(err))
			}
			info, err := u.db.Snapshots.Stat(ctx, key)
			if err != nil {
				return err
			}
			return fn(database.UpperDir(info))
		})
	})
}
