package api

import (
	"context"
	"errors"
	"fmt"

	cerrdefs "github.com/containerd/errdefs"
	"github.com/moby/moby/client"

	"github.com/berthrun/berth/internal/errs"
)

// errTooSlow is the cause of a context that ends with the deadline of a call.
var errTooSlow = errors.New("the engine took too long")

// fault adds the name of a call and a kind to its error.
func fault(ctx context.Context, name string, err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(context.Cause(ctx), errTooSlow):
		return fmt.Errorf("docker %s: %w: %w", name, errTooSlow, errs.Deadline)
	case ctx.Err() != nil:
		return fmt.Errorf("docker %s: %w", name, ctx.Err())
	}
	if kind := kindOf(err); kind != nil {
		return fmt.Errorf("docker %s: %w: %w", name, err, kind)
	}
	return fmt.Errorf("docker %s: %w", name, err)
}

func kindOf(err error) error {
	switch {
	case client.IsErrConnectionFailed(err):
		return errs.Unavailable
	case cerrdefs.IsNotFound(err):
		return errs.NotFound
	case cerrdefs.IsConflict(err), cerrdefs.IsAlreadyExists(err):
		return errs.Exists
	case cerrdefs.IsInvalidArgument(err):
		return errs.Invalid
	case cerrdefs.IsNotImplemented(err):
		return errs.Unsupported
	case cerrdefs.IsUnavailable(err):
		return errs.Unavailable
	}
	return nil
}
