package daemon

import (
	"context"
	"log/slog"
	"runtime/debug"
	"time"

	"github.com/berthrun/berth/internal/sys/sysproc"
)

// memoryPause is the time between two looks for memory that can be returned to the host. A kubelet
// starts most pods in bursts of a few seconds.
const memoryPause = 3 * time.Second

// startPercent is the GC percentage of the start. What a start allocates mostly stays: with the usual
// percentage, the records of a full node would be scanned half a dozen times while they are read.
const startPercent = 400

// sparingly has the garbage of a start collected less often, until normal is called: releaseMemory returns it
// then.
func sparingly() (normal func()) {
	before := debug.SetGCPercent(startPercent)
	if before < 0 || before > startPercent { // GOGC says so
		debug.SetGCPercent(before)
	}
	return func() { debug.SetGCPercent(before) }
}

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
