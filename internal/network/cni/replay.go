package cni

import (
	"context"
	"sync"
	"time"

	"github.com/berthrun/berth/internal/errs"
)

// The pauses between two retries of a failed DEL.
const (
	replayFirst = time.Second
	replayLast  = 5 * time.Minute
)

// replayer retries failed DELs. The record says that a DEL is due; the list only says
// when.
type replayer struct {
	n    *Network
	work sync.WaitGroup
	end  chan struct{} // closed to end the work

	mu      sync.Mutex
	ended   bool
	waiting map[string]bool
}

func startReplayer(n *Network) *replayer {
	r := &replayer{n: n, end: make(chan struct{}), waiting: map[string]bool{}}
	for _, rec := range n.records.All() {
		if rec.Deleting {
			r.add(rec.Attachment.SandboxID)
		}
	}
	return r
}

// add repeats the sandbox's DEL until its record is gone.
func (r *replayer) add(sandbox string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.waiting[sandbox] || r.ended {
		return
	}
	r.waiting[sandbox] = true
	r.work.Go(func() {
		errs.Protect("repeated CNI DEL of sandbox "+sandbox, func() { r.repeat(sandbox) })
		r.mu.Lock()
		defer r.mu.Unlock()
		delete(r.waiting, sandbox)
	})
}

func (r *replayer) repeat(sandbox string) {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	go func() {
		select {
		case <-r.end:
			cancel()
		case <-ctx.Done():
		}
	}()
	for pause := replayFirst; ; pause = min(2*pause, replayLast) {
		select {
		case <-ctx.Done():
			return
		case <-time.After(pause):
		}
		rec, err := r.n.records.Get(sandbox)
		if err != nil || !rec.Deleting {
			return // another call has done it
		}
		err = r.n.calls.Do(ctx, sandbox, "CNI DEL", func() error { return r.n.delBesideNoGC(ctx, sandbox) })
		if err == nil {
			return
		}
		if ctx.Err() == nil {
			r.n.log.Warn("cannot run CNI DEL; retrying",
				"sandbox", sandbox, "in", min(2*pause, replayLast), "error", err)
		}
	}
}

// stop ends the repeating and kills plugins that it runs.
func (r *replayer) stop() {
	r.mu.Lock()
	if !r.ended {
		r.ended = true
		close(r.end)
	}
	r.mu.Unlock()
	r.work.Wait()
}
