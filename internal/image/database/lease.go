package database

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/containerd/containerd/v2/core/leases"
	"github.com/containerd/errdefs"

	"github.com/berthrun/berth/internal/errs"
)

const (
	workLease   = "work-"
	rootfsLease = "rootfs-"

	snapshotResource = "snapshots/" + snapshotter
	contentResource  = "content"
)

// newLease is a new name of a lease.
func newLease(kind string) string { return kind + strings.ToLower(rand.Text()) }

// WithLease runs fn with a lease that keeps all that fn writes from the collector
// until fn has returned. Then garbage collection removes all that has no other reference.
func (d *DB) WithLease(ctx context.Context, fn func(ctx context.Context) error) error {
	ctx = WithNamespace(ctx)
	lease, err := d.Leases.Create(ctx, leases.WithID(newLease(workLease)))
	if err != nil {
		return fmt.Errorf("cannot make a lease: %w", errs.OfDisk(err))
	}
	err = fn(leases.WithLease(ctx, lease.ID))
	// The lease is removed also when the caller's context has ended.
	ctx = context.WithoutCancel(ctx)
	if deleteErr := d.Leases.Delete(ctx, lease); deleteErr != nil && err == nil {
		err = fmt.Errorf("cannot delete a lease: %w", deleteErr)
	}
	if err != nil {
		d.Collect(ctx)
	}
	return err
}

// Collect removes content and snapshots that no name, lease or container keeps.
func (d *DB) Collect(ctx context.Context) {
	if err := d.collect(ctx); err != nil {
		d.log.Warn("cannot collect unused image content", "error", err)
	}
	d.retryNames(ctx) // there may be room now
}

func (d *DB) collect(ctx context.Context) error {
	d.collection.Lock()
	defer d.collection.Unlock()
	_, err := d.db.GarbageCollect(ctx)
	return errors.Join(err, d.dropOldDownloads())
}

// KeepSnapshot makes the context's lease keep a snapshot, and reports whether the
// snapshot is there.
func (d *DB) KeepSnapshot(ctx context.Context, chain string) (bool, error) {
	id, ok := leases.FromContext(ctx)
	if !ok {
		return false, fmt.Errorf("snapshot %s is looked up without a lease", chain)
	}
	err := d.Leases.AddResource(ctx, leases.Lease{ID: id}, leases.Resource{ID: chain, Type: snapshotResource})
	if err != nil {
		return false, fmt.Errorf("cannot lease snapshot %s: %w", chain, errs.OfDisk(err))
	}
	return d.HasSnapshot(ctx, chain)
}

// HasSnapshot reports whether a snapshot is there.
func (d *DB) HasSnapshot(ctx context.Context, chain string) (bool, error) {
	_, err := d.Snapshots.Stat(ctx, chain)
	if errdefs.IsNotFound(err) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("cannot look up snapshot %s: %w", chain, err)
	}
	return true, nil
}

// KeepForContainers makes a lease that keeps a snapshot which containers use and
// no image does.
func (d *DB) KeepForContainers(ctx context.Context, chain string) error {
	_, err := d.Leases.Create(ctx, leases.WithID(rootfsLease+chain))
	if errdefs.IsAlreadyExists(err) {
		return nil
	}
	if err != nil {
		return err
	}
	return d.keepLeased(ctx, chain)
}

// keepLeased has the lease of KeepForContainers keep its snapshot.
func (d *DB) keepLeased(ctx context.Context, chain string) error {
	return d.Leases.AddResource(ctx, leases.Lease{ID: rootfsLease + chain}, leases.Resource{ID: chain, Type: snapshotResource})
}

// keepsLeased reports whether it does. A changed bit in the database may have taken the snapshot from it.
func (d *DB) keepsLeased(ctx context.Context, chain string) (bool, error) {
	all, err := d.Leases.ListResources(ctx, leases.Lease{ID: rootfsLease + chain})
	return slices.Contains(all, leases.Resource{ID: chain, Type: snapshotResource}), err
}

// DropWork removes the leases of work that ended with its process. What pulls have finished stays; see WithPull. If it cannot, a
// later pull fetches it again.
func (d *DB) DropWork(ctx context.Context) error {
	all, err := d.Leases.List(ctx)
	if err != nil {
		return err
	}
	for _, lease := range all {
		switch {
		case isLeftover(lease), strings.HasPrefix(lease.ID, rootfsLease):
		case strings.HasPrefix(lease.ID, pullLease):
			d.adoptFinished(ctx, lease)
			d.makeLeftover(ctx, lease)
		default:
			if err := d.Leases.Delete(ctx, lease); err != nil {
				return err
			}
		}
	}
	d.limitLeftovers(ctx)
	return nil
}

// DropUnheld removes the leases of snapshots that no container uses any more. It returns the snapshots whose leases stay.
func (d *DB) DropUnheld(ctx context.Context, used func(chain string) bool) (kept []string, err error) {
	all, err := d.Leases.List(ctx)
	if err != nil {
		return nil, err
	}
	for _, lease := range all {
		chain, ok := strings.CutPrefix(lease.ID, rootfsLease)
		switch {
		case !ok:
			continue
		case !used(chain):
			err = d.Leases.Delete(ctx, lease)
		default:
			kept = append(kept, chain)
			var keeps bool
			if keeps, err = d.keepsLeased(ctx, chain); err == nil && !keeps {
				err = d.keepLeased(ctx, chain)
			}
		}
		if err != nil {
			return nil, err
		}
	}
	return kept, nil
}

// DropForContainers removes the lease of KeepForContainers. The error is errdefs.ErrNotFound if
// there is none.
func (d *DB) DropForContainers(ctx context.Context, chain string) error {
	return d.Leases.Delete(ctx, leases.Lease{ID: rootfsLease + chain})
}
