// Package cri connects to the CRI socket of berth or of another runtime.
//
// The API follows semantic versioning from berth v1.0 on. Before that, a minor version may change it; the release notes
// name each change. The clients are those of k8s.io/cri-api.
package cri

import (
	"context"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berthrun/berth/internal/criclient"
)

// DefaultEndpoint is where berth listens when nothing else is configured.
const DefaultEndpoint = criclient.DefaultEndpoint

// Conn is a connection to a runtime. Its methods may be called by several goroutines. Calls wait at most a minute for a
// runtime that restarts; then they fail with an error of kind Unavailable. Errors have a kind of package kinds, and the
// text of the runtime alone.
type Conn struct {
	// Runtime has the calls for sandboxes and containers, Images those for images.
	Runtime runtimeapi.RuntimeServiceClient
	Images  runtimeapi.ImageServiceClient

	conn *criclient.Conn
}

// Dial connects to an endpoint, unix:///PATH or an absolute PATH. Kind Unavailable when no process listens there.
func Dial(ctx context.Context, endpoint string) (*Conn, error) {
	conn, err := criclient.Dial(ctx, endpoint)
	if err != nil {
		return nil, err
	}
	return &Conn{conn.Runtime, conn.Images, conn}, nil
}

// Close closes the connection.
func (c *Conn) Close() error { return c.conn.Close() }
