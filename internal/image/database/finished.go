package database

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"sync"

	"github.com/containerd/containerd/v2/core/leases"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
	imagespec "github.com/opencontainers/image-spec/specs-go/v1"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/sys/sysfile"
)

// finished are the blobs that have been fetched and that the database does not know yet. A transaction and a sync for each
// would make a pull of many layers slow, so the blobs of an image are synced and recorded together; see RecordBlobs. A blob is
// recorded only after its sync: a start takes what the database knows for whole if it has the right size. After a kill, and
// after a loss of power, a start records those files that a pull wanted and that have the right digest; see adoptFinished.
type finished struct {
	mu sync.Mutex
	// blobs have the sizes. The collector does not remove their files, nor those of moving: these are about to come to their
	// place, so nothing can record them yet. Their channels are closed when they are there.
	blobs  map[digest.Digest]int64
	moving map[digest.Digest]chan struct{}
	// owners are the leases of pulls that have downloaded documents. Whichever pull records a document, its owner keeps it.
	owners map[digest.Digest]string
	// underWay are the blobs that are being downloaded.
	underWay map[digest.Digest]bool
}

// begin notes that a download of a blob begins. It is false if one is under way.
func (f *finished) begin(blob digest.Digest) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.underWay[blob] {
		return false
	}
	if f.underWay == nil {
		f.underWay = map[digest.Digest]bool{}
	}
	f.underWay[blob] = true
	return true
}

func (f *finished) end(blob digest.Digest) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.underWay, blob)
}

func (f *finished) isUnderWay(blob digest.Digest) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.underWay[blob]
}

// move calls fn, which moves the file of a blob to its place. The blob is finished then. owner is the lease of the pull that has
// downloaded a document, "" for another blob.
func (f *finished) move(blob digest.Digest, size int64, owner string, fn func() error) error {
	moved := make(chan struct{})
	defer close(moved)
	f.mu.Lock()
	if f.moving == nil {
		f.moving, f.owners = map[digest.Digest]chan struct{}{}, map[digest.Digest]string{}
	}
	f.moving[blob] = moved
	f.mu.Unlock()
	err := fn()
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.moving, blob)
	if err != nil {
		return err
	}
	f.put(blob, size)
	if owner != "" {
		f.owners[blob] = owner
	}
	return nil
}

// await returns when the file of a blob is not being moved.
func (f *finished) await(blob digest.Digest) {
	f.mu.Lock()
	moved := f.moving[blob]
	f.mu.Unlock()
	if moved != nil {
		<-moved
	}
}

func (f *finished) add(blob digest.Digest, size int64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.put(blob, size)
}

// put is add for a caller that holds f.mu.
func (f *finished) put(blob digest.Digest, size int64) {
	if f.blobs == nil {
		f.blobs = map[digest.Digest]int64{}
	}
	f.blobs[blob] = size
}

// keeps reports whether the collector leaves the file of a blob alone.
func (f *finished) keeps(blob digest.Digest) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	_, ok := f.blobs[blob]
	return ok || f.moving[blob] != nil
}

// ownedBy returns the documents that the pull with a lease has downloaded, and that are not recorded.
func (f *finished) ownedBy(lease string) (found []digest.Digest) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for blob, owner := range f.owners {
		if owner == lease {
			found = append(found, blob)
		}
	}
	return found
}

// owner is the lease of the pull that has downloaded a document, "" if there is none.
func (f *finished) owner(blob digest.Digest) string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.owners[blob]
}

func (f *finished) has(blob digest.Digest) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	_, ok := f.blobs[blob]
	return ok
}

func (f *finished) drop(all []imagespec.Descriptor) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, one := range all {
		delete(f.blobs, one.Digest)
		delete(f.owners, one.Digest)
	}
}

// among returns those of some blobs that are finished and not recorded.
func (f *finished) among(blobs []digest.Digest) (found []imagespec.Descriptor) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, blob := range blobs {
		if size, ok := f.blobs[blob]; ok {
			found = append(found, imagespec.Descriptor{Digest: blob, Size: size})
		}
	}
	return found
}

// RecordBlobs records those of the blobs that are finished and not recorded yet, and returns an error if the store does not
// have all of them then. The context's lease keeps them, also those that another call has recorded for another lease.
func (d *DB) RecordBlobs(ctx context.Context, blobs []digest.Digest) error {
	unleased := slices.DeleteFunc(slices.Clone(blobs), pullIn(ctx).wants)
	var also func(ctx context.Context) error
	if len(unleased) > 0 {
		also = func(ctx context.Context) error { return d.leaseRecorded(ctx, unleased) }
	}
	if err := d.recordAnd(ctx, blobs, also); err != nil {
		return err
	}
	return d.areRecorded(ctx, blobs)
}

