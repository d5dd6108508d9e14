package database

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/containerd/containerd/v2/core/leases"
	"github.com/containerd/containerd/v2/core/metadata/boltutil"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
	imagespec "github.com/opencontainers/image-spec/specs-go/v1"
	"go.etcd.io/bbolt"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/image/tree"
)

// A pull that fails, and after which a later one may succeed, leaves the blobs that it has finished, also after a crash: the
// leftover. The lease of the pull becomes that of the leftover at its end, or at the next start: of the blobs alone, since
// the layers can be unpacked again, and with a time of expiry, which the collector respects. There is one for each name and
// manifest: each expires by itself. The next pull of the manifest, by any name, uses the blobs.
const (
	pullLease     = "pull-"
	leftoverLease = "leftover-"

	// leftoverTime is how long a leftover stays for the next pull.
	leftoverTime = 24 * time.Hour
	// maxLeftovers bounds the bytes of all together. The oldest go first, and the newest stays in any case.
	maxLeftovers = 8 << 30

	// pulledLabel is what is pulled: a key of names.Key.
	pulledLabel = "run.berth.pulled"
	expireLabel = "containerd.io/gc.expire"
	// flatLabel has a lease keep nothing but its own resources: the config of an image may name its layers.
	flatLabel = "containerd.io/gc.flat"
)

// Pull is a pull under way.
type Pull struct {
	db    *DB
	lease leases.Lease
	key   string
	// documents are those that ReadTree has asked for before Wants. It records those that the pull has fetched, together.
	documents []digest.Digest
	// manifest is that of the image, "" before Wants.
	manifest digest.Digest
	// blobs are those that the lease names since Wants.
	blobs []digest.Digest
	// ended is set when the lease has ended with the records of the image; see WriteRecords.
	ended bool
}

type pullKey struct{}

// pullIn returns the pull that has a context, nil if none has.
func pullIn(ctx context.Context) *Pull {
	p, _ := ctx.Value(pullKey{}).(*Pull)
	return p
}

// wants reports whether a pull, which may be nil, wants a blob.
func (p *Pull) wants(blob digest.Digest) bool { return p != nil && slices.Contains(p.blobs, blob) }

// isDocument reports whether a blob is a document of the image of a pull, which may be nil, before Wants.
func (p *Pull) isDocument(blob digest.Digest) bool {
	return p != nil && p.manifest == "" && slices.Contains(p.documents, blob)
}

// noting is provide, and notes the documents of the image of a pull, which may be nil.
func (p *Pull) noting(provide tree.Provide) tree.Provide {
	if p == nil || p.manifest != "" {
		return provide
	}
	return func(ctx context.Context, desc imagespec.Descriptor) error {
		p.documents = append(p.documents, desc.Digest)
		return provide(ctx, desc)
	}
}

// Leftover is what a failed pull leaves for the next one.
type Leftover struct {
	// Key is the name that was pulled; see names.Key.
	Key string
	// At is the end of the pull, or the start after it. Expires is when the collector may remove the blobs.
	At, Expires time.Time
	// Blobs are those of the image, as far as the pull had come to know them. The store need not have all.
	Blobs []digest.Digest
	lease leases.Lease
}

// WithPull is WithLease for a pull of key; see names.Key. If fn fails and again says that the next pull may succeed, the
// blobs that are complete stay for it. A pull that succeeds leaves nothing that its image does not use.
func (d *DB) WithPull(ctx context.Context, key string, again func(error) bool, fn func(ctx context.Context, p *Pull) error) error {
	ctx = WithNamespace(ctx)
	lease, err := d.Leases.Create(ctx, leases.WithID(newLease(pullLease)), leases.WithLabels(map[string]string{pulledLabel: key}))
	if err != nil {
		return fmt.Errorf("cannot make a lease: %w", errs.OfDisk(err))
	}
	p := &Pull{db: d, lease: lease, key: key}
	err = fn(context.WithValue(leases.WithLease(ctx, lease.ID), pullKey{}, p), p)
	// The lease ends also when the caller's context has ended.
	ctx = context.WithoutCancel(ctx)
	keeping := ctx
	if !p.ended { // else the names keep what the image needs
		keeping = leases.WithLease(ctx, lease.ID)
	}
	if recordErr := d.recordFinished(keeping, slices.Concat(d.finished.ownedBy(lease.ID), p.blobs)); recordErr != nil {
		d.log.Warn("cannot record what a pull has fetched; a later one fetches it again", "image", key, "error", recordErr)
	}
	if p.ended {
		if p.dropEarlier(ctx, err == nil) || err != nil {
			d.Collect(ctx)
		}
		return err
	}
	stale := false
	if err != nil && again(err) {
		d.makeLeftover(ctx, lease)
		d.limitLeftovers(ctx)
	} else {
		d.endPull(ctx, lease)
		stale = p.dropEarlier(ctx, err == nil)
	}
	if err != nil || stale {
		d.Collect(ctx)
	}
	return err
}

