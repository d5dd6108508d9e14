package supervisor

import (
	"context"
	"sync"
)

// Exits delivers the exits of containers until ctx ends and closes the channel
// then: first those of every container that ended and is not yet removed, then
// live ones, and all of them again after each reconnection. An exit delivered
// again is equal to the first. The receiver may be slow.
func (c *Client) Exits(ctx context.Context) (<-chan Exit, error) {
	q := c.link.exits.open()
	// The answer means that the exits follow. Without a connection the client asks again when
	// it has the next one.
	if err := c.link.call(ctx, MethodExits, struct{}{}, nil); err != nil && ctx.Err() != nil {
		c.link.exits.drop(q)
		return nil, ctx.Err()
	}
	out := make(chan Exit)
	go func() {
		defer close(out)
		defer c.link.exits.drop(q)
		for {
			exit, ok := q.next(ctx)
			if !ok {
				return
			}
			select {
			case out <- exit:
			case <-ctx.Done():
				return
			}
		}
	}()
	return out, nil
}

// exitQueues hold exits for slow receivers: the connection must not wait for them.
type exitQueues struct {
	mu     sync.Mutex
	queues map[*exitQueue]bool
}

type exitQueue struct {
	mu    sync.Mutex
	exits []Exit
	more  chan struct{} // has room for one
}

func (qs *exitQueues) open() *exitQueue {
	qs.mu.Lock()
	defer qs.mu.Unlock()
	q := &exitQueue{more: make(chan struct{}, 1)}
	if qs.queues == nil {
		qs.queues = make(map[*exitQueue]bool)
	}
	qs.queues[q] = true
	return q
}

func (qs *exitQueues) drop(q *exitQueue) {
	qs.mu.Lock()
	defer qs.mu.Unlock()
	delete(qs.queues, q)
}

func (qs *exitQueues) any() bool {
	qs.mu.Lock()
	defer qs.mu.Unlock()
	return len(qs.queues) > 0
}

func (qs *exitQueues) put(exit Exit) {
	qs.mu.Lock()
	defer qs.mu.Unlock()
	for q := range qs.queues {
		q.mu.Lock()
		q.exits = append(q.exits, exit)
		q.mu.Unlock()
		select {
		case q.more <- struct{}{}:
		default:
		}
	}
}

func (q *exitQueue) next(ctx context.Context) (Exit, bool) {
	for {
		q.mu.Lock()
		if len(q.exits) > 0 {
			exit := q.exits[0]
			q.exits = q.exits[1:]
			q.mu.Unlock()
			return exit, true
		}
		q.mu.Unlock()
		select {
		case <-q.more:
		case <-ctx.Done():
			return Exit{}, false
		}
	}
}
