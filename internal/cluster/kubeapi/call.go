package kubeapi

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/berthrun/berth/internal/errs"
)

// Bounds of a call: of one try, since a control plane that has died says nothing, and of all
// tries together, which is as long as others take to stand in for it.
const (
	tryTime  = 15 * time.Second
	callTime = time.Minute
)

// request is a call that may be repeated.
type request struct {
	method, path string
	// kind is the content type of body; "" is JSON.
	kind string
	body any
}

// call makes a call until the API server has answered. What it is not able to do now is tried
// again; the error's kind is NotFound, Exists (somebody else has changed it), Invalid or
// Unavailable.
func (c *Client) call(ctx context.Context, r request, into any) error {
	ctx, cancel := context.WithTimeout(ctx, callTime)
	defer cancel()
	var last error
	for {
		err := c.try(ctx, r, into)
		if err == nil || !errors.Is(err, errs.Unavailable) {
			return err
		}
		if ctx.Err() == nil || last == nil {
			last = err
		}
		// The next one is to go to another control plane, if this one does not answer any more.
		c.http.CloseIdleConnections()
		select {
		case <-ctx.Done():
			return errors.Join(context.Cause(ctx), last)
		case <-time.After(c.pause):
		}
	}
}

func (c *Client) try(ctx context.Context, r request, into any) error {
	ctx, cancel := context.WithTimeout(ctx, tryTime)
	defer cancel()
	var body io.Reader
	if r.body != nil {
		text, err := json.Marshal(r.body)
		if err != nil {
			return err
		}
		body = bytes.NewReader(text)
	}
	question, err := http.NewRequestWithContext(ctx, r.method, c.server+r.path, body)
	if err != nil {
		return err
	}
	if r.body != nil {
		question.Header.Set("Content-Type", "application/json")
		if r.kind != "" {
			question.Header.Set("Content-Type", r.kind)
		}
	}
	answer, err := c.http.Do(question)
	if err != nil {
		return fmt.Errorf("the API server does not answer: %w: %w", errs.Unavailable, err)
	}
	defer answer.Body.Close()
	if answer.StatusCode/100 != 2 {
		text, _ := io.ReadAll(io.LimitReader(answer.Body, 512))
		return fmt.Errorf("the API server answers %s: %s: %w", answer.Status, strings.TrimSpace(string(text)), kindOf(answer.StatusCode))
	}
	if into == nil {
		return nil
	}
	if err := json.NewDecoder(answer.Body).Decode(into); err != nil {
		return fmt.Errorf("cannot read what the API server says: %w: %w", errs.Unavailable, err)
	}
	return nil
}

// kindOf is the kind of an error by the status of an answer.
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
	// A server that has started a moment ago does not know yet who may do what.
	return errs.Unavailable
}
