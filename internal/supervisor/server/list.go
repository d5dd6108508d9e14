package server

import (
	"context"

	"github.com/berthrun/berth/internal/supervisor/wire"
)

// list describes every container.
func (ss *session) list(context.Context, *wire.Request) (*wire.Reply, error) {
	list, err := ss.server.containers.List()
	if err != nil {
		return nil, err
	}
	return &wire.Reply{Body: list}, nil
}
