package server

import (
	"context"

	"github.com/berthrun/berth/internal/supervisor"
	"github.com/berthrun/berth/internal/supervisor/wire"
)

// offer takes descriptors from the client for a container that lost them.
func (ss *session) offer(ctx context.Context, req *wire.Request) (*wire.Reply, error) {
	var set supervisor.StreamSet
	if err := req.Decode(&set); err != nil {
		return nil, err
	}
	named, err := filesByName(req, set.Names)
	if err != nil {
		return nil, err
	}
	c, err := ss.server.containers.Find(set.ID)
	if err != nil {
		return nil, err
	}
	for name, f := range named {
		if c.Offer(ctx, name, f) {
			keepFile(req, f)
		}
	}
	return nil, nil
}
