package kubeapi

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"

	"github.com/berthrun/berth/internal/errs"
)

// Bounds of a call. tryTime bounds one try, since a control plane that has died does not answer at
// all. callTime bounds all tries together: it is long enough for another control plane to take
// over.
const (
	tryTime  = 15 * time.Second
	callTime = time.Minute
)

// request builds a request. It is called once for each try.
type request func(api rest.Interface) *rest.Request

// call sends a request, and decodes the response into into, unless that is nil. It repeats the
// request while the API server does not answer or cannot serve it. The kind of the error is
// NotFound, Exists (somebody else has changed the object), Exhausted, Invalid or Unavailable.
func (c *Client) call(ctx context.Context, build request, into runtime.Object) error {
	ctx, cancel := context.WithTimeout(ctx, callTime)
	defer cancel()
	var last error
	for {
		err := try(ctx, c.api, build, into)
		if err == nil || !errors.Is(err, errs.Unavailable) {
			return err
		}
		if ctx.Err() == nil || last == nil {
			last = err
		}
		// A new connection may reach another control plane.
		c.http.CloseIdleConnections()
		select {
		case <-ctx.Done():
			return errors.Join(context.Cause(ctx), last)
		case <-time.After(c.pause):
		}
	}
}

// try sends a request once. call retries: the library's retries do not fit the start of a cluster.
func try(ctx context.Context, api rest.Interface, build request, into runtime.Object) error {
	ctx, cancel := context.WithTimeout(ctx, tryTime)
	defer cancel()
	result := build(api).MaxRetries(0).Do(ctx)
	if err := result.Error(); err != nil {
		return requestError(err)
	}
	if into == nil {
		return nil
	}
	if err := result.Into(into); err != nil {
		return fmt.Errorf("cannot read the response of the API server: %w: %w", errs.Unavailable, err)
	}
	return nil
}

// requestError gives an error of client-go a kind and the words of the server.
func requestError(err error) error {
	var status apierrors.APIStatus
	if !errors.As(err, &status) {
		return fmt.Errorf("the API server does not answer: %w: %w", errs.Unavailable, err)
	}
	s := status.Status()
	code := int(s.Code)
	return fmt.Errorf("the API server answers %d %s: %s: %w", code, http.StatusText(code), serverMessage(s), kindOf(code))
}

// serverMessage is what the server says. A response that is not a Status has it among the causes.
func serverMessage(s metav1.Status) string {
	if s.Details != nil {
		for _, cause := range s.Details.Causes {
			if cause.Type == metav1.CauseTypeUnexpectedServerResponse {
				return strings.TrimSpace(cause.Message)
			}
		}
	}
	return s.Message
}

// kindOf is the kind of an error by the status code of a response.
func kindOf(status int) error {
	switch status {
	case http.StatusNotFound:
		return errs.NotFound
	case http.StatusConflict:
		return errs.Exists
	case http.StatusTooManyRequests:
		return errs.Exhausted
	}
	if status/100 == 4 && status != http.StatusUnauthorized && status != http.StatusForbidden {
		return errs.Invalid
	}
	// A server that has just started does not know its authorization rules yet.
	return errs.Unavailable
}
