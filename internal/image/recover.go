package image

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/containerd/v2/core/leases"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
	imagespec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/berthrun/berth/internal/image/tree"
)

// recover brings the store into a state that a clean end would have left: what a
// killed pull or import made is removed, what a loss of power may have damaged is
// made again, and the index and the uses are read.
func (s *Images) recover(ctx context.Context) error {
	if err := s.checkMarkers(ctx); err != nil {
		return fmt.Errorf("unsynced snapshots: %w", err)
	}
	if err := s.readUses(ctx); err != nil {
		return fmt.Errorf("root filesystems: %w", err)
	}
	if err := s.dropLeases(ctx); err != nil {
		return fmt.Errorf("leases: %w", err)
	}
	if err := s.dropDamagedBlobs(ctx); err != nil {
		return fmt.Errorf("content: %w", err)
	}
	if err := s.readIndex(ctx); err != nil {
		return fmt.Errorf("images: %w", err)
	}
	if err := s.sweep(ctx); err != nil {
		return fmt.Errorf("unused content: %w", err)
	}
	return nil
}

// readUses reads which root filesystems there are, and empties the pool of those that are
// not yet.
func (s *Images) readUses(ctx context.Context) error {
	entries, err := os.ReadDir(s.containersDir())
	if err != nil {
		return err
	}
	for _, entry := range entries {
		var u use
		data, err := os.ReadFile(filepath.Join(s.containerDir(entry.Name()), recordName))
		if err == nil {
			err = json.Unmarshal(data, &u)
		}
		if err != nil {
			// Only a loss of power cuts it short, and no container survives that.
			s.log.Warn("unreadable record of a root filesystem", "key", entry.Name(), "error", err)
		}
		if u.lower, err = s.lowerDirs(ctx, u.Chain); err != nil {
			s.log.Warn("a root filesystem has lost its layers", "key", entry.Name(), "error", err)
		}
		s.uses.add(entry.Name(), u)
	}
	return s.discardPool()
}

// discardPool empties the pool of a process that has ended.
func (s *Images) discardPool() error {
	pool, err := os.ReadDir(s.poolDir())
	if err != nil {
		return err
	}
	for _, entry := range pool {
		if err := s.discard(filepath.Join(s.poolDir(), entry.Name())); err != nil {
			return err
		}
	}
	return nil
}

// dropLeases removes the leases of work that ended with its process, and those of
// snapshots that no container uses any more.
func (s *Images) dropLeases(ctx context.Context) error {
	all, err := s.leases.List(ctx)
	if err != nil {
		return err
	}
	for _, lease := range all {
		if chain, ok := strings.CutPrefix(lease.ID, rootfsLease); ok && s.uses.count(chain) > 0 {
			s.uses.orphans[chain] = true
			continue
		}
		if err := s.leases.Delete(ctx, leases.Lease{ID: lease.ID}); err != nil {
			return err
		}
	}
	return nil
}

// readIndex reads the images that are recorded, and repairs or forgets those that
// have lost something.
func (s *Images) readIndex(ctx context.Context) error {
	records, err := s.images.List(ctx)
	if err != nil {
		return err
	}
	trees := map[string]*tree.Tree{}
	names := map[string][]string{}
	pinned := map[string]bool{}
	lost := map[string]bool{}
	for _, record := range records {
		t, err := s.trees().Read(ctx, record.Name, record.Target, s.intact)
		if err != nil {
			s.log.Warn("an image has lost content and is forgotten; it must be pulled or imported again", "image", record.Name, "error", err)
			lost[record.Name] = true
			continue
		}
		id := t.ID()
		trees[id] = t
		names[id] = append(names[id], record.Name)
		pinned[id] = pinned[id] || record.Labels[pinnedLabel] == pinnedValue
	}
	for id, t := range trees {
		e, err := s.loadOrRepair(ctx, t, names[id], pinned[id])
		if err != nil {
			s.log.Warn("an image cannot be unpacked again and is forgotten", "image", id, "error", err)
			for _, name := range names[id] {
				lost[name] = true
			}
			continue
		}
		s.put(e, names[id])
	}
	return s.forgetRecords(ctx, lost)
}

