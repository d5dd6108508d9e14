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
	"time"

	"github.com/moby/moby/client"

	"github.com/berthrun/berth/internal/errs"
)

// Options configure a Client.
type Options struct {
	// Endpoint is the engine's address, such as unix:///var/run/docker.sock.
	Endpoint string
	// Timeout bounds each call that does not stream, 0 for 2 minutes.
	Timeout time.Duration
	// Log is slog's default when nil.
	Log *slog.Logger
}

const defaultTimeout = 2 * time.Minute

// Client calls one engine. All methods are safe for concurrent use. Each error names the call
// and has a kind: NotFound, Exists, State, Invalid, Unsupported, Exhausted, Unavailable when the
// engine does not answer, Deadline when it answers too late, or none when the engine itself
// failed.
type Client struct {
	moby     *client.Client
	endpoint string
	timeout  time.Duration
	counts   counters
	version  versionCache
}

// New returns a Client. It does not call the engine: the API version is negotiated with the
// first call, and again after the engine was restarted with another version.
func New(opts Options) (*Client, error) {
	if opts.Endpoint == "" {
		return nil, fmt.Errorf("cannot use a Docker engine without an endpoint: %w", errs.Invalid)
	}
	moby, err := client.New(client.WithHost(opts.Endpoint))
	if err != nil {
		return nil, fmt.Errorf("cannot use the Docker engine at %s: %w: %w", opts.Endpoint, err, errs.Invalid)
	}
	return &Client{moby: moby, endpoint: opts.Endpoint, timeout: cmp.Or(opts.Timeout, defaultTimeout), counts: newCounters()}, nil
}

// Endpoint returns the engine's address.
func (c *Client) Endpoint() string { return c.endpoint }

// Close closes idle connections.
func (c *Client) Close() error { return c.moby.Close() }

// call makes one call that ends by itself.
func call[T any](ctx context.Context, c *Client, name string, do func(ctx context.Context) (T, error)) (T, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, c.timeout, errTooSlow)
	defer cancel()
	return stream(ctx, c, name, do)
}

// stream makes one call whose result is read for as long as ctx lasts.
func stream[T any](ctx context.Context, c *Client, name string, do func(ctx context.Context) (T, error)) (T, error) {
	began := time.Now()
	result, err := do(ctx)
	err = fault(ctx, name, err)
	c.counts.add(name, time.Since(began), err)
	return result, err
}
