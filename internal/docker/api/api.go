// Package api calls a Docker Engine over its HTTP API.
//
// Client has the calls of the moby client that berth uses, with the same parameters and
// results. It adds to each of them a deadline, a counter and a kind of package errs. It keeps
// no state of containers and images.
package api

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/moby/moby/client"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/keyed"
)

// Options configure a Client.
type Options struct {
	// Endpoint is the engine's address, such as unix:///var/run/docker.sock.
	Endpoint string
	// Timeout bounds each call that does not stream, and the time until the answer to a call of
	// logs, events or a container's streams begins. 0 for 2 minutes.
	Timeout time.Duration
	// Log is slog's default when nil.
	Log *slog.Logger
}

const defaultTimeout = 2 * time.Minute

// Client calls one engine. All methods are safe for concurrent use. Each error names the call
// and has a kind: NotFound, Exists, Invalid, Exhausted when the engine's disk is full,
// Unsupported also when the engine is too old, Unavailable when nothing at the endpoint answers
// as an engine does, Deadline when it answers too late, or none when the engine itself failed or
// its answer cannot be read. Errors of the last kinds name the endpoint, and what to do.
type Client struct {
	endpoint string
	timeout  time.Duration
	log      *slog.Logger
	// pinger asks without a version of the API, which is not known yet.
	pinger  *client.Client
	current atomic.Pointer[session]
	// negotiations has one key: one negotiation runs at a time.
	negotiations keyed.Mutex
	counts       counters
	version      versionCache
}

// New returns a Client. It does not call the engine: the API version is negotiated with the
// first call, and again when the engine's answers come from another version than before.
func New(opts Options) (*Client, error) {
	if opts.Endpoint == "" {
		return nil, fmt.Errorf("cannot use a Docker engine without an endpoint: %w", errs.Invalid)
	}
	c := &Client{
		endpoint: opts.Endpoint, timeout: cmp.Or(opts.Timeout, defaultTimeout), log: opts.Log, counts: newCounters(),
	}
	if c.log == nil {
		c.log = slog.Default()
	}
	var err error
	if c.pinger, err = c.connect(); err != nil {
		return nil, err
	}
	return c, nil
}

// connect returns a client of the library for the endpoint.
func (c *Client) connect(more ...client.Opt) (*client.Client, error) {
	host, err := client.ParseHostURL(c.endpoint)
	if err != nil {
		return nil, fmt.Errorf("cannot use the Docker engine at %s: %w: %w", c.endpoint, err, errs.Invalid)
	}
	// WithHost replaces the function that connects.
	opts := append([]client.Opt{
		client.WithHost(c.endpoint), client.WithHTTPResponseHook(noteResponse),
		client.WithDialContext(c.dialer(host.Scheme, host.Host)),
	}, more...)
	moby, err := client.New(opts...)
	if err != nil {
		return nil, fmt.Errorf("cannot use the Docker engine at %s: %w: %w", c.endpoint, err, errs.Invalid)
	}
	return moby, nil
}

// Endpoint returns the engine's address.
func (c *Client) Endpoint() string { return c.endpoint }

// Close closes idle connections.
func (c *Client) Close() error {
	if s := c.current.Swap(nil); s != nil {
		_ = s.moby.Close() // it reports no error
	}
	return c.pinger.Close()
}

// call makes one call that ends by itself.
func call[T any](ctx context.Context, c *Client, name string, do func(context.Context, *client.Client) (T, error)) (T, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, c.timeout, errTooSlow)
	defer cancel()
	return repeat(ctx, c, name, do)
}

// begin makes one call whose answer begins at once, and is read for as long as ctx lasts.
func begin[T any](ctx context.Context, c *Client, name string, do func(context.Context, *client.Client) (T, error)) (T, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	late := time.AfterFunc(c.timeout, func() { cancel(errTooSlow) })
	result, err := repeat(ctx, c, name, do)
	late.Stop()
	if err != nil {
		cancel(nil)
	}
	return result, err
}

// repeat makes a call. An engine that was replaced may refuse the version of the API that the
// call used; nothing has happened then, and the call is made again with another version.
func repeat[T any](ctx context.Context, c *Client, name string, do func(context.Context, *client.Client) (T, error)) (T, error) {
	result, refused, err := try(ctx, c, name, do)
	if refused {
		result, _, err = try(ctx, c, name, do)
	}
	return result, err
}

// once makes a call that cannot be repeated, because it consumes what it sends. Its result is
// read for as long as ctx lasts.
func once[T any](ctx context.Context, c *Client, name string, do func(context.Context, *client.Client) (T, error)) (T, error) {
	result, refused, err := try(ctx, c, name, do)
	if refused {
		err = fmt.Errorf("docker %s: %w", name, away("the engine at %s was replaced by another version; repeat the request", c.endpoint))
	}
	return result, err
}

// try makes a call and counts it. It reports whether an engine that was replaced has refused the
// version of the API.
func try[T any](ctx context.Context, c *Client, name string, do func(context.Context, *client.Client) (T, error)) (result T, refused bool, err error) {
	began := time.Now()
	defer func() { c.counts.add(name, time.Since(began), err) }()
	s, err := c.session(ctx)
	if err != nil {
		return result, false, fmt.Errorf("docker %s: %w", name, err)
	}
	ctx, seen := watchResponse(ctx)
	result, err = do(ctx, s.moby)
	replaced := s.outdatedBy(seen)
	if replaced {
		c.version.forget()
	}
	return result, replaced && seen.status == http.StatusBadRequest, c.fault(ctx, name, err, seen)
}
