package podcheckpoint

import (
	"context"
	"sync"

	"github.com/berthrun/berth/internal/engine"
)

// Barrier has the containers of a pod wait for one another at each stage of their checkpoints.
type Barrier struct {
	containers int

	mu     sync.Mutex
	stages map[engine.CheckpointStage]*arrivals
}

// arrivals are those at one stage. all is closed when all containers have reached it.
type arrivals struct {
	reached int
	all     chan struct{}
}

// NewBarrier returns the barrier of a number of containers.
func NewBarrier(containers int) *Barrier {
	return &Barrier{containers: containers, stages: map[engine.CheckpointStage]*arrivals{}}
}

// Reached waits until all containers have reached a stage. Each calls it once for a stage. It returns the cause of ctx when
// that ends first.
func (b *Barrier) Reached(ctx context.Context, stage engine.CheckpointStage) error {
	all := b.reach(stage)
	select {
	case <-all:
	case <-ctx.Done():
	}
	// A container that has failed has ended ctx: the others must not go on as if all were well.
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return nil
}

func (b *Barrier) reach(stage engine.CheckpointStage) <-chan struct{} {
	b.mu.Lock()
	defer b.mu.Unlock()
	at := b.stages[stage]
	if at == nil {
		at = &arrivals{all: make(chan struct{})}
		b.stages[stage] = at
	}
	at.reached++
	if at.reached == b.containers {
		close(at.all)
	}
	return at.all
}
