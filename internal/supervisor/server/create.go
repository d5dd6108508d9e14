package server

import (
	"context"
	"errors"

	"github.com/berthrun/berth/internal/supervisor"
	"github.com/berthrun/berth/internal/supervisor/server/ociruntime"
	"github.com/berthrun/berth/internal/supervisor/wire"
)

// create makes a container up to the point where its init waits.
func (ss *session) create(ctx context.Context, req *wire.Request) (*wire.Reply, error) {
	var body supervisor.CreateRequest
	if err := req.Decode(&body); err != nil {
		return nil, err
	}
	c, err := ss.server.containers.Create(ctx, &body)
	var fault *ociruntime.ProgramError
	if errors.As(err, &fault) && !ss.server.containers.Has(body.ID) {
		return &wire.Reply{Body: &supervisor.CreateReply{ProgramError: fault.Error()}}, nil
	}
	if err != nil {
		return nil, err
	}
	all := func(string) bool { return true }
	ss.server.others(ss, func(other *session) { other.sendStreams(c, all) })
	set, files := c.Duplicates(all)
	return &wire.Reply{Body: &supervisor.CreateReply{Container: c.Describe(), Streams: set}, Files: files}, nil
}
