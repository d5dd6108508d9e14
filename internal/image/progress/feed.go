package progress

import (
	"sync"
	"sync/atomic"

	"github.com/berthrun/berth/internal/image"
)

// Feed sends the progress of one pull to all its waiters. The zero
// value is ready.
type Feed struct {
	mu       sync.Mutex
	watchers map[int]func(image.Progress)
	next     int
	// last is the last report, for later watchers.
	last *image.Progress
	// meter measures the pull, nil until it begins. Watchers ask for it, while mu and the meter's own lock are held.
	meter atomic.Pointer[Meter]
	// callers is how many callers wait for the result of the pull.
	callers atomic.Int32
}

// newMeter returns the meter of the pull, which reports to the feed.
func (f *Feed) newMeter() *Meter {
	m := NewMeter(f.Report)
	f.meter.Store(m)
	return m
}

// live is how far the pull has come. A report may call it.
func (f *Feed) live() image.Live {
	var live image.Live
	if m := f.meter.Load(); m != nil {
		live = m.live()
	}
	live.Waiters = int(f.callers.Load())
	return live
}

// Watch calls progress with the current progress, and with all later reports, until stop
// is called.
func (f *Feed) Watch(progress func(image.Progress)) (stop func()) {
	if progress == nil {
		return func() {}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.watchers == nil {
		f.watchers = map[int]func(image.Progress){}
	}
	number := f.next
	f.next++
	f.watchers[number] = progress
	if f.last != nil {
		progress(*f.last)
	}
	return func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		delete(f.watchers, number)
	}
}

// Report sends p to all watchers.
func (f *Feed) Report(p image.Progress) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.last = &p
	for _, progress := range f.watchers {
		progress(p)
	}
}