// dropDamagedBlobs removes blobs whose file a loss of power has emptied, cut or taken: as long as
// the database has them, nothing fetches them again. What is unpacked of them stays in use.
func (s *Images) dropDamagedBlobs(ctx context.Context) error {
	damaged := map[digest.Digest]int64{}
	err := s.content.Walk(ctx, func(info content.Info) error {
		fi, err := os.Stat(s.blobPath(info.Digest))
		switch {
		case errors.Is(err, os.ErrNotExist):
			damaged[info.Digest] = 0
		case err == nil && fi.Size() != info.Size:
			damaged[info.Digest] = fi.Size()
		}
		return nil // what cannot be looked at now may be whole
	})
	if err != nil {
		return err
	}
	for dgst, size := range damaged {
		s.log.Warn("a blob is damaged on disk and is removed; the next pull or import of its image brings it again", "blob", dgst, "bytes_on_disk", size)
		// The file goes, too: what is fetched is not written over one that is there.
		if err := s.content.Delete(ctx, dgst); err != nil && !errdefs.IsNotFound(err) {
			return err
		}
		if err := os.Remove(s.blobPath(dgst)); err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
	}
	return nil
}

// forgetRecords removes names of images that are not whole.
func (s *Images) forgetRecords(ctx context.Context, lost map[string]bool) error {
	if len(lost) > 0 {
		s.saveNames(ctx, lost)
	}
	for name := range lost {
		if err := s.images.Delete(ctx, name); err != nil {
			return err
		}
	}
	return nil
}

// intact is the provide that looks at the blob itself: a database says nothing
// about what a disk has lost.
func (s *Images) intact(ctx context.Context, desc imagespec.Descriptor) error {
	if err := s.present(ctx, desc); err != nil {
		return err
	}
	fi, err := os.Stat(s.blobPath(desc.Digest))
	if err != nil {
		return err
	}
	if fi.Size() != desc.Size {
		return fmt.Errorf("blob %s has %d bytes on disk, want %d", desc.Digest, fi.Size(), desc.Size)
	}
	return nil
}

// loadOrRepair loads an image, after unpacking again what is missing of it.
func (s *Images) loadOrRepair(ctx context.Context, t *tree.Tree, names []string, pinned bool) (*entry, error) {
	e, err := s.load(ctx, t, names, pinned)
	if err == nil {
		err = s.layersExist(e.lower)
	}
	if err == nil {
		return e, nil
	}
	s.log.Warn("an image has lost layers and is unpacked again", "image", t.ID(), "error", err)
	for _, chain := range t.Chains() {
		dirs, err := s.lowerDirs(ctx, chain)
		if err == nil {
			err = s.layersExist(dirs)
		}
		if err != nil {
			if err := s.removeSnapshot(ctx, chain); err != nil {
				return nil, err
			}
			break
		}
	}
	err = s.withLease(ctx, func(ctx context.Context) error {
		ready := func(ctx context.Context, i int) error { return s.intact(ctx, t.Layers[i]) }
		return s.unpackLayers(ctx, t, ready, func(int64) {})
	})
	if err != nil {
		return nil, err
	}
	return s.load(ctx, t, names, pinned)
}

func (s *Images) layersExist(lower []string) error {
	for _, dir := range lower {
		if _, err := os.Stat(filepath.Join(s.layersDir(), dir)); err != nil {
			return err
		}
	}
	return nil
}

// sweep removes content and snapshots that are not, or not completely, recorded.
// The collector looks at the disk only where it has removed something: so it is
// given something to remove in each place.
func (s *Images) sweep(ctx context.Context) error {
	probe := []byte("swept at start\n")
	desc := imagespec.Descriptor{Digest: digest.FromBytes(probe), Size: int64(len(probe))}
	if err := content.WriteBlob(ctx, s.content, "sweep", bytes.NewReader(probe), desc); err != nil {
		return err
	}
	if _, err := s.snapshots.Prepare(ctx, "sweep", ""); err != nil && !errdefs.IsAlreadyExists(err) {
		return err
	}
	if _, err := s.db.GarbageCollect(ctx); err != nil {
		return err
	}
	return s.dropMounts()
}

// dropMounts removes mount points whose directory is gone: a release was cut
// short.
func (s *Images) dropMounts() error {
	var errList []error
	for _, dir := range []string{s.mountsDir(), s.mappedDir()} {
		entries, err := os.ReadDir(dir)
		if err != nil {
			return err
		}
		for _, entry := range entries {
			if _, ok := s.uses.get(entry.Name()); !ok {
				errList = append(errList, s.release(entry.Name()))
			}
		}
	}
	return errors.Join(errList...)
}