// leaseRecorded has the context's lease keep those of the blobs that the database knows.
func (d *DB) leaseRecorded(ctx context.Context, blobs []digest.Digest) error {
	lease, leased := leases.FromContext(ctx)
	if !leased {
		return nil
	}
	for _, blob := range blobs {
		_, err := d.Content.Info(ctx, blob)
		if err == nil {
			err = d.leaseBlobs(ctx, leases.Lease{ID: lease}, []digest.Digest{blob})
		}
		if err != nil && !errdefs.IsNotFound(err) {
			return err
		}
	}
	return nil
}

// areRecorded returns an error if the database does not know all of the blobs.
func (d *DB) areRecorded(ctx context.Context, blobs []digest.Digest) error {
	for _, blob := range blobs {
		if _, err := d.Content.Info(ctx, blob); errdefs.IsNotFound(err) {
			// Another pull has fetched it, and could not record it, or has removed it at its end.
			return fmt.Errorf("blob %s was removed during the pull; pull the image again: %w", blob, errs.Unavailable)
		} else if err != nil {
			return err
		}
	}
	return nil
}

// RecordFinished records a blob if it is finished and not recorded yet. The context's lease keeps it.
func (d *DB) RecordFinished(ctx context.Context, blob digest.Digest) error {
	d.finished.await(blob)
	return d.recordFinished(ctx, []digest.Digest{blob})
}

// recordFinished is RecordBlobs for those that are finished. The collector removes them if it fails.
func (d *DB) recordFinished(ctx context.Context, blobs []digest.Digest) error {
	return d.recordAnd(ctx, blobs, nil)
}

// recordAnd is recordFinished, and calls also, which may be nil, in the same transaction.
func (d *DB) recordAnd(ctx context.Context, blobs []digest.Digest, also func(ctx context.Context) error) error {
	all := d.finished.among(blobs)
	if len(all) == 0 && also == nil {
		return nil
	}
	err := d.syncBlobs(all) // which may take long: no lock is held
	// The collector looks at the database first, and then at the files: it must see neither state of a blob.
	d.collection.Lock()
	defer d.collection.Unlock()
	// Another call may have recorded some meanwhile, or failed: then their files may be gone.
	all = slices.DeleteFunc(all, func(one imagespec.Descriptor) bool { return !d.finished.has(one.Digest) })
	defer d.finished.drop(all)
	if err == nil {
		err = d.update(ctx, func(ctx context.Context) error {
			for _, one := range all {
				if err := d.recordOne(ctx, one); err != nil {
					return fmt.Errorf("blob %s: %w", one.Digest, err)
				}
			}
			if also == nil {
				return nil
			}
			return also(ctx)
		})
	}
	if err != nil {
		return fmt.Errorf("cannot record what was fetched: %w", errs.OfDisk(err))
	}
	return nil
}

// recordOne records a finished blob. The leases of the context and of the owner keep it.
func (d *DB) recordOne(ctx context.Context, blob imagespec.Descriptor) error {
	if err := d.AdoptBlob(ctx, blob, ""); err != nil {
		return err
	}
	owner := d.finished.owner(blob.Digest)
	if owner == "" {
		return nil
	}
	err := d.leaseBlobs(ctx, leases.Lease{ID: owner}, []digest.Digest{blob.Digest})
	if errdefs.IsNotFound(err) {
		return nil // its pull has ended
	}
	return err
}

// syncers is how many blobs are synced side by side: a disk syncs some together.
const syncers = 4

// syncBlobs returns once the files and names of blobs would survive a loss of power. An image is answered only after that.
func (d *DB) syncBlobs(all []imagespec.Descriptor) error {
	var group errgroup.Group
	group.SetLimit(syncers)
	dirs := map[string]bool{}
	for _, one := range all {
		dirs[filepath.Dir(d.BlobPath(one.Digest))] = true
		group.Go(func() error {
			f, err := d.OpenBlob(one.Digest)
			if err != nil {
				return err
			}
			return errors.Join(unix.Fdatasync(int(f.Fd())), f.Close())
		})
	}
	if err := group.Wait(); err != nil {
		return err
	}
	for dir := range dirs {
		if err := sysfile.SyncDir(dir); err != nil {
			return err
		}
	}
	return nil
}
