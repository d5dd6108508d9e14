package store

import (
	"sync"

	"github.com/berthrun/berth/internal/image"
)

// progressFeed hands the progress of one pull to everybody who waits for it. The zero
// value is ready.
type progressFeed struct {
	mu       sync.Mutex
	watchers map[int]func(image.Progress)
	next     int
	// last is what was reported last, for those who come later.
	last *image.Progress
}

// watch has progress called with what the pull has reached, and with all that follows,
// until stop is called.
func (f *progressFeed) watch(progress func(image.Progress)) (stop func()) {
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

func (f *progressFeed) report(p image.Progress) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.last = &p
	for _, progress := range f.watchers {
		progress(p)
	}
}
