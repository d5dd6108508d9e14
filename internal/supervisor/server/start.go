package server

import (
	"context"

	"github.com/berthrun/berth/internal/supervisor"
	"github.com/berthrun/berth/internal/supervisor/wire"
)

// start lets the init of a created container execute the program.
func (ss *session) start(ctx context.Context, req *wire.Request) (*wire.Reply, error) {
	c, err := ss.container(req)
	if err != nil {
		return nil, err
	}
	pid, err := c.Start(ctx)
	if err != nil {
		return nil, err
	}
	return &wire.Reply{Body: &supervisor.StartReply{Pid: pid}}, nil
}
