package builtin

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/berthrun/berth/internal/errs"
)

const (
	// reapPause is the time between two checks of links that should be gone: the kernel takes
	// 40 to 70 ms for one, and removes many at once.
	reapPause = 25 * time.Millisecond
	// reapTimeout is how long a link may outlive its release. A network namespace that is not
	// gone by then has another user.
	reapTimeout = 3 * time.Second
)

// reaper waits until the links of released attachments are gone, and then frees their
// addresses and removes their records.
type reaper struct {
	n    *Network
	wake chan struct{}
	done chan struct{}
	end  context.CancelFunc

	mu      sync.Mutex
	waiting map[string]time.Time // sandbox to the time of its release
}

func startReaper(n *Network) *reaper {
	ctx, end := context.WithCancel(context.Background())
	r := &reaper{n: n, wake: make(chan struct{}, 1), done: make(chan struct{}), end: end, waiting: map[string]time.Time{}}
	go r.run(ctx)
	return r
}

// add puts a released sandbox on the list.
func (r *reaper) add(sandbox string) {
	r.mu.Lock()
	if _, known := r.waiting[sandbox]; !known {
		r.waiting[sandbox] = time.Now()
	}
	r.mu.Unlock()
	select {
	case r.wake <- struct{}{}:
	default:
	}
}

// stop ends the waiting. What is on the list stays released in its record.
func (r *reaper) stop() {
	r.end()
	<-r.done
}

func (r *reaper) run(ctx context.Context) {
	defer close(r.done)
	for {
		select {
		case <-ctx.Done():
			return
		case <-r.wake:
		}
		for r.releaseDue(ctx) {
			select {
			case <-ctx.Done():
				return
			case <-time.After(reapPause):
			}
		}
	}
}

// releaseDue finishes the releases that can be finished, and reports whether any is left.
func (r *reaper) releaseDue(ctx context.Context) bool {
	for sandbox, since := range r.list() {
		if ctx.Err() != nil {
			return false
		}
		err := errs.Guard("release of the address of sandbox "+sandbox, func() error {
			if r.n.host.index(linkName(sandbox)) != 0 && time.Since(since) < reapTimeout {
				return nil
			}
			return r.n.calls.Do(ctx, sandbox, "release of its address", func() error { return r.n.finishRelease(sandbox) })
		})
		if err != nil && ctx.Err() == nil {
			r.n.log.Warn("cannot free an address of the built-in network yet", "sandbox", sandbox, "error", err)
			r.mu.Lock()
			r.waiting[sandbox] = time.Now() // retried after reapTimeout
			r.mu.Unlock()
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.waiting) > 0
}

func (r *reaper) list() map[string]time.Time {
	r.mu.Lock()
	defer r.mu.Unlock()
	list := make(map[string]time.Time, len(r.waiting))
	for sandbox, since := range r.waiting {
		list[sandbox] = since
	}
	return list
}

func (r *reaper) forget(sandbox string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.waiting, sandbox)
}

// finishRelease removes what is left of a released attachment: its link, should it
// still be there, its record, and then its addresses are free. Runs as the sandbox's
// only call: see network.SandboxCalls.
func (n *Network) finishRelease(sandbox string) error {
	rec, err := n.records.Get(sandbox)
	if err == nil && rec.Released {
		if err := n.unplug(rec.Link); err != nil {
			return err
		}
		if err := n.records.Delete(sandbox); err != nil {
			return err
		}
		n.unguard(rec) // not before: frames of the link would pass, and a rebuild would list what has a record
		n.freeTaken(rec)
	}
	n.reaper.forget(sandbox)
	return nil
}

// finishReleases finishes all releases now, without waiting for the kernel, and returns how many it
// has finished.
func (n *Network) finishReleases(ctx context.Context) (freed int, err error) {
	var errList []error
	for _, rec := range n.records.All() {
		if !rec.Released {
			continue
		}
		err := n.calls.Do(ctx, rec.Sandbox, "release of its address", func() error {
			return n.finishRelease(rec.Sandbox)
		})
		if err == nil {
			freed++
		}
		errList = append(errList, err)
	}
	return freed, errors.Join(errList...)
}
