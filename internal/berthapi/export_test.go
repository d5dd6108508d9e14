package berthapi

import (
	"context"
	"io"
)

// CallImportFile calls ImportFile with any request.
func (c *Client) CallImportFile(ctx context.Context, req FileImportRequest) ([]Image, error) {
	return c.callImportFile(ctx, req, nil)
}

// ReadAhead is readAhead.
func ReadAhead(ctx context.Context, from io.ReadCloser) io.ReadCloser { return readAhead(ctx, from) }
