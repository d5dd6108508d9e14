package runtimecgroup

import (
	"context"
	"fmt"
	"strings"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/sys/sysproc"
)

// EngineScores returns which oom_score_adj the engine at an endpoint can give to containers: the
// least ability of dockerd and of the containerd that is its child, whose descendants the OCI
// runtimes are. A containerd with a unit of its own is not found. Kind Invalid: the endpoint is not a
// unix socket. Kind Unsupported or State: the engine's process cannot be found.
func EngineScores(ctx context.Context, endpoint string) (sysproc.OOMScoreLimit, error) {
	socket, isUnix := strings.CutPrefix(endpoint, "unix://")
	if !isUnix {
		return sysproc.OOMScoreLimit{}, fmt.Errorf("the engine's endpoint %s is not a unix socket: %w", endpoint, errs.Invalid)
	}
	found, err := processes(ctx, socket)
	if err != nil {
		return sysproc.OOMScoreLimit{}, err
	}
	least := sysproc.OOMScoreLimit{Own: -1000, Lowers: true}
	for i := range found {
		limit, err := sysproc.OOMScoreLimitOf(found[i].Pid)
		if err != nil {
			return sysproc.OOMScoreLimit{}, err
		}
		if least.Lowers && !limit.Lowers {
			least.Lowers, least.Why = false, fmt.Sprintf("the process %d of the engine %s", found[i].Pid, limit.Why)
		}
		least.Own = max(least.Own, limit.Own)
	}
	return least, nil
}
