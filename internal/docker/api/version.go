package api

import (
	"context"
	"sync"
	"time"

	"github.com/moby/moby/client"
)

// versionLife is how long an answer about the engine's version is used.
const versionLife = time.Minute

type versionCache struct {
	mu    sync.Mutex
	known client.ServerVersionResult
	until time.Time
}

// Version returns the engine's version, from memory if it was read in the last minute.
func (c *Client) Version(ctx context.Context) (client.ServerVersionResult, error) {
	c.version.mu.Lock()
	defer c.version.mu.Unlock()
	if time.Now().Before(c.version.until) {
		return c.version.known, nil
	}
	found, err := call(ctx, c, "version", func(ctx context.Context) (client.ServerVersionResult, error) {
		return c.moby.ServerVersion(ctx, client.ServerVersionOptions{})
	})
	if err != nil {
		return found, err
	}
	c.version.known, c.version.until = found, time.Now().Add(versionLife)
	return found, nil
}
