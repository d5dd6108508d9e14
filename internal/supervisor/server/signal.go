package server

import (
	"context"

	"github.com/berthrun/berth/internal/supervisor"
	"github.com/berthrun/berth/internal/supervisor/wire"
)

// signal sends a signal to a container's init or to all its processes.
func (ss *session) signal(ctx context.Context, req *wire.Request) (*wire.Reply, error) {
	var body supervisor.SignalRequest
	if err := req.Decode(&body); err != nil {
		return nil, err
	}
	c, err := ss.server.containers.Find(body.ID)
	if err != nil {
		return nil, err
	}
	return nil, c.Signal(ctx, body.Signal, body.All)
}
