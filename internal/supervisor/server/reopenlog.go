package server

import (
	"context"

	"github.com/berthrun/berth/internal/supervisor/wire"
)

// reopenLog has a container's output go to the file that its log path names now.
func (ss *session) reopenLog(ctx context.Context, req *wire.Request) (*wire.Reply, error) {
	c, err := ss.container(req)
	if err != nil {
		return nil, err
	}
	return nil, c.ReopenLog(ctx)
}
