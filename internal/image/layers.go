package image

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/containerd/containerd/v2/core/snapshots"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
	"golang.org/x/sync/errgroup"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/image/tree"
	"github.com/berthrun/berth/internal/image/unpack"
	"github.com/berthrun/berth/internal/sys/sysfile"
)

// unpackLayers makes the snapshots of an image that are not there yet, lowest
// first. ready waits until content has layer i; unpacked is told of bytes as they
// are unpacked, and of fewer than none when some must be unpacked again.
func (s *Images) unpackLayers(ctx context.Context, t *tree.Tree, ready func(ctx context.Context, i int) error, unpacked func(n int64)) error {
	chains := t.Chains()
	there, err := s.keepSnapshot(ctx, chains[len(chains)-1])
	if err != nil || there {
		return err
	}
	done, err := s.mark(chains)
	if err != nil {
		return err
	}
	defer done()
	u := &unpacking{s: s, t: t, chains: chains, unpacked: unpacked, committed: make([]chan struct{}, len(chains))}
	for i := range u.committed {
		u.committed[i] = make(chan struct{})
	}
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(unpackers)
	for i := range chains {
		group.Go(func() error {
			if err := ready(ctx, i); err != nil {
				return err
			}
			err := errs.Guard("unpacking of "+t.Layers[i].Digest.String(), func() error { return u.layer(ctx, i) })
			if err != nil {
				return fmt.Errorf("cannot unpack layer %d (%s): %w", i, t.Layers[i].Digest, diskError(err))
			}
			close(u.committed[i])
			return nil
		})
	}
	return group.Wait()
}

// unpackers is how many layers of one image are unpacked side by side.
const unpackers = 2

// unpacking is an image whose layers are being unpacked, each by itself; they are
// put together in order. A layer that says too little to be unpacked without those
// below it waits for them.
type unpacking struct {
	s        *Images
	t        *tree.Tree
	chains   []string
	unpacked func(int64)
	// committed are closed when the snapshot of a layer is there.
	committed []chan struct{}
}

// below waits for the snapshot under layer i and returns its name.
func (u *unpacking) below(ctx context.Context, i int) (string, error) {
	if i == 0 {
		return "", nil
	}
	select {
	case <-u.committed[i-1]:
		return u.chains[i-1], nil
	case <-ctx.Done():
		return "", context.Cause(ctx)
	}
}

// layer makes the snapshot of layer i. Two images that want the same one unpack it
// once.
func (u *unpacking) layer(ctx context.Context, i int) error {
	unlock, err := u.s.chains.Lock(ctx, u.chains[i])
	if err != nil {
		return err
	}
	defer unlock()
	there, err := u.s.keepSnapshot(ctx, u.chains[i])
	if err != nil || there {
		return err
	}
	done, err := u.alone(ctx, i)
	if err != nil || done {
		return err
	}
	parent, err := u.below(ctx, i)
	if err != nil {
		return err
	}
	return u.s.withSnapshot(ctx, parent, func(key string) error {
		if _, err := u.fill(ctx, i, key, parent, false); err != nil {
			return err
		}
		return u.s.commitSnapshot(ctx, u.chains[i], parent, key)
	})
}

// alone unpacks layer i without the layers below. done is false when it cannot.
func (u *unpacking) alone(ctx context.Context, i int) (done bool, err error) {
	err = u.s.withSnapshot(ctx, "", func(key string) error {
		done, err = u.fill(ctx, i, key, "", i > 0)
		if err != nil || !done {
			return err
		}
		parent, err := u.below(ctx, i)
		if err != nil {
			return err
		}
		return u.s.commitSnapshot(ctx, u.chains[i], parent, key, snapshots.WithParent(parent))
	})
	return done, err
}

