package runtimecgroup

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/berthrun/berth/internal/errs"
)

// EngineStarted returns when the engine at an endpoint was started. Kind Invalid: the endpoint is not a
// unix socket. Kind Unsupported or State: the engine's process cannot be found.
func EngineStarted(ctx context.Context, endpoint string) (time.Time, error) {
	socket, isUnix := strings.CutPrefix(endpoint, "unix://")
	if !isUnix {
		return time.Time{}, fmt.Errorf("the engine's endpoint %s is not a unix socket: %w", endpoint, errs.Invalid)
	}
	found, err := processes(ctx, socket)
	if err != nil {
		return time.Time{}, err
	}
	return found[0].StartedAt()
}
