package kubeapi

import (
	"context"
	"crypto/tls"
	"strings"
	"time"
)

// shortPause is the time between two tries while other steps of a cluster's start wait.
const shortPause = 100 * time.Millisecond

// AwaitClusterInfo returns when a client without credentials can read the ConfigMap
// kube-public/cluster-info, which nodes need to join, or when ctx ends.
func (c *Client) AwaitClusterInfo(ctx context.Context) {
	await(ctx, func() bool { return try(ctx, c.anonymous, getClusterInfo, nil) == nil })
}

// AwaitServer waits until a server at a URL speaks TLS, which it reports, or until ctx ends. It does not verify the
// server.
func AwaitServer(ctx context.Context, url string) bool {
	return await(ctx, func() bool { return speaksTLS(ctx, url, tryTime) })
}

// Answers reports whether a server at a URL speaks TLS now, within a second. It does not verify the server.
func Answers(ctx context.Context, url string) bool { return speaksTLS(ctx, url, time.Second) }

func speaksTLS(ctx context.Context, url string, limit time.Duration) bool {
	within, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	dialer := tls.Dialer{Config: &tls.Config{InsecureSkipVerify: true}} //nolint:gosec // Nothing is sent to it.
	conn, err := dialer.DialContext(within, "tcp", strings.TrimPrefix(url, "https://"))
	if err != nil {
		return false
	}
	conn.Close()
	return true
}

// await calls a condition until it holds, which it reports, or ctx ends.
func await(ctx context.Context, condition func() bool) bool {
	for !condition() {
		select {
		case <-ctx.Done():
			return false
		case <-time.After(shortPause):
		}
	}
	return true
}
