package api

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"syscall"

	cerrdefs "github.com/containerd/errdefs"
	"github.com/containerd/errdefs/pkg/errhttp"
	"github.com/moby/moby/client"

	"github.com/berthrun/berth/internal/errs"
)

// errTooSlow is the cause of a context that ends with the deadline of a call.
var errTooSlow = errors.New("the engine took too long")

// awayError says that no Docker engine answers at the endpoint now. It does not unwrap to the cause,
// whose text it has.
type awayError struct{ text string }

func (e *awayError) Error() string { return e.text + ": " + errs.Unavailable.Error() }

func (e *awayError) Unwrap() error { return errs.Unavailable }

func away(format string, args ...any) error { return &awayError{fmt.Sprintf(format, args...)} }

// IsAway reports whether an error of a Client means that the engine itself does not answer. Other
// errors of kind Unavailable are answers of the engine: about a registry, for example.
func IsAway(err error) bool {
	var none *dialError
	var gone *awayError
	return errors.As(err, &none) || errors.As(err, &gone)
}

// fault adds the name of a call and a kind to its error.
func (c *Client) fault(ctx context.Context, name string, err error, seen *response) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("docker %s: %w", name, c.faultOf(ctx, err, seen))
}

func (c *Client) faultOf(ctx context.Context, err error, seen *response) error {
	if ctx.Err() != nil {
		return c.waitFault(ctx, ctx.Err())
	}
	var dial *dialError
	if errors.As(err, &dial) {
		return dial
	}
	if cutOff(err) {
		return away("the engine at %s closed the connection before its answer was complete; it may be restarting, see its log", c.endpoint)
	}
	if client.IsErrConnectionFailed(err) {
		return away("what listens at %s does not answer as a Docker engine: %v; set docker.endpoint to the engine's socket",
			c.endpoint, rootOfRequest(err))
	}
	if kind := kindOf(err, seen.status); kind != nil {
		return fmt.Errorf("%w: %w", err, kind)
	}
	if seen.status >= http.StatusOK && seen.status < http.StatusMultipleChoices {
		return fmt.Errorf("the engine at %s sent an answer that cannot be read: %w", c.endpoint, err)
	}
	return err
}

// waitFault is the error of a call whose context has ended.
func (c *Client) waitFault(ctx context.Context, err error) error {
	if errors.Is(context.Cause(ctx), errTooSlow) {
		return fmt.Errorf("the engine at %s has not answered within %s; see its log: %w", c.endpoint, c.timeout, errs.Deadline)
	}
	return err
}

// cutOff reports whether an error says that the engine closed the connection.
func cutOff(err error) bool {
	return errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) ||
		errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE)
}

// rootOfRequest leaves out the request, whose address is not one that people use.
func rootOfRequest(err error) error {
	var request *url.Error
	if errors.As(err, &request) {
		return request.Err
	}
	return err
}

// kindOf returns the kind of an error that the engine has answered with, or the library.
func kindOf(err error, status int) error {
	if status == http.StatusInternalServerError && isDiskFull(err) {
		return errs.Exhausted
	}
	if kind := kindOfType(err); kind != nil {
		return kind
	}
	if status >= http.StatusBadRequest {
		// The library gives answers to a request for a container's streams no type.
		return kindOfType(errhttp.ToNative(status))
	}
	return nil
}

func kindOfType(err error) error {
	switch {
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
