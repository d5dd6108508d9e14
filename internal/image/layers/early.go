package layers

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/image/database"
	"github.com/berthrun/berth/internal/image/database/growing"
	"github.com/berthrun/berth/internal/image/unpack"
	"github.com/berthrun/berth/internal/sys/sysfile"
)

// A large layer is unpacked while it is fetched: both take long, and each leaves a processor idle at times. The helper gets
// bytes that nobody has compared with a digest yet. It is confined for hostile bytes, and its limits are those of every
// layer. What it has made, and what it says of the layer, counts only after the blob is in the store, whose digest is right
// then, and after the comparison of the digest of the unpacked bytes. Any other fault does not end the
// pull: berth removes the files, and unpacks the layer from its blob when the store has the blob.

// maxEarly bounds the helpers that wait for bytes of layers, of all images together. A layer that finds no room is unpacked
// from its blob, so it waits for no other one.
const maxEarly = 8

// errEarly is the error of a layer that is to be unpacked from its blob.
var errEarly = errors.New("the layer cannot be unpacked while it is fetched")

// file returns the file from which layer i is unpacked while it is fetched, nil if it is unpacked from its blob. The helper
// gets the key of an encrypted layer only together with the verified blob.
func (u *unpacking) file(i int) *growing.File {
	if i >= len(u.growing) || u.secrets[i] != nil {
		return nil
	}
	return u.growing[i]
}

// await waits until layer i can be unpacked: its download has begun, or content has all that it is made from.
func (u *unpacking) await(ctx context.Context, i int) error {
	if file := u.file(i); file != nil {
		if file.Begun(ctx) && len(u.early) < cap(u.early) {
			return nil
		}
		u.growing[i] = nil
	}
	return awaitAll(ctx, u.t, i, u.ready)
}

// layerEarly unpacks layer i while it is fetched, and adds it to the batch. The error is errEarly if the layer is to be
// unpacked from its blob. The chain is not locked until the layer is unpacked: what others make of the same layer must not
// wait for its download. One pull at a time downloads a layer, so two pulls do not unpack it twice.
func (u *unpacking) layerEarly(ctx context.Context, i int) error {
	there, err := u.db.HasSnapshot(ctx, u.names[i])
	if err != nil {
		return err
	}
	if there {
		return errEarly
	}
	layer, err := u.aloneEarly(ctx, i)
	if err == nil && layer == nil {
		layer, err = u.overEarly(ctx, i)
	}
	if err != nil {
		return err
	}
	u.batch.add(i, layer)
	return nil
}

// aloneEarly is alone while the layer is fetched. The chain of the layer is locked then.
func (u *unpacking) aloneEarly(ctx context.Context, i int) (*unpacked, error) {
	defer u.attempts.begin(u.names[i], u.file(i))()
	layer, err := u.alone(ctx, i)
	if err != nil || layer == nil {
		return nil, err
	}
	layer.unlock, err = u.lockEarly(ctx, i, layer.upper)
	return layer, err
}

// attempts are the layers that are being unpacked while they are fetched, by their chains. Their chains are not locked yet.
type attempts struct {
	mu sync.Mutex
	of map[string]attempt
}

type attempt struct {
	file  *growing.File
	ended chan struct{}
}

// begin notes an attempt. end ends it. Of two attempts for one chain, from different blobs, it knows the first.
func (a *attempts) begin(chain string, file *growing.File) (end func()) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if _, other := a.of[chain]; other {
		return func() {}
	}
	if a.of == nil {
		a.of = map[string]attempt{}
	}
	one := attempt{file, make(chan struct{})}
	a.of[chain] = one
	return func() {
		a.mu.Lock()
		defer a.mu.Unlock()
		delete(a.of, chain)
		close(one.ended)
	}
}

// await waits for an attempt for a chain if its download is complete: the pulls that have waited for the same download would
// else unpack the layer again, and the files of one of them would be in vain. It does not wait for a download.
func (a *attempts) await(ctx context.Context, chain string) {
	a.mu.Lock()
	one, found := a.of[chain]
	a.mu.Unlock()
	if !found || !one.file.Once() {
		return
	}
	select {
	case <-one.ended:
	case <-ctx.Done():
	}
}

