package pod

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/berthrun/berth/internal/errs"
)

// Berth itself never makes two records of one name. A state directory that was restored or
// copied by hand can have them, and so can tombstones of which the machine lost the last batch.

// rivalGrace is how long a running container may take to stop that another one of its name
// replaces.
const rivalGrace = 10 * time.Second

// prior orders sandboxes of one name: the one that is ready keeps it, and of several the newest.
func (r *SandboxRecord) prior(other *SandboxRecord) int {
	return cmp.Or(cmp.Compare(other.rank(), r.rank()), cmp.Compare(other.CreatedAt, r.CreatedAt), cmp.Compare(other.ID, r.ID))
}

func (r *SandboxRecord) rank() int {
	switch r.State {
	case SandboxReady:
		return 2
	case SandboxStopping, SandboxStopped:
		return 1
	case SandboxCreating, SandboxRemoving:
	}
	return 0
}

// prior orders containers of one name: the one that runs keeps it, then the one that can, and
// of several the newest.
func (r *ContainerRecord) prior(other *ContainerRecord) int {
	return cmp.Or(cmp.Compare(other.rank(), r.rank()), cmp.Compare(other.CreatedAt, r.CreatedAt), cmp.Compare(other.ID, r.ID))
}

func (r *ContainerRecord) rank() int {
	switch {
	case r.Removing || r.State == ContainerCreating:
		return 0
	case r.alive():
		return 3
	case r.State == ContainerCreated:
		return 2
	}
	return 1
}

// endRivals stops what has the name of another record, which keeps it. What is stopped stays
// until it is removed by its id.
func (s *Service) endRivals(ctx context.Context) {
	for _, ids := range s.sandboxes.Shared() {
		for _, id := range ids[1:] {
			errs.Protect("end of sandbox "+id, func() { s.endRivalSandbox(ctx, id, ids[0]) })
		}
	}
	for _, ids := range s.containers.Shared() {
		for _, id := range ids[1:] {
			errs.Protect("end of container "+id, func() { s.endRivalContainer(ctx, id, ids[0]) })
		}
	}
}

func (s *Service) endRivalSandbox(ctx context.Context, id, keeps string) {
	rec, err := s.sandboxes.Get(id)
	if err != nil || rec.rank() == 0 {
		return // it is being removed
	}
	s.log.Warn("two sandboxes have one name; the one that does not keep it is stopped", "pod", rec.name(), "keeps", keeps, "stopped", id)
	next, err := s.sandboxes.Update(id, func(r *SandboxRecord) error {
		if r.State != SandboxReady {
			return errAlready
		}
		r.State, r.Message = SandboxStopping, fmt.Sprintf("sandbox %s has the same name", keeps)
		return nil
	})
	switch {
	case err == nil:
		s.pursue(ctx, s.stopSandboxRequest(next))
	case !errors.Is(err, errAlready) && !errors.Is(err, errs.NotFound):
		s.log.Error("cannot stop a sandbox whose name another one has", "sandbox", id, "err", err)
	}
}

func (s *Service) endRivalContainer(ctx context.Context, id, keeps string) {
	rec, err := s.containers.Get(id)
	if err != nil || rec.rank() == 0 {
		return // it is being removed
	}
	s.log.Warn("two containers have one name; the one that does not keep it is stopped", "name", rec.name(), "keeps", keeps, "stopped", id)
	switch {
	case rec.alive():
		s.pursue(ctx, s.stopContainerRequest(rec, rivalGrace))
	case rec.State == ContainerCreated: // it has run nothing that could be asked for
		s.pursue(ctx, s.removeContainerRequest(rec))
	}
}

// sharedNames warns of names that several sandboxes or containers have.
func (s *Service) sharedNames() []string {
	var warnings []string
	for _, ids := range s.sandboxes.Shared() {
		shown := slices.DeleteFunc(ids, func(id string) bool {
			rec, err := s.sandboxes.Get(id)
			return err != nil || !rec.visible()
		})
		if len(shown) > 1 {
			warnings = append(warnings, sharedName("sandboxes", s.nameOfSandbox(shown[0]), shown))
		}
	}
	for _, ids := range s.containers.Shared() {
		shown := slices.DeleteFunc(ids, func(id string) bool {
			rec, err := s.containers.Get(id)
			return err != nil || !rec.visible()
		})
		if len(shown) > 1 {
			warnings = append(warnings, sharedName("containers", s.nameOfContainer(shown[0]), shown))
		}
	}
	return warnings
}

func sharedName(things, name string, ids []string) string {
	return fmt.Sprintf("%d %s have the name %s: %s keeps it; stop and remove the others by id: %s",
		len(ids), things, name, ids[0], strings.Join(ids[1:], ", "))
}

func (s *Service) nameOfSandbox(id string) string {
	if rec, err := s.sandboxes.Get(id); err == nil {
		return rec.name()
	}
	return id
}

func (s *Service) nameOfContainer(id string) string {
	if rec, err := s.containers.Get(id); err == nil {
		return rec.name()
	}
	return id
}
