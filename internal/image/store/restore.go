package store

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/distribution/reference"
	"github.com/opencontainers/go-digest"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/image"
	"github.com/berthrun/berth/internal/image/database"
	"github.com/berthrun/berth/internal/image/downloads"
	"github.com/berthrun/berth/internal/image/lost"
	"github.com/berthrun/berth/internal/image/names"
	"github.com/berthrun/berth/internal/image/progress"
	"github.com/berthrun/berth/internal/image/tree"
)

// SettleLost takes images off the list of lost ones that are back. The list is locked after the store, as by record.
func (s *Store) SettleLost() {
	s.mu.RLock()
	defer s.mu.RUnlock()
	s.lost.Settle(func(key string) bool { return s.names[key] != "" })
}

// noteAbsent notes the layers of a loaded image whose blobs are missing. What is unpacked of them is there.
// Load calls it.
func (s *Store) noteAbsent(ctx context.Context, t *tree.Tree) {
	for _, layer := range t.Layers {
		if !slices.Contains(s.absent, layer.Digest) && s.db.Present(ctx, layer) != nil {
			s.absent = append(s.absent, layer.Digest)
		}
	}
}

// TakeAbsent returns the blobs of layers that Load has found missing, of images that can be used.
func (s *Store) TakeAbsent() []digest.Digest {
	absent := s.absent
	s.absent = nil
	return absent
}

// OnDamage has damaged called with each blob whose file is found damaged while it is read. It must not block.
// Call it before the store is used.
func (s *Store) OnDamage(damaged func(digest.Digest)) { s.damaged = damaged }

// noteDamage reports the damage that an error is about. It returns the error, which then says what berth does about it.
func (s *Store) noteDamage(err error) error {
	var found *database.DamagedError
	if !errors.As(err, &found) {
		return err
	}
	s.damaged(found.Blob)
	return fmt.Errorf("berth fetches damaged content again in the background (berth jobs) if an archive of image.import_dirs or a registry has it: %w", err)
}

// AwaitIdle returns when no pull runs.
func (s *Store) AwaitIdle(ctx context.Context) error { return s.pulls.AwaitIdle(ctx) }

// OnPull has fn called once when a pull begins, at once if one runs, and never after stop. It must not block.
func (s *Store) OnPull(fn func()) (stop func()) { return s.pulls.OnPull(fn) }

// Restore pulls a lost image again, by its digest, with the node's own credentials, and gives it those of its
// names that no other image has got meanwhile. The policy holds as for a pull. Downloads for pods go first.
func (s *Store) Restore(ctx context.Context, gone lost.Image, report func(image.Progress)) error {
	if !s.anyFree(gone.Names) {
		return nil
	}
	ctx = downloads.InBackground(ctx)
	var all Faults
	asked := map[string]bool{}
	for _, key := range gone.Names {
		name, platform := names.OfKey(key)
		named, err := names.Parse(name)
		if err != nil || asked[named.Name()] {
			continue
		}
		asked[named.Name()] = true
		byDigest, err := reference.WithDigest(reference.TrimNamed(named), indexOf(named, platform, gone))
		if err != nil {
			return fmt.Errorf("cannot pull image %s again: %w", name, err)
		}
		want := wanted{rules: s.rules.Load(), platform: platform}
		err = s.pullTo(ctx, byDigest, want, progress.NewMeter(report), func(ctx context.Context, t *tree.Tree, places ...string) error {
			return s.recordFree(ctx, t, gone.Names, places...)
		})
		if err == nil || ctx.Err() != nil {
			return err
		}
		all = append(all, fmt.Errorf("%s: %w", byDigest, keepRefusal(err, image.Auth{})))
	}
	if len(all) == 0 {
		return fmt.Errorf("no name of the image leads to a registry: %w", errs.NotFound)
	}
	return all
}

// indexOf returns the digest by which a lost image is pulled again: that of its target, or, for another platform than the
// node's, that of the index which the repository had, if one of its names has it. A signature may be of the index.
func indexOf(named reference.Named, platform string, gone lost.Image) digest.Digest {
	for _, key := range gone.Names {
		name, of := names.OfKey(key)
		other, err := names.Parse(name)
		if err != nil || platform == "" || of != platform || other.Name() != named.Name() {
			continue
		}
		if by, ok := other.(reference.Digested); ok && by.Digest() != gone.Target.Digest {
			return by.Digest()
		}
	}
	return gone.Target.Digest
}

// anyFree reports whether no image has one of the names.
func (s *Store) anyFree(all []string) bool {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return slices.ContainsFunc(all, func(name string) bool { return s.names[name] == "" })
}

// recordFree is record with those names that no image has.
func (s *Store) recordFree(ctx context.Context, t *tree.Tree, all []string, places ...string) error {
	defer s.db.SaveNames(ctx) // without the lock
	s.mu.Lock()
	defer s.mu.Unlock()
	free := slices.DeleteFunc(slices.Clone(all), func(name string) bool { return s.names[name] != "" })
	if len(free) == 0 {
		return nil
	}
	_, err := s.record(ctx, t, free, false, places...)
	return err
}
