package api

import (
	"errors"
	"maps"
	"sync"
	"time"

	"github.com/berthrun/berth/internal/errs"
)

// Count is what is counted of one call of the API.
type Count struct {
	// Calls are all calls that ended, Errors those of them that failed, Timeouts those of them
	// that failed because the engine took too long.
	Calls, Errors, Timeouts uint64
	// Took is the time of all calls together, up to the first byte of the answer of a call
	// that streams.
	Took time.Duration
}

type counters struct {
	mu     *sync.Mutex
	counts map[string]Count
}

func newCounters() counters { return counters{&sync.Mutex{}, map[string]Count{}} }

func (c *counters) add(name string, took time.Duration, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	count := c.counts[name]
	count.Calls++
	count.Took += took
	if err != nil {
		count.Errors++
	}
	if errors.Is(err, errs.Deadline) {
		count.Timeouts++
	}
	c.counts[name] = count
}

// Counts returns what was counted, by the name of the call.
func (c *Client) Counts() map[string]Count {
	c.counts.mu.Lock()
	defer c.counts.mu.Unlock()
	return maps.Clone(c.counts.counts)
}
