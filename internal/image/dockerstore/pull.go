package dockerstore

import (
	"context"
	"errors"
	"fmt"

	"github.com/distribution/reference"
	imageapi "github.com/moby/moby/api/types/image"
	"github.com/moby/moby/api/types/jsonstream"
	"github.com/moby/moby/client"

	"github.com/containerd/platforms"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/image"
	"github.com/berthrun/berth/internal/image/names"
	"github.com/berthrun/berth/internal/image/progress"
	"github.com/berthrun/berth/internal/image/registry"
	"github.com/berthrun/berth/internal/image/tree"
)

// Pull implements image.Store. The engine fetches the image. Its mirrors are those of the
// engine's configuration, and so are the registries that it reaches without TLS.
func (s *Images) Pull(ctx context.Context, ref string, auth image.Auth, report func(image.Progress)) (string, error) {
	named, err := names.Parse(ref)
	if err != nil {
		return "", err
	}
	return s.pulls.Do(ctx, named, progress.Terms{Auth: auth}, report, func(ctx context.Context, m *progress.Meter) (string, error) {
		ctx, end, err := s.background.Begin(ctx)
		if err != nil {
			return "", err
		}
		defer end()
		id, err := s.pull(ctx, named, auth, m)
		if err == nil {
			return id, nil
		}
		away := isAway(err) // which Scrub does not keep
		err = fmt.Errorf("cannot pull image %s: %w", named, registry.Scrub(err, registry.Auth(auth)))
		if away {
			err = &image.AwayError{Err: err}
		}
		return "", err
	})
}

func (s *Images) pull(ctx context.Context, named reference.Named, auth image.Auth, m *progress.Meter) (id string, err error) {
	header, err := authHeader(named, auth)
	if err != nil {
		return "", err
	}
	before, err := s.lookup(ctx, named.String())
	if err != nil {
		return "", err
	}
	if err := s.fetch(ctx, named, header, m); err != nil {
		return "", err
	}
	after, err := s.lookup(ctx, named.String())
	if err != nil {
		return "", err
	}
	if after == nil {
		return "", fmt.Errorf("the engine has pulled it and does not have it: somebody removed it: %w", errs.NotFound)
	}
	// An engine takes an image of another platform where its name offers no choice.
	if has := platformOf(after); !s.platform.Match(platforms.Normalize(has)) {
		err := tree.WrongPlatform(named.String(), []string{platforms.Format(has)})
		return "", errors.Join(err, s.takeBack(ctx, named, before, after))
	}
	m.Stage(progress.Done, 0)
	return after.ID, nil
}

// fetch lets the engine pull named.
func (s *Images) fetch(ctx context.Context, named reference.Named, header string, m *progress.Meter) (err error) {
	timeout := s.rules.Load().NoProgressTimeout
	ctx, release := m.Guard(ctx, timeout)
	defer release()
	pulled := newPullState()
	defer func() {
		cause := context.Cause(ctx)
		switch {
		case err == nil || cause == nil:
		case errors.Is(cause, progress.ErrNoProgress):
			err = fmt.Errorf("the engine made no progress for %s (image.no_progress_timeout); its last step was: %s: %w",
				timeout, pulled.step, errs.Deadline)
		default: // more precise than "context canceled"
			err = fmt.Errorf("%w", cause)
		}
	}()
	m.Stage(progress.Resolving, 0)
	defer m.Transfer()()
	// The engine answers once it has reached the registry.
	answer, err := s.client.ImagePull(ctx, named.String(), client.ImagePullOptions{RegistryAuth: header})
	switch {
	case errors.Is(err, errs.Unavailable), errors.Is(err, errs.Deadline):
		return err
	case err != nil:
		return withKind(err, 0)
	}
	defer answer.Close()
	stop := context.AfterFunc(ctx, func() { answer.Close() })
	defer stop()
	err = readMessages(answer, func(message jsonstream.Message) {
		if pulled.note(message) {
			m.Set(pulled.progress())
		}
	})
	if err != nil {
		return err
	}
	return pulled.complete()
}

// takeBack undoes the pull of an image that this node cannot run.
func (s *Images) takeBack(ctx context.Context, named reference.Named, before, after *imageapi.InspectResponse) error {
	var err error
	switch {
	case before == nil:
		_, err = s.client.ImageRemove(ctx, named.String(), client.ImageRemoveOptions{PruneChildren: true})
	case before.ID != after.ID: // a tag, which has moved
		if _, err = s.client.ImageTag(ctx, client.ImageTagOptions{Source: before.ID, Target: named.String()}); err == nil {
			_, err = s.client.ImageRemove(ctx, after.ID, client.ImageRemoveOptions{PruneChildren: true})
		}
	}
	return errs.IgnoreNotFound(err)
}
