package kubeapi

import (
	"context"
	"crypto/tls"
	"net/http"
	"strings"
	"time"
)

// shortPause is for the moments of a cluster's start that others wait for.
const shortPause = 100 * time.Millisecond

// AwaitInfo returns when anybody may read what a cluster tells those who are to join it, or with
// ctx.
func (c *Client) AwaitInfo(ctx context.Context) {
	anybody := &Client{server: c.server, http: c.anybody}
	await(ctx, func() bool {
		return anybody.try(ctx, request{method: http.MethodGet, path: infoPath}, nil) == nil
	})
}

// AwaitServer returns when a server answers at a URL, or with ctx. Who it is remains to be seen.
func AwaitServer(ctx context.Context, url string) {
	at := strings.TrimPrefix(url, "https://")
	dialer := tls.Dialer{Config: &tls.Config{InsecureSkipVerify: true}} //nolint:gosec // Nothing is said to it.
	await(ctx, func() bool {
		within, cancel := context.WithTimeout(ctx, tryTime)
		defer cancel()
		conn, err := dialer.DialContext(within, "tcp", at)
		if err != nil {
			return false
		}
		conn.Close()
		return true
	})
}

// await asks until it is told yes, or ctx ends.
func await(ctx context.Context, ask func() bool) {
	for !ask() {
		select {
		case <-ctx.Done():
			return
		case <-time.After(shortPause):
		}
	}
}
