package image

import (
	"context"
	"crypto/rand"
	"fmt"
	"strings"

	"github.com/containerd/containerd/v2/core/leases"
	"github.com/containerd/containerd/v2/core/metadata/boltutil"
	"github.com/containerd/errdefs"
	"go.etcd.io/bbolt"
)

// Remove implements Store.
func (s *Images) Remove(ctx context.Context, ref string) error {
	ctx = s.ns(ctx)
	removed, err := s.removeRecords(ctx, ref)
	if err != nil {
		return fmt.Errorf("cannot remove image %s: %w", ref, diskError(err))
	}
	if removed {
		s.collect(context.WithoutCancel(ctx))
	}
	return nil
}

func (s *Images) removeRecords(ctx context.Context, ref string) (removed bool, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	e, err := s.findPresent(ref)
	if err != nil || e == nil {
		return false, err
	}
	used := s.uses.count(e.chain) > 0
	going := map[string]bool{}
	for name, id := range s.names {
		if id == e.ID {
			going[name] = true
		}
	}
	s.saveNames(ctx, going)
	err = s.db.Update(func(tx *bbolt.Tx) error {
		ctx := boltutil.WithTransaction(ctx, tx)
		if used {
			if err := s.keepForContainers(ctx, e.chain); err != nil {
				return err
			}
		}
		for name := range going {
			if err := s.images.Delete(ctx, name); err != nil && !errdefs.IsNotFound(err) {
				return err
			}
		}
		return nil
	})
	if err != nil {
		s.saveNames(ctx, nil)
		return false, err
	}
	if used {
		s.uses.orphans[e.chain] = true
	}
	s.forget(e.ID)
	return true, nil
}

// keepForContainers makes a lease that keeps a snapshot which containers use and
// no image does.
func (s *Images) keepForContainers(ctx context.Context, chain string) error {
	lease, err := s.leases.Create(ctx, leases.WithID(rootfsLease+chain))
	if errdefs.IsAlreadyExists(err) {
		return nil
	}
	if err != nil {
		return err
	}
	return s.leases.AddResource(ctx, lease, leases.Resource{ID: chain, Type: snapshotResource})
}

// dropUnused lets go of a snapshot that no container uses any more, if its image
// was removed meanwhile.
func (s *Images) dropUnused(ctx context.Context, chain string) {
	// Closing the store waits for this, and does not end it.
	ctx = context.WithoutCancel(ctx)
	s.mu.Lock()
	var err error
	if s.uses.count(chain) == 0 {
		if err = s.leases.Delete(ctx, leases.Lease{ID: rootfsLease + chain}); err == nil {
			delete(s.uses.orphans, chain)
		}
	}
	s.mu.Unlock()
	switch {
	case err == nil:
		s.collect(ctx)
	case !errdefs.IsNotFound(err):
		s.log.Warn("cannot let go of a removed image's snapshot", "snapshot", chain, "error", err)
	}
}

const (
	workLease   = "work-"
	rootfsLease = "rootfs-"

	snapshotResource = "snapshots/" + snapshotter
)

// withLease runs fn with a lease that keeps all that fn writes from the collector
// until fn has returned. What nothing else keeps then goes away.
func (s *Images) withLease(ctx context.Context, fn func(ctx context.Context) error) error {
	ctx = s.ns(ctx)
	lease, err := s.leases.Create(ctx, leases.WithID(workLease+strings.ToLower(rand.Text())))
	if err != nil {
		return fmt.Errorf("cannot make a lease: %w", diskError(err))
	}
	err = fn(leases.WithLease(ctx, lease.ID))
	// A caller that is gone must not keep the lease.
	ctx = context.WithoutCancel(ctx)
	if deleteErr := s.leases.Delete(ctx, lease); deleteErr != nil && err == nil {
		err = fmt.Errorf("cannot delete a lease: %w", deleteErr)
	}
	if err != nil {
		s.collect(ctx)
	}
	return err
}

// collect removes content and snapshots that no name, lease or container keeps.
func (s *Images) collect(ctx context.Context) {
	if _, err := s.db.GarbageCollect(ctx); err != nil {
		s.log.Warn("cannot collect unused image content", "error", err)
	}
}

// keepSnapshot makes the context's lease keep a snapshot, and tells whether the
// snapshot is there.
func (s *Images) keepSnapshot(ctx context.Context, chain string) (bool, error) {
	id, ok := leases.FromContext(ctx)
	if !ok {
		return false, fmt.Errorf("snapshot %s is looked up without a lease", chain)
	}
	err := s.leases.AddResource(ctx, leases.Lease{ID: id}, leases.Resource{ID: chain, Type: snapshotResource})
	if err != nil {
		return false, fmt.Errorf("cannot lease snapshot %s: %w", chain, diskError(err))
	}
	_, err = s.snapshots.Stat(ctx, chain)
	if errdefs.IsNotFound(err) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("cannot look up snapshot %s: %w", chain, err)
	}
	return true, nil
}
