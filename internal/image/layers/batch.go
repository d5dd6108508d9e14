package layers

import (
	"context"
	"path/filepath"
	"slices"
	"sync"

	"github.com/containerd/containerd/v2/core/snapshots"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/image/database"
	"github.com/berthrun/berth/internal/image/unpack"
)

// batch has the layers of an image that are unpacked and not committed yet. Each transaction of the databases waits four
// times for the disk, so one transaction commits as many layers as possible: all of them at the end, or those below a layer
// that needs their files, or as soon as possible if another image waits for one of them. After a kill the layers of a
// transaction that has not begun are unpacked again, as all layers of a pull that is not complete.
type batch struct {
	mu sync.Mutex
	// spare are active snapshots that no layer has got. keys has all of them.
	spare, keys []string
	// layers are those that are unpacked, nil for the others.
	layers []*unpacked
	// next is the first layer that is not committed. Those below wanted are needed now.
	next, wanted int
	// changed has a token when layers or wanted may have changed.
	changed chan struct{}
	// committed are closed when the snapshot of a layer is there.
	committed []chan struct{}
}

// unpacked is a layer that is unpacked.
type unpacked struct {
	// key is its active snapshot, "" if the layer is committed already.
	key    string
	upper  string
	result unpack.Result
	usage  snapshots.Usage
	// unlock frees its chain.
	unlock func()
}

func newBatch(layers int, keys []string) *batch {
	b := &batch{spare: slices.Clone(keys), keys: slices.Clone(keys), layers: make([]*unpacked, layers), changed: make(chan struct{}, 1), committed: make([]chan struct{}, layers)}
	for i := range b.committed {
		b.committed[i] = make(chan struct{})
	}
	return b
}

func (b *batch) change(fn func()) {
	b.mu.Lock()
	fn()
	b.mu.Unlock()
	select {
	case b.changed <- struct{}{}:
	default:
	}
}

// add adds layer i, which is unpacked.
func (b *batch) add(i int, layer *unpacked) { b.change(func() { b.layers[i] = layer }) }

// want has the layers below n committed as soon as they can be.
func (b *batch) want(n int) { b.change(func() { b.wanted = max(b.wanted, n) }) }

// hurry has each layer committed as soon as it can be.
func (b *batch) hurry() { b.want(len(b.layers)) }

// take removes a spare snapshot. It returns "" if none is left.
func (b *batch) take() (key string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.spare) > 0 {
		key, b.spare = b.spare[0], b.spare[1:]
	}
	return key
}

// claims are the layers for which an image has prepared active snapshots. Of images that share a layer and are pulled together,
// the first prepares one: that image will most likely unpack the layer.
type claims struct {
	mu  sync.Mutex
	all map[string]bool
}

// take claims those of the chains that no image has claimed, until release.
func (c *claims) take(chains []string) (taken map[string]bool, release func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.all == nil {
		c.all = map[string]bool{}
	}
	taken = map[string]bool{}
	for _, chain := range chains {
		if !c.all[chain] {
			taken[chain], c.all[chain] = true, true
		}
	}
	return taken, func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		for chain := range taken {
			delete(c.all, chain)
		}
	}
}

// empty returns an active snapshot for a layer. There is one for each layer that this image has claimed, unless one was used in
// vain. So most images need no other one.
func (u *unpacking) empty(ctx context.Context) (string, error) {
	if key := u.batch.take(); key != "" {
		return key, nil
	}
	more, err := u.db.PrepareSnapshots(ctx, 1)
	if err != nil {
		return "", err
	}
	u.batch.mu.Lock()
	defer u.batch.mu.Unlock()
	u.batch.keys = append(u.batch.keys, more...)
	return more[0], nil
}

// due returns the layers that are to be committed now, from the first one that is not.
func (b *batch) due() (first int, layers []*unpacked) {
	b.mu.Lock()
	defer b.mu.Unlock()
	end := b.next
	for end < len(b.layers) && b.layers[end] != nil {
		end++
	}
	if end < len(b.layers) && b.wanted <= b.next {
		return b.next, nil
	}
	return b.next, b.layers[b.next:end]
}

