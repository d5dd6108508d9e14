package server

import (
	"context"

	"github.com/berthrun/berth/internal/supervisor"
	"github.com/berthrun/berth/internal/supervisor/wire"
)

// remove removes a container, known or not.
func (ss *session) remove(ctx context.Context, req *wire.Request) (*wire.Reply, error) {
	var body supervisor.Ref
	if err := req.Decode(&body); err != nil {
		return nil, err
	}
	return nil, ss.server.containers.Remove(ctx, body.ID)
}
