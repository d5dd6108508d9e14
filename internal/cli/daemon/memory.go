package daemon

import (
	"context"
	"log/slog"
	"time"

	"github.com/berthrun/berth/internal/sys/sysproc"
)

// memoryPause is the time between two looks for memory that can be returned to the host. A kubelet
// starts most pods in bursts of a few seconds.
const memoryPause = 3 * time.Second

// releaseMemory returns memory to the host after the start, and each time that pods have changed and
// no job runs any more. What lists and statuses need is little, and does not count as a change.
func releaseMemory(ctx context.Context, p *parts, log *slog.Logger) {
	tick := time.NewTicker(memoryPause)
	defer tick.Stop()
	last := ^uint64(0) // the start is a change, too
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		changes := p.pods.EventCounters().Published
		if changes == last || len(p.pods.Jobs()) > 0 {
			continue
		}
		last = changes
		if err := sysproc.ReleaseMemory(); err != nil {
			log.Debug("cannot return memory to the host", "error", err)
		}
	}
}