// done marks n layers as committed, and frees their chains.
func (b *batch) done(n int) {
	b.mu.Lock()
	layers, committed := b.layers[b.next:b.next+n], b.committed[b.next:b.next+n]
	b.next += n
	b.mu.Unlock()
	for i, layer := range layers {
		layer.unlock()
		close(committed[i])
	}
}

// close frees the chains of layers that are not committed.
func (b *batch) close() {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, layer := range b.layers[b.next:] {
		if layer != nil {
			layer.unlock() // no image asks this batch for its mutex while it has that of holders
		}
	}
}

// commitAll commits the layers of the batch when they are due. It returns when all are committed.
func (u *unpacking) commitAll(ctx context.Context) error {
	for {
		first, layers := u.batch.due()
		if first == len(u.names) {
			return nil
		}
		if len(layers) > 0 {
			if err := u.commit(ctx, first, layers); err != nil {
				return err
			}
			u.batch.done(len(layers))
			continue
		}
		select {
		case <-u.batch.changed:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// commit commits layers, the first of which is layer i, in one transaction.
func (u *unpacking) commit(ctx context.Context, i int, layers []*unpacked) error {
	// What the next layer stands on.
	var lower []string
	parent, root := "", true
	var all []database.Unpacked
	for n, layer := range layers {
		name := u.names[i+n]
		if layer.key != "" {
			if len(all) == 0 && i+n > 0 {
				parent = u.names[i+n-1]
				var err error
				if lower, root, err = u.standsOn(ctx, parent); err != nil {
					return err
				}
			}
			if err := u.settleIn(ctx, layer, lower); err != nil {
				return err
			}
			dir, err := filepath.Rel(u.db.LayersDir(), layer.upper)
			if err != nil {
				return err
			}
			lower, root = slices.Concat([]string{dir}, lower), layer.result.Root || root
			label := database.LayerLabel{Chain: name, Parent: parent, Sources: u.sources(i + n), WhiteoutFiles: u.whiteouts, Root: root}
			all = append(all, database.Unpacked{Key: layer.key, Label: label, Usage: layer.usage})
			parent = name
			continue
		}
		// It is there, so those below it are, too.
		if len(all) > 0 {
			if err := u.db.CommitSnapshots(ctx, all); err != nil {
				return err
			}
			all = nil
		}
	}
	if len(all) == 0 {
		return nil
	}
	return u.db.CommitSnapshots(ctx, all)
}

// standsOn are the directories of a committed snapshot and those below, and whether it has the attributes of the root
// directory.
func (u *unpacking) standsOn(ctx context.Context, parent string) (lower []string, root bool, err error) {
	if lower, err = u.db.LowerDirs(ctx, parent); err != nil {
		return nil, false, err
	}
	root, err = u.db.KnowsRoot(ctx, parent)
	return lower, root, err
}

// settleIn settles a layer of the batch.
func (u *unpacking) settleIn(ctx context.Context, layer *unpacked, lower []string) (err error) {
	if err := u.settle(layer.upper, lower, layer.result); err != nil || len(layer.result.Unsure) == 0 {
		return errs.OfDisk(err)
	}
	layer.usage, err = database.UsageOf(ctx, layer.upper)
	return err
}

// holders are the images that have the lock of a chain until they commit its layer.
type holders struct {
	mu sync.Mutex
	of map[string]*batch
	// waiting counts the images that wait for a chain.
	waiting map[string]int
}

// lock takes the lock of a chain. An image that has it commits its layers as soon as it can from then on: its next layer
// may take long to download.
func (u *unpacking) lock(ctx context.Context, chain string) (unlock func(), err error) {
	h := &u.holders
	h.mu.Lock()
	h.waiting[chain]++
	other := h.of[chain]
	h.mu.Unlock()
	if other != nil {
		other.hurry()
	}
	free, err := u.chains.Lock(ctx, chain)
	h.mu.Lock()
	if h.waiting[chain]--; h.waiting[chain] == 0 {
		delete(h.waiting, chain)
	}
	awaited := h.waiting[chain] > 0
	if err == nil && u.batch != nil {
		h.of[chain] = u.batch
	}
	h.mu.Unlock()
	if err != nil {
		return nil, err
	}
	if awaited && u.batch != nil {
		u.batch.hurry()
	}
	return func() {
		h.mu.Lock()
		delete(h.of, chain)
		h.mu.Unlock()
		free()
	}, nil
}
