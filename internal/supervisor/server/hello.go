package server

import (
	"context"
	"fmt"
	"slices"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/supervisor"
	"github.com/berthrun/berth/internal/supervisor/wire"
)

// hello agrees on a version of the protocol, and replies which of the client's descriptors this
// process lacks.
func (ss *session) hello(_ context.Context, req *wire.Request) (*wire.Reply, error) {
	var h supervisor.Hello
	if err := req.Decode(&h); err != nil {
		return nil, err
	}
	const own = supervisor.ProtocolVersion
	if h.Protocol > own+1 || h.Protocol < own-1 {
		return nil, fmt.Errorf("client speaks protocol %d, this supervisor %d: %w", h.Protocol, own, errs.Unsupported)
	}
	if ss.greeted.Load() {
		return nil, fmt.Errorf("second hello: %w", errs.Invalid)
	}
	welcome := &supervisor.Welcome{Protocol: min(own, h.Protocol), Want: make(map[string][]string)}
	for id, names := range h.Held {
		c, err := ss.server.containers.Find(id)
		if err != nil {
			welcome.Drop = append(welcome.Drop, id)
			continue
		}
		for _, name := range names {
			if c.Lacks(name) {
				welcome.Want[id] = append(welcome.Want[id], name)
			}
		}
	}
	ss.greeted.Store(true)
	reply := &wire.Reply{Body: welcome}
	if !h.Later {
		reply.After = func(bool) { ss.sendMissing(h.Held) }
	}
	return reply, nil
}

// streams sends the client the descriptors of all containers, and answers then.
func (ss *session) streams(context.Context, *wire.Request) (*wire.Reply, error) {
	ss.sendMissing(nil)
	return &wire.Reply{}, nil
}

// sendMissing sends the client the descriptors that it does not hold.
func (ss *session) sendMissing(held map[string][]string) {
	for _, c := range ss.server.containers.All() {
		has := held[c.ID()]
		ss.sendStreams(c, func(name string) bool { return !slices.Contains(has, name) })
	}
}
