package berthapi

import (
	"context"
	"io"
)

// Offer asks for ImportFile as a client that may lie.
func (c *Client) Offer(ctx context.Context, req FileImportRequest) ([]Image, error) {
	return c.offer(ctx, req, nil)
}

// ReadAhead is readAhead.
func ReadAhead(ctx context.Context, from io.ReadCloser) io.ReadCloser { return readAhead(ctx, from) }
