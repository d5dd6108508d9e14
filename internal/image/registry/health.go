package registry

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/berthrun/berth/internal/errs"
)

// Health remembers over all pulls which endpoints fail. An endpoint that has failed maxFailures
// times in a row is asked after the others for a time. Then one request asks it in its place
// again: a success ends its time behind, a failure doubles it. An endpoint is always asked if the
// others do not help. The zero value is ready.
type Health struct {
	mu  sync.Mutex
	all map[string]*fitness
	// now is the clock, nil for the host's.
	now func() time.Time
}

// fitness is what is known of one endpoint. The zero value is that of one which works.
type fitness struct {
	failures int
	behind   time.Duration
	until    time.Time
	fault    string
}

const (
	maxFailures = 3
	minBehind   = 10 * time.Second
	maxBehind   = 5 * time.Minute
	// maxKnown bounds how many endpoints are remembered. A node asks a few.
	maxKnown = 256
)

func (h *Health) clock() time.Time {
	if h.now != nil {
		return h.now()
	}
	return time.Now()
}

// fit reports whether an endpoint is asked in its place. Of an endpoint whose time behind is over,
// it returns true once: to the caller whose request is the probe.
func (h *Health) fit(name string) bool {
	if h == nil {
		return true
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	f := h.all[name]
	if f == nil || f.until.IsZero() {
		return true
	}
	now := h.clock()
	if now.Before(f.until) {
		return false
	}
	f.until = now.Add(f.behind)
	return true
}

// isBehind reports whether an endpoint is asked after the others now. It takes no probe.
func (h *Health) isBehind(name string) bool {
	if h == nil {
		return false
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	f := h.all[name]
	return f != nil && h.clock().Before(f.until)
}

// worked notes an answer of an endpoint, and reports whether it has failed before.
func (h *Health) worked(name string) (again bool) {
	if h == nil {
		return false
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	_, again = h.all[name]
	delete(h.all, name)
	return again
}

// change is what a request has changed in what is known of an endpoint.
type change int

const (
	unchanged change = iota
	nowFails
	nowWorks
)

// failed notes an error of an endpoint, with a text for people that has no secret. Errors that are about the image, the credentials or the
// caller count as an answer, or not at all.
func (h *Health) failed(ctx context.Context, name string, err error, text string) (is change) {
	if h == nil || ctx.Err() != nil {
		return unchanged
	}
	if !errors.Is(err, errs.Unavailable) {
		if errs.Kind(err) != nil && h.worked(name) {
			return nowWorks
		}
		return unchanged
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	f := h.all[name]
	if f == nil {
		if len(h.all) >= maxKnown {
			clear(h.all)
		}
		if h.all == nil {
			h.all = map[string]*fitness{}
		}
		f = &fitness{}
		h.all[name] = f
		is = nowFails
	}
	f.failures++
	f.fault = text
	now := h.clock()
	var throttled *ThrottledError
	switch {
	case errors.As(err, &throttled) && throttled.After > 0:
		f.behind = min(throttled.After, maxBehind)
	case f.failures < maxFailures:
		return is
	case f.behind == 0:
		f.behind = minBehind
	case now.Before(f.until.Add(-f.behind / 2)): // of the same time behind
		return is
	default:
		f.behind = min(2*f.behind, maxBehind)
	}
	f.until = now.Add(f.behind)
	return is
}

// describe says how an endpoint is, "" if it works as far as is known.
func (h *Health) describe(name string) string {
	if h == nil {
		return ""
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	f := h.all[name]
	switch {
	case f == nil:
		return ""
	case f.until.IsZero():
		return fmt.Sprintf("%d failures in a row: %s", f.failures, f.fault)
	case h.clock().Before(f.until):
		return fmt.Sprintf("asked after the others until %s, after %d failures in a row: %s", f.until.UTC().Format(time.RFC3339), f.failures, f.fault)
	}
	return fmt.Sprintf("the next request probes it, after %d failures in a row: %s", f.failures, f.fault)
}
