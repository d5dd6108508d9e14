package server

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/supervisor"
	"github.com/berthrun/berth/internal/supervisor/wire"
)

// update changes a container's limits.
func (ss *session) update(ctx context.Context, req *wire.Request) (*wire.Reply, error) {
	var body supervisor.UpdateRequest
	if err := req.Decode(&body); err != nil {
		return nil, err
	}
	var res specs.LinuxResources
	if err := json.Unmarshal(body.Resources, &res); err != nil {
		return nil, fmt.Errorf("cannot decode resources: %w: %w", err, errs.Invalid)
	}
	c, err := ss.server.containers.Find(body.ID)
	if err != nil {
		return nil, err
	}
	return nil, c.Update(ctx, &res)
}