// end removes the lease of a pull, which may be nil, in the context's transaction.
func (p *Pull) end(ctx context.Context) error {
	if p == nil {
		return nil
	}
	return p.db.Leases.Delete(ctx, p.lease)
}

// makeLeftover is writeLeftover. If that fails, the lease ends: it would keep also what is unpacked, until the next start.
func (d *DB) makeLeftover(ctx context.Context, lease leases.Lease) {
	if err := d.writeLeftover(ctx, lease); err != nil {
		d.log.Warn("cannot keep the leftover of a pull; the next one fetches all again", "image", lease.Labels[pulledLabel], "error", err)
		d.endPull(ctx, lease)
	}
}

// endPull removes the lease of a pull. A failure changes nothing about the outcome of the pull.
func (d *DB) endPull(ctx context.Context, lease leases.Lease) {
	if err := d.Leases.Delete(ctx, lease); err != nil && !errdefs.IsNotFound(err) {
		d.log.Warn("cannot delete the lease of a pull; the next start tries it again", "image", lease.Labels[pulledLabel], "error", err)
	}
}

// dropEarlier drops the leftovers of earlier pulls: after a success those of the same name or manifest. After a failure for
// good, those of the name, if the pull got as far as to use them. Leftovers of other names stay for their clients, unless a
// blob is damaged: all pulls of the manifest would fail.
func (p *Pull) dropEarlier(ctx context.Context, succeeded bool) (dropped bool) {
	if p.manifest == "" {
		return false
	}
	dropped, _, err := p.db.DropLeftovers(ctx, func(k Leftover) bool {
		return k.Key == p.key || slices.Contains(k.Blobs, p.manifest) && (succeeded || p.db.damaged(ctx, k.Blobs))
	})
	if err != nil {
		p.db.log.Warn("cannot drop the leftovers of earlier pulls", "image", p.key, "error", err)
	}
	return dropped
}

// Wants has the lease name all blobs of the image, also those of leftovers. So a start knows what a killed
// pull had finished. It records the documents of the image.
func (p *Pull) Wants(ctx context.Context, t *tree.Tree) error {
	var blobs []digest.Digest
	for _, desc := range slices.Concat([]imagespec.Descriptor{t.Target, t.Manifest, t.Config}, t.Indexes, t.Through, t.Layers) {
		blobs = append(blobs, desc.Digest)
	}
	err := p.db.recordAnd(ctx, p.documents, func(ctx context.Context) error { return p.db.leaseBlobs(ctx, p.lease, blobs) })
	if err != nil {
		return fmt.Errorf("cannot lease the blobs of an image: %w", err)
	}
	p.manifest, p.blobs = t.Manifest.Digest, blobs
	return p.db.areRecorded(ctx, p.documents)
}

// Record records the blobs of the image's layers that the pull has fetched; see RecordBlobs.
func (p *Pull) Record(ctx context.Context) error { return p.db.recordFinished(ctx, p.blobs) }

func (d *DB) leaseBlobs(ctx context.Context, lease leases.Lease, blobs []digest.Digest) error {
	for _, blob := range blobs {
		if err := d.Leases.AddResource(ctx, lease, leases.Resource{ID: blob.String(), Type: contentResource}); err != nil {
			return err
		}
	}
	return nil
}

// writeLeftover makes a leftover of the blobs of a pull. It takes the place of those of the same name with nothing else. Nothing
// stays of a pull that has finished no blob.
func (d *DB) writeLeftover(ctx context.Context, lease leases.Lease) error {
	blobs, err := d.blobsOf(ctx, lease)
	if err != nil {
		return err
	}
	finished := slices.ContainsFunc(blobs, func(blob digest.Digest) bool {
		_, err := d.Content.Info(ctx, blob)
		return err == nil
	})
	key := lease.Labels[pulledLabel]
	if !finished || key == "" {
		return d.Leases.Delete(ctx, lease)
	}
	all, err := d.Leftovers(ctx)
	if err != nil {
		return err
	}
	err = d.db.Update(func(tx *bbolt.Tx) error {
		ctx := boltutil.WithTransaction(ctx, tx)
		for _, k := range all {
			more := slices.ContainsFunc(k.Blobs, func(blob digest.Digest) bool { return !slices.Contains(blobs, blob) })
			if k.Key != key || more {
				continue
			}
			if err := d.Leases.Delete(ctx, k.lease); err != nil && !errdefs.IsNotFound(err) {
				return err
			}
		}
		leftover, err := d.Leases.Create(ctx, leases.WithID(newLease(leftoverLease)), leases.WithLabels(map[string]string{
			pulledLabel: key, flatLabel: "true", expireLabel: time.Now().Add(leftoverTime).UTC().Format(time.RFC3339),
		}))
		if err != nil {
			return err
		}
		if err := d.leaseBlobs(ctx, leftover, blobs); err != nil {
			return err
		}
		return d.Leases.Delete(ctx, lease)
	})
	if err != nil {
		return fmt.Errorf("cannot write the lease of a leftover: %w", errs.OfDisk(err))
	}
	return nil
}