// overEarly unpacks layer i over the layers below while it is fetched, and commits it.
func (u *unpacking) overEarly(ctx context.Context, i int) (*unpacked, error) {
	parent, err := u.below(ctx, i)
	if err != nil {
		return nil, err
	}
	var unlock func()
	kept := false
	defer func() {
		if unlock != nil && !kept {
			unlock()
		}
	}()
	err = u.filled(ctx, i, parent, u.whiteouts, func(key string, root bool) error {
		info, err := u.db.Snapshots.Stat(ctx, key)
		if err != nil {
			return fmt.Errorf("cannot look up a snapshot: %w", err)
		}
		if unlock, err = u.lockEarly(ctx, i, database.UpperDir(info)); err != nil {
			return err
		}
		return u.commitOne(ctx, i, parent, key, root)
	})
	if err != nil {
		return nil, err
	}
	kept = true
	return &unpacked{unlock: unlock}, nil
}

// lockEarly locks the chain of layer i, which was unpacked into upper while it was fetched. The error is errEarly if somebody
// has made the snapshot meanwhile.
func (u *unpacking) lockEarly(ctx context.Context, i int, upper string) (unlock func(), err error) {
	free, err := u.lock(ctx, u.names[i])
	if err != nil {
		return nil, err
	}
	defer func() {
		if unlock == nil {
			free()
		}
	}()
	there, err := u.db.HasSnapshot(ctx, u.names[i])
	if err != nil {
		return nil, err
	}
	if there {
		u.dropFiles(ctx, i, upper)
		return nil, errEarly
	}
	return free, nil
}

// dropFiles removes the files of layer i that are not needed: until the next collection others need the disk. The snapshot is
// not used again. The collection removes it, with what is left.
func (u *unpacking) dropFiles(ctx context.Context, i int, upper string) {
	if err := sysfile.RemoveTree(ctx, upper); err != nil && ctx.Err() == nil {
		u.log.Warn("cannot remove unpacked files that are not needed; the next collection removes them", "layer", u.names[i], "error", err)
	}
}

// runEarly has the helper unpack layer i while it is fetched. It returns what the helper says once the blob is in the store.
// Only that the helper needs the layers below counts at once. The error is errEarly if the layer is to be unpacked from its
// blob. read is called with the number of bytes of each piece that the helper gets.
func (u *unpacking) runEarly(ctx context.Context, i int, job unpack.Job, file *growing.File, read func(int64)) (unpack.Result, error) {
	select {
	case u.early <- struct{}{}:
	default:
		return unpack.Result{}, errEarly
	}
	result, err := u.runGrowing(ctx, job, file, read)
	<-u.early
	switch {
	case ctx.Err() != nil:
		return unpack.Result{}, context.Cause(ctx)
	case err == nil && (result.NeedsLower || result.NeedsFiles):
		return result, nil
	case err != nil && errs.Kind(err) == nil:
		return unpack.Result{}, errEarly // not the layer is at fault
	}
	if err := awaitAll(ctx, u.t, i, u.ready); err != nil {
		return unpack.Result{}, err
	}
	if !file.Once() {
		return unpack.Result{}, errEarly
	}
	return result, err
}

// runGrowing runs the helper with a pipe, which gets the bytes of the layer as they come. The error has a kind if the helper
// has refused the bytes. read is not called after runGrowing has returned.
func (u *unpacking) runGrowing(ctx context.Context, job unpack.Job, file *growing.File, read func(int64)) (unpack.Result, error) {
	r, w, err := growing.Pipe()
	if err != nil {
		return unpack.Result{}, err
	}
	defer r.Close()
	copying, stop := context.WithCancel(ctx)
	defer stop()
	copied := make(chan error, 1)
	go func() {
		err := errs.Guard("reading of a layer that is fetched", func() error { return file.CopyTo(copying, w, read) })
		w.Close() // the helper sees the end
		copied <- err
	}()
	result, err := u.runner.Run(ctx, job, r, nil)
	stop() // the helper need not read all
	w.Close()
	copyErr := <-copied
	switch {
	case copyErr == nil || errors.Is(copyErr, os.ErrClosed) || errors.Is(copyErr, context.Canceled):
		return result, err
	case err == nil && (result.NeedsLower || result.NeedsFiles):
		return result, nil
	}
	return unpack.Result{}, errEarly // the helper has seen an end that is not that of the layer
}
