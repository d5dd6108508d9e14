package api

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync/atomic"

	"github.com/moby/moby/client"

	"github.com/berthrun/berth/internal/errs"
)

// MinVersion is the oldest version of the API that berth uses: that of Docker 19.03. Later
// versions are used up to the newest that the client library knows.
const MinVersion = client.MinAPIVersion

// session is the use of one version of the API.
type session struct {
	moby *client.Client
	// version is that of the API. engine is what the engine's answers say of it.
	version string
	engine  identity
	// outdated is set once an answer came from another engine: the next call negotiates.
	outdated atomic.Bool
}

// identity is what each answer of an engine says of the engine. The newest version of its API
// and its own version change when it is upgraded.
type identity struct{ apiVersion, server string }

// outdatedBy reports whether an answer came from another engine than the session's.
func (s *session) outdatedBy(seen *response) bool {
	if seen.engine.apiVersion == "" || seen.engine == s.engine {
		return false
	}
	s.outdated.Store(true)
	return true
}

// session returns the session in use, and negotiates one if there is none or if the engine was
// replaced.
func (c *Client) session(ctx context.Context) (*session, error) {
	if s := c.current.Load(); s != nil && !s.outdated.Load() {
		return s, nil
	}
	ctx, cancel := context.WithTimeoutCause(ctx, c.timeout, errTooSlow)
	defer cancel()
	unlock, err := c.negotiations.Lock(ctx, "")
	if err != nil {
		return nil, c.waitFault(ctx, err)
	}
	defer unlock()
	old := c.current.Load()
	if old != nil && !old.outdated.Load() {
		return old, nil
	}
	s, err := c.negotiate(ctx)
	if err != nil {
		return nil, err
	}
	if old != nil {
		c.log.Info("the Docker engine was replaced", "endpoint", c.endpoint,
			"before", old.engine.server, "now", s.engine.server, "apiVersion", s.version)
		_ = old.moby.Close() // idle connections; it reports no error
	}
	c.current.Store(s)
	return s, nil
}

// negotiate asks the engine for its newest version of the API, and uses that or the newest that
// the client library knows. Kind Unsupported if the engine's is older than MinVersion,
// Unavailable if what answers is not an engine.
func (c *Client) negotiate(ctx context.Context) (*session, error) {
	ctx, seen := watchResponse(ctx)
	_, err := c.pinger.Ping(ctx, client.PingOptions{})
	found := seen.engine.apiVersion
	if found == "" && seen.status != 0 {
		return nil, away("what listens at %s is not a Docker engine: it answers HTTP without a version of the API (status %d); "+
			"set docker.endpoint to the engine's socket", c.endpoint, seen.status)
	}
	if err != nil {
		return nil, c.faultOf(ctx, err, seen)
	}
	version, err := parseVersion(found)
	if err != nil {
		return nil, away("what listens at %s is not a Docker engine: its version of the API is %q; "+
			"set docker.endpoint to the engine's socket", c.endpoint, found)
	}
	if !AtLeast(found, MinVersion) {
		return nil, fmt.Errorf("the Docker engine at %s has version %s of the API, and berth needs %s or later (Docker 19.03); "+
			"upgrade the engine: %w", c.endpoint, found, MinVersion, errs.Unsupported)
	}
	used := client.MaxAPIVersion
	if !AtLeast(found, used) {
		used = version.String()
	}
	moby, err := c.connect(client.WithAPIVersion(used))
	if err != nil {
		return nil, err
	}
	return &session{moby: moby, version: used, engine: seen.engine}, nil
}

// tooNew is the error of an engine that refuses the newest version of the API that the client
// library knows; err is its refusal. nil for another error.
func (c *Client) tooNew(err error) error {
	s := c.current.Load()
	if s == nil || s.version != client.MaxAPIVersion || !errors.Is(err, errs.Invalid) {
		return nil
	}
	return fmt.Errorf("the Docker engine at %s has version %s of the API and refuses %s, the newest that this berth knows; "+
		"upgrade berth: %w", c.endpoint, s.engine.apiVersion, s.version, errs.Unsupported)
}

// response is what a call has seen of the last answer. status is 0 without one.
type response struct {
	status int
	engine identity
}

type responseKey struct{}

// watchResponse returns a context whose requests note their answers.
func watchResponse(ctx context.Context) (context.Context, *response) {
	seen := &response{}
	return context.WithValue(ctx, responseKey{}, seen), seen
}

// noteResponse is called with each answer, before the call returns.
func noteResponse(answer *http.Response) {
	if answer == nil || answer.Request == nil {
		return
	}
	if seen, ok := answer.Request.Context().Value(responseKey{}).(*response); ok {
		seen.status = answer.StatusCode
		seen.engine = identity{apiVersion: answer.Header.Get("Api-Version"), server: answer.Header.Get("Server")}
	}
}

// began reports whether a request of ctx has an answer that is not an error.
func began(ctx context.Context) bool {
	seen, ok := ctx.Value(responseKey{}).(*response)
	return ok && seen.status != 0 && seen.status < http.StatusBadRequest
}
