package server

import (
	"context"

	"github.com/berthrun/berth/internal/supervisor/wire"
)

// reopenLog switches a container's output to the file at its log path.
func (ss *session) reopenLog(ctx context.Context, req *wire.Request) (*wire.Reply, error) {
	c, err := ss.container(req)
	if err != nil {
		return nil, err
	}
	return nil, c.ReopenLog(ctx)
}
