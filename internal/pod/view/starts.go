package view

import (
	"context"
	"time"

	"github.com/berthrun/berth/internal/pod/record"
)

// abandonedStart is how long a client waits for a start that its caller has left.
const abandonedStart = 15 * time.Second

// awaitStarts waits for the starts of containers that their callers have left: a kubelet that died in
// StartContainer. The next kubelet would find such a container CREATED, run another one in its place,
// and have both.
func (v *View) awaitStarts(ctx context.Context) {
	for _, j := range v.jobs.Running() {
		if rec, err := v.records.Containers.Get(j.ID); err == nil && rec.State == record.ContainerStarting {
			j.AwaitAbandoned(ctx, abandonedStart)
		}
	}
}