// isLeftover reports whether a lease is that of a leftover. The collector would keep what has no time of expiry forever.
func isLeftover(lease leases.Lease) bool {
	_, err := time.Parse(time.RFC3339, lease.Labels[expireLabel])
	return strings.HasPrefix(lease.ID, leftoverLease) && err == nil
}

// Leftovers lists those of all pulls, the newest first.
func (d *DB) Leftovers(ctx context.Context) ([]Leftover, error) {
	list, err := d.Leases.List(ctx)
	if err != nil {
		return nil, fmt.Errorf("cannot list the leftovers of failed pulls: %w", err)
	}
	var all []Leftover
	for _, lease := range list {
		if !isLeftover(lease) {
			continue
		}
		k := Leftover{Key: lease.Labels[pulledLabel], At: lease.CreatedAt, lease: lease}
		if k.Expires, err = time.Parse(time.RFC3339, lease.Labels[expireLabel]); err != nil {
			return nil, err
		}
		k.Blobs, err = d.blobsOf(ctx, lease)
		if errdefs.IsNotFound(err) {
			continue // it has ended meanwhile
		}
		if err != nil {
			return nil, err
		}
		all = append(all, k)
	}
	slices.SortFunc(all, func(a, b Leftover) int { return b.At.Compare(a.At) })
	return all, nil
}

func (d *DB) blobsOf(ctx context.Context, lease leases.Lease) ([]digest.Digest, error) {
	resources, err := d.Leases.ListResources(ctx, lease)
	if err != nil {
		return nil, fmt.Errorf("cannot list what a lease keeps: %w", err)
	}
	var blobs []digest.Digest
	for _, r := range resources {
		if dgst := digest.Digest(r.ID); r.Type == contentResource && dgst.Validate() == nil {
			blobs = append(blobs, dgst)
		}
	}
	return blobs, nil
}

// DropLeftovers drops those for which drop says so, and returns whether there was one. The next collection removes the blobs.
// Their unfinished downloads stay: unwanted are the blobs that no pull under way wants; see AbortDownload.
func (d *DB) DropLeftovers(ctx context.Context, drop func(Leftover) bool) (dropped bool, unwanted []digest.Digest, err error) {
	all, err := d.Leftovers(ctx)
	if err != nil || len(all) == 0 {
		return false, nil, err
	}
	wanted := map[digest.Digest]bool{}
	if err := d.blobsOfPulls(ctx, wanted); err != nil {
		return false, nil, err
	}
	for _, k := range all {
		if !drop(k) {
			continue
		}
		if err := d.Leases.Delete(ctx, k.lease); err != nil && !errdefs.IsNotFound(err) {
			return dropped, unwanted, fmt.Errorf("cannot drop the leftover of a pull of %s: %w", k.Key, err)
		}
		dropped = true
		for _, blob := range k.Blobs {
			if !wanted[blob] {
				unwanted = append(unwanted, blob)
			}
		}
	}
	return dropped, unwanted, nil
}

// blobsOfPulls adds those that pulls under way want.
func (d *DB) blobsOfPulls(ctx context.Context, found map[digest.Digest]bool) error {
	list, err := d.Leases.List(ctx)
	if err != nil {
		return fmt.Errorf("cannot list pulls under way: %w", err)
	}
	for _, lease := range list {
		if !strings.HasPrefix(lease.ID, pullLease) {
			continue
		}
		blobs, err := d.blobsOf(ctx, lease)
		if err != nil && !errdefs.IsNotFound(err) { // it may have ended
			return err
		}
		for _, blob := range blobs {
			found[blob] = true
		}
	}
	return nil
}

// limitLeftovers is boundLeftovers. If that fails, the leftovers expire later.
func (d *DB) limitLeftovers(ctx context.Context) {
	if err := d.boundLeftovers(ctx, maxLeftovers); err != nil {
		d.log.Warn("cannot bound the leftovers of failed pulls", "error", err)
	}
}

// boundLeftovers drops the oldest if all together have more than bound bytes.
func (d *DB) boundLeftovers(ctx context.Context, bound int64) error {
	all, err := d.sizes(ctx)
	if err != nil {
		return err
	}
	var bytes int64
	excess := map[string]bool{}
	for i, k := range all {
		bytes += k.finished
		excess[k.lease.ID] = i > 0 && bytes > bound
	}
	_, _, err = d.DropLeftovers(ctx, func(k Leftover) bool { return excess[k.lease.ID] })
	return err
}

