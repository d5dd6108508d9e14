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
}

// newMeter returns the meter of the pull, which reports to the feed.
func (f *Feed) newMeter() *Meter {
	m := NewMeter(f.Report)
	f.meter.Store(m)
	return m
}

// Fetched is how many bytes the pull has fetched so far.
func (f *Feed) Fetched() int64 {
	if m := f.meter.Load(); m != nil {
		return m.Fetched()
	}
	return 0
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
