package berth

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"strings"

	"golang.org/x/sync/errgroup"

	"github.com/berthrun/berth/internal/cluster/provider"
	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/undo"
)

// Create creates nodes: the records of all, then all at once.
func (e *Provider) Create(ctx context.Context, r provider.Request) (err error) {
	made, err := e.register(ctx, r, strings.ToLower(rand.Text()))
	if err != nil {
		return fmt.Errorf("cannot create nodes: %w", err)
	}
	var u undo.Stack
	defer u.OnError(ctx, &err)
	if !r.Retain {
		u.Push("make nodes", func(ctx context.Context) error { return e.deleteAll(ctx, made) })
	}
	group, ctx := errgroup.WithContext(ctx)
	for _, one := range made {
		group.Go(func() error {
			if err := e.createOne(ctx, one, r); err != nil {
				return fmt.Errorf("cannot create %s: %w", one.name(), err)
			}
			if r.Done != nil {
				r.Done(one.name())
			}
			return nil
		})
	}
	return group.Wait()
}

func (e *Provider) createOne(ctx context.Context, made *record, r provider.Request) error {
	var run *record
	err := e.withNode(ctx, made.name(), func(now *record) error {
		if now.UID != made.UID {
			return fmt.Errorf("another node of the name was made meanwhile: %w", errs.Exists)
		}
		run = now
		return e.run(ctx, now)
	})
	if err != nil {
		return err
	}
	wait := r.Wait
	if wait == 0 {
		wait = provider.DefaultWait
	}
	return e.ready(ctx, run, wait)
}

// deleteAll deletes nodes of a Create, and not others that got their names.
func (e *Provider) deleteAll(ctx context.Context, made []*record) error {
	group, ctx := errgroup.WithContext(ctx)
	failed := make([]error, len(made))
	for i, one := range made {
		group.Go(func() error {
			now, err := e.read(one.name())
			if err == nil && now.UID == one.UID {
				remove := e.Delete
				if one.Spec.Reuse {
					remove = e.Release
				}
				err = remove(ctx, one.name())
			}
			failed[i] = errs.IgnoreNotFound(err)
			return nil
		})
	}
	_ = group.Wait() // the errors are in failed
	return errors.Join(failed...)
}