// fill unpacks layer i into the snapshot key. It is false when alone is asked for
// and the layer cannot be unpacked so.
func (u *unpacking) fill(ctx context.Context, i int, key, parent string, alone bool) (bool, error) {
	job, err := u.s.job(ctx, key, parent)
	if err != nil {
		return false, err
	}
	job.Alone = alone
	blob, err := os.Open(u.s.blobPath(u.t.Layers[i].Digest))
	if err != nil {
		return false, err
	}
	defer blob.Close()
	var seen int64
	result, err := u.s.runner.Run(ctx, job, blob, func(offset int64) { u.unpacked(offset - seen); seen = offset })
	if err != nil || result.NeedsLower {
		u.unpacked(-seen)
		return false, err
	}
	u.unpacked(u.t.Layers[i].Size - seen)
	if want := u.t.Image.RootFS.DiffIDs[i]; result.DiffID != want {
		return false, fmt.Errorf("its content has digest %s, the image's config says %s: %w", result.DiffID, want, errs.Invalid)
	}
	return true, nil
}

// withSnapshot makes an active snapshot for fn, and removes it unless fn has
// committed it.
func (s *Images) withSnapshot(ctx context.Context, parent string, fn func(key string) error) error {
	key := "unpack-" + strings.ToLower(rand.Text())
	if _, err := s.snapshots.Prepare(ctx, key, parent); err != nil {
		return fmt.Errorf("cannot prepare a snapshot: %w", err)
	}
	err := fn(key)
	removeErr := s.snapshots.Remove(context.WithoutCancel(ctx), key)
	if errdefs.IsNotFound(removeErr) {
		removeErr = nil
	}
	return errors.Join(err, removeErr)
}

func (s *Images) commitSnapshot(ctx context.Context, chain, parent, key string, opts ...snapshots.Opt) error {
	info, err := s.snapshots.Stat(ctx, key)
	if err != nil {
		return fmt.Errorf("cannot look up a snapshot: %w", err)
	}
	if err := writeLayerLabel(info.Labels[upperdirLabel], layerLabel{Chain: chain, Parent: parent}); err != nil {
		return fmt.Errorf("cannot label a snapshot: %w", diskError(err))
	}
	if err := s.snapshots.Commit(ctx, chain, key, opts...); err != nil {
		return fmt.Errorf("cannot commit a snapshot: %w", err)
	}
	return nil
}

func (s *Images) job(ctx context.Context, key, parent string) (unpack.Job, error) {
	info, err := s.snapshots.Stat(ctx, key)
	if err != nil {
		return unpack.Job{}, fmt.Errorf("cannot look up a snapshot: %w", err)
	}
	lower, err := s.lowerDirs(ctx, parent)
	if err != nil {
		return unpack.Job{}, err
	}
	free, err := sysfile.DiskFree(s.cfg.Root)
	if err != nil {
		return unpack.Job{}, err
	}
	upper := info.Labels[upperdirLabel]
	return unpack.Job{
		Upper:     upper,
		Place:     filepath.Join(filepath.Dir(upper), "work"),
		LowerRoot: s.layersDir(),
		Lower:     lower,
		MaxBytes:  free,
		MaxLayer:  s.rules.Load().MaxLayer,
	}, nil
}

// blobPath is where the content store keeps a blob. The helper reads the file
// itself, which no interface of the content store offers.
func (s *Images) blobPath(dgst digest.Digest) string {
	return filepath.Join(s.contentDir(), "blobs", dgst.Algorithm().String(), dgst.Encoded())
}

// removeSnapshot removes a committed snapshot and all that stand on it.
func (s *Images) removeSnapshot(ctx context.Context, chain string) error {
	var children []string
	err := s.snapshots.Walk(ctx, func(_ context.Context, info snapshots.Info) error {
		if info.Parent == chain {
			children = append(children, info.Name)
		}
		return nil
	})
	if err != nil {
		return err
	}
	for _, child := range children {
		if err := s.removeSnapshot(ctx, child); err != nil {
			return err
		}
	}
	if err := s.snapshots.Remove(ctx, chain); err != nil && !errdefs.IsNotFound(err) {
		return fmt.Errorf("cannot remove snapshot %s: %w", chain, err)
	}
	return nil
}
