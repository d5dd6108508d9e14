package dockerstore

import (
	"context"
	"errors"
	"fmt"
	"strings"

	imageapi "github.com/moby/moby/api/types/image"
	"github.com/moby/moby/client"

	"github.com/berthrun/berth/internal/errs"
)

// managedLabel is on every container that dockershim, cri-dockerd or berth has made.
const managedLabel = "io.kubernetes.docker.type"

// Remove implements image.Store. An engine keeps an image that a running container uses, and
// Remove then changes nothing and returns an error of kind State. Other containers of pods keep
// their layers, as with other stores. Containers that do not belong to pods keep the image,
// whether they run or not: their owner starts them again.
func (s *Images) Remove(ctx context.Context, ref string) error {
	// One after the other: while the engine removes an image for one call, it answers another
	// call that there is no such image, and still lists it.
	s.removals.Lock()
	defer s.removals.Unlock()
	found, err := s.find(ctx, ref)
	if errors.Is(err, errs.NotFound) {
		return nil
	}
	if err != nil {
		return err
	}
	if err := s.remove(ctx, found); err != nil {
		// Another client of the engine may have removed it meanwhile.
		if _, gone := s.find(ctx, found.ID); !errors.Is(gone, errs.NotFound) {
			return fmt.Errorf("cannot remove image %s: %w", ref, err)
		}
	}
	return s.unpin(found.ID)
}

func (s *Images) remove(ctx context.Context, found *imageapi.InspectResponse) error {
	if err := s.checkUnused(ctx, found.ID); err != nil {
		return err
	}
	// By its id, with force, all names go in one step, or none.
	_, err := s.client.ImageRemove(ctx, found.ID, client.ImageRemoveOptions{Force: true, PruneChildren: true})
	if !errors.Is(err, errs.Exists) {
		return errs.IgnoreNotFound(err)
	}
	built, listErr := s.isParent(ctx, found.ID)
	switch {
	case listErr != nil:
		return listErr
	case built:
		return s.removeNames(ctx, found)
	}
	return &engineError{strings.TrimSuffix(err.Error(), ": "+errs.Exists.Error()), errs.State}
}

// checkUnused refuses to take an image away from containers that are not of pods.
func (s *Images) checkUnused(ctx context.Context, id string) error {
	all, err := s.client.ContainerList(ctx, client.ContainerListOptions{All: true})
	if err != nil {
		return err
	}
	for _, container := range all.Items {
		if _, managed := container.Labels[managedLabel]; container.ImageID != id || managed {
			continue
		}
		name := container.ID
		if len(container.Names) > 0 {
			name = strings.TrimPrefix(container.Names[0], "/")
		}
		return fmt.Errorf("container %s, which is %s and belongs to no pod, uses it: %w", name, container.State, errs.State)
	}
	return nil
}

// isParent reports whether the engine has built other images on top of an image.
func (s *Images) isParent(ctx context.Context, id string) (bool, error) {
	all, err := s.client.ImageList(ctx, client.ImageListOptions{All: true})
	if err != nil {
		return false, err
	}
	for _, summary := range all.Items {
		if summary.ParentID == id {
			return true, nil
		}
	}
	return false, nil
}

// removeNames takes all names from an image whose layers are needed by others. Without a name
// the engine lists it no more, and removes it with the last of them.
func (s *Images) removeNames(ctx context.Context, found *imageapi.InspectResponse) error {
	for _, name := range append(fullNames(found.RepoTags), fullNames(found.RepoDigests)...) {
		_, err := s.client.ImageRemove(ctx, name, client.ImageRemoveOptions{Force: true, PruneChildren: true})
		if errs.IgnoreNotFound(err) != nil {
			return err
		}
	}
	return nil
}