// LeftoverBytes is how many bytes the disk gets back if all leftovers are dropped: of finished blobs, and of unfinished
// downloads of others.
func (d *DB) LeftoverBytes(ctx context.Context) (finished, unfinished int64, err error) {
	all, err := d.sizes(ctx)
	for _, k := range all {
		finished, unfinished = finished+k.finished, unfinished+k.unfinished
	}
	return finished, unfinished, err
}

// sized is a leftover and its bytes.
type sized struct {
	Leftover
	finished, unfinished int64
}

// sizes is Leftovers with the bytes of each. It leaves out the blobs of newer ones, of images and of pulls under way, and those
// that are used in place.
func (d *DB) sizes(ctx context.Context) ([]sized, error) {
	all, err := d.Leftovers(ctx)
	if err != nil || len(all) == 0 {
		return nil, err
	}
	counted, err := d.blobsOfImages(ctx)
	if err != nil {
		return nil, err
	}
	if err := d.blobsOfPulls(ctx, counted); err != nil {
		return nil, err
	}
	ingests, err := d.ingests()
	if err != nil {
		return nil, err
	}
	downloads := map[string]int64{}
	for _, one := range ingests {
		downloads[one.ref] = one.bytes
	}
	own := make([]sized, len(all))
	for i, k := range all {
		own[i].Leftover = k
		for _, blob := range k.Blobs {
			if counted[blob] {
				continue
			}
			counted[blob] = true
			info, err := d.Content.Info(ctx, blob)
			switch {
			case err != nil:
				own[i].unfinished += downloads[downloadRef+blob.String()]
			case PreloadedFrom(info) == "":
				own[i].finished += info.Size
			}
		}
	}
	return own, nil
}

// blobsOfImages are those that the records of images lead to.
func (d *DB) blobsOfImages(ctx context.Context) (map[digest.Digest]bool, error) {
	records, err := d.Images.List(ctx)
	if err != nil {
		return nil, fmt.Errorf("cannot list images: %w", err)
	}
	found := map[digest.Digest]bool{}
	var left []digest.Digest
	for _, record := range records {
		left = append(left, record.Target.Digest)
	}
	for len(left) > 0 {
		blob := left[len(left)-1]
		left = left[:len(left)-1]
		if found[blob] {
			continue
		}
		found[blob] = true
		info, err := d.Content.Info(ctx, blob)
		if err != nil {
			continue // it is missing
		}
		for label, value := range info.Labels {
			if strings.HasPrefix(label, contentRefLabel) {
				left = append(left, digest.Digest(value))
			}
		}
	}
	return found, nil
}

// adoptFinished adds to the content store the blobs of a killed pull whose file is complete and which the database does not
// know: a pull moves the file of a blob to its place when it is fetched, and records the blobs together. A blob that it
// cannot add is fetched again.
func (d *DB) adoptFinished(ctx context.Context, lease leases.Lease) {
	blobs, err := d.blobsOf(ctx, lease)
	if err != nil {
		d.log.Warn("cannot find what a killed pull had finished", "image", lease.Labels[pulledLabel], "error", err)
	}
	for _, blob := range blobs {
		if _, err := d.Content.Info(ctx, blob); !errdefs.IsNotFound(err) {
			continue
		}
		if size, ok := d.verified(blob); ok {
			d.finished.add(blob, size)
		}
	}
	if err := d.recordFinished(leases.WithLease(ctx, lease.ID), blobs); err != nil {
		d.log.Warn("cannot adopt the blobs that a killed pull had finished", "image", lease.Labels[pulledLabel], "error", err)
	}
}

// verified returns the size of a blob's file, and whether it is a regular file with the right digest. Any other is fetched
// again.
func (d *DB) verified(blob digest.Digest) (int64, bool) {
	if fi, err := os.Lstat(d.BlobPath(blob)); err != nil || !fi.Mode().IsRegular() {
		return 0, false
	}
	f, err := d.OpenBlob(blob)
	if err != nil {
		return 0, false
	}
	return sumOfFile(f, blob)
}

// sumOfFile returns the size of a file, which it closes, and whether it has the digest of a blob.
func sumOfFile(f *os.File, blob digest.Digest) (int64, bool) {
	verifier := blob.Verifier()
	size, err := io.Copy(verifier, f)
	err = errors.Join(err, f.Close())
	return size, err == nil && verifier.Verified()
}

// damaged reports whether the store has one of these blobs with a damaged file.
func (d *DB) damaged(ctx context.Context, blobs []digest.Digest) bool {
	return slices.ContainsFunc(blobs, func(blob digest.Digest) bool {
		if info, err := d.Content.Info(ctx, blob); err != nil || PreloadedFrom(info) != "" {
			return false
		}
		_, ok := d.verified(blob)
		return !ok
	})
}
