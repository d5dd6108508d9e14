package snapshotters

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"time"

	"github.com/containerd/containerd/v2/core/snapshots"
	"github.com/containerd/errdefs"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/image"
)

// retryAfter is the pause after a collection that has failed.
const retryAfter = time.Minute

// Users are what snapshots are for.
type Users interface {
	// Tops are the chains of the topmost layers of the images that a snapshotter has.
	Tops(snapshotter string) map[string]bool
	// Lost is called with one of them that the snapshotter does not have any more.
	Lost(ctx context.Context, snapshotter, chain string)
	// HasRootfs reports whether a container has, or is getting, a root filesystem.
	HasRootfs(key string) bool
}

// Run removes the snapshots that nothing uses, now and after each Wake, until ctx ends. No snapshotter waits for another one,
// and one that does not answer is tried again later. It calls users from several goroutines.
func (s *Set) Run(ctx context.Context, users Users) {
	var group sync.WaitGroup
	for _, one := range s.byName {
		group.Go(func() {
			errs.Protect("removal of unused snapshots of "+one.Name, func() { one.run(ctx, users, s.log) })
		})
	}
	group.Wait()
}

// run is Run of one snapshotter.
func (s *Snapshotter) run(ctx context.Context, users Users, log *slog.Logger) {
	for {
		var again <-chan time.Time
		if err := s.collect(ctx, users); err != nil && ctx.Err() == nil {
			log.Warn("cannot remove unused snapshots; trying again later", "snapshotter", s.Name, "error", errs.Message(err))
			again = time.After(retryAfter)
		}
		select {
		case <-ctx.Done():
			return
		case <-again:
		case <-s.wake:
		}
	}
}

// Wake has Run remove what is not used any more. It does not wait for that.
func (s *Set) Wake() {
	for _, one := range s.byName {
		select {
		case one.wake <- struct{}{}:
		default:
		}
	}
}

// collect removes the snapshots of a snapshotter that nothing uses, and reports lost layers.
func (s *Snapshotter) collect(ctx context.Context, users Users) error {
	found := map[string]snapshots.Info{}
	err := s.call(ctx, callTimeout, "list snapshots", func(ctx context.Context) error {
		return s.remote.Walk(ctx, func(_ context.Context, info snapshots.Info) error {
			if strings.HasPrefix(info.Name, s.prefix) {
				found[info.Name] = info
			}
			return nil
		})
	})
	var away *image.AwayError
	if errors.As(err, &away) {
		return err
	}
	// One without data has no list: containerd's servers return an error without a kind. It is new, as stargz-snapshotter
	// before its first snapshot, or it has lost them all.
	s.listed = s.listed || err == nil
	isNew := !s.listed && len(users.Tops(s.Name)) == 0
	if lostErr := s.reportLost(ctx, users, found); lostErr != nil || err != nil && !errdefs.IsNotFound(err) && !isNew {
		return errors.Join(err, lostErr)
	}
	var list []error
	for removed := true; removed && ctx.Err() == nil; { // each time what nothing is above
		removed = false
		for _, name := range tops(found) {
			gone, err := s.removeUnused(ctx, users, found, name)
			if gone {
				delete(found, name)
			}
			removed = removed || gone
			list = append(list, err)
		}
	}
	return errors.Join(append(list, s.cleanUp(ctx))...)
}

// cleanUp has the snapshotter remove the files of removed snapshots: stargz-snapshotter and others keep them until then.
func (s *Snapshotter) cleanUp(ctx context.Context) error {
	cleaner, ok := s.remote.(snapshots.Cleaner)
	if !ok {
		return nil
	}
	err := s.call(ctx, cleanupTimeout, "remove the files of removed snapshots", cleaner.Cleanup)
	if errdefs.IsNotImplemented(err) {
		return nil
	}
	return err
}

// reportLost reports the topmost layers of images that the snapshotter does not have. One that was added after found was
// listed is there.
func (s *Snapshotter) reportLost(ctx context.Context, users Users, found map[string]snapshots.Info) error {
	for chain := range users.Tops(s.Name) {
		if _, ok := found[s.prefix+chain]; ok {
			continue
		}
		there, err := s.has(ctx, s.prefix+chain)
		if err != nil {
			return err
		}
		if !there {
			users.Lost(ctx, s.Name, chain)
		}
	}
	return nil
}

// tops lists the snapshots that are no parent of another one.
func tops(found map[string]snapshots.Info) []string {
	parents := map[string]bool{}
	for _, info := range found {
		parents[info.Parent] = true
	}
	var names []string
	for name := range found {
		if !parents[name] {
			names = append(names, name)
		}
	}
	return names
}

// removeUnused removes a snapshot unless something uses it. No pull begins to use it meanwhile.
func (s *Snapshotter) removeUnused(ctx context.Context, users Users, found map[string]snapshots.Info, name string) (bool, error) {
	unlock, err := s.gate.Lock(ctx, "")
	if err != nil {
		return false, err
	}
	defer unlock()
	if s.used(users, found, name) {
		return false, nil
	}
	err = s.remove(ctx, name)
	return err == nil, err
}

// used reports whether a pull, an image or a container uses a snapshot. s.gate is held: a pull records its image before it
// stops being busy.
func (s *Snapshotter) used(users Users, found map[string]snapshots.Info, name string) bool {
	own := strings.TrimPrefix(name, s.prefix)
	if key, ok := strings.CutPrefix(own, rootfsPrefix); ok {
		return users.HasRootfs(key)
	}
	chain, extract := strings.CutPrefix(own, extractPrefix)
	if s.busy[chain] > 0 {
		return true
	}
	if extract {
		return false
	}
	for top := range users.Tops(s.Name) {
		for at := s.prefix + top; at != ""; at = found[at].Parent {
			if at == name {
				return true
			}
		}
	}
	return false
}
