package docker

import (
	"context"
	"strings"

	"github.com/berthrun/berth/internal/engine"
)

var _ engine.Inspector = (*Engine)(nil)

// Inspect implements engine.Inspector: "docker" is what the Docker Engine says of the
// container.
func (e *Engine) Inspect(ctx context.Context, requested *engine.InspectSpec) (map[string]any, error) {
	got, err := e.objects.inspect(ctx, requested.ContainerID)
	if err != nil {
		return nil, err
	}
	if !requested.Secrets {
		for i, entry := range got.Config.Env {
			name, _, _ := strings.Cut(entry, "=")
			got.Config.Env[i] = name + "=[hidden]"
		}
	}
	return map[string]any{"docker": got, "dockerID": got.ID}, nil
}
