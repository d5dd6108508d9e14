package meter

import (
	"errors"
	"sync"
	"time"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/sys/cgroup"
)

// sampleEvery is the window over which a rate of CPU is measured: short enough for
// autoscaling, and long enough to cost little.
const sampleEvery = 5 * time.Second

// rates samples how much CPU each watched object uses.
type rates struct {
	read func(cgroup.Paths) (uint64, error)
	stop chan struct{}
	done sync.WaitGroup

	mu      sync.Mutex
	watched map[string]*sample
}

// sample is the last reading of one thing, and the rate up to it.
type sample struct {
	groups cgroup.Paths
	at     time.Time
	cpu    uint64
	rate   uint64
	// rated is false until there were two readings.
	rated bool
}

func newRates(read func(cgroup.Paths) (uint64, error)) *rates {
	return &rates{read: read, stop: make(chan struct{}), watched: map[string]*sample{}}
}

func (r *rates) start(every time.Duration) {
	r.done.Go(func() {
		ticker := time.NewTicker(every)
		defer ticker.Stop()
		for {
			select {
			case <-ticker.C:
				r.sampleAll()
			case <-r.stop:
				return
			}
		}
	})
}

func (r *rates) close() {
	close(r.stop)
	r.done.Wait()
}

// begin is watch with a reading of its own: a pod's cgroup may have been another
// sandbox's before. One that cannot be read is watched from the first request on.
func (r *rates) begin(id string, groups cgroup.Paths) {
	at := time.Now()
	if cpu, err := r.read(groups); err == nil {
		r.watch(id, groups, at, cpu)
	}
}

// watch begins with a first reading; what is watched already keeps its own.
func (r *rates) watch(id string, groups cgroup.Paths, at time.Time, cpu uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.watched[id] == nil {
		r.watched[id] = &sample{groups: groups, at: at, cpu: cpu}
	}
}

func (r *rates) forget(id string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.watched, id)
}

// rate is nanoseconds of CPU per second over the last window; not ok before the
// first.
func (r *rates) rate(id string) (rate uint64, ok bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	s := r.watched[id]
	if s == nil {
		return 0, false
	}
	return s.rate, s.rated
}

func (r *rates) sampleAll() {
	r.mu.Lock()
	groups := make(map[string]cgroup.Paths, len(r.watched))
	for id, s := range r.watched {
		groups[id] = s.groups
	}
	r.mu.Unlock()
	for id, paths := range groups {
		at := time.Now()
		cpu, err := r.read(paths)
		if errors.Is(err, errs.NotFound) {
			r.forget(id) // it has ended; the next request watches it again
			continue
		}
		if err == nil {
			r.take(id, at, cpu)
		}
	}
}

// take makes a rate of two readings. A counter that went back was of something
// else: the reading is a first one.
func (r *rates) take(id string, at time.Time, cpu uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	s := r.watched[id]
	if s == nil {
		return
	}
	elapsed := at.Sub(s.at)
	if elapsed <= 0 {
		return
	}
	s.rated = cpu >= s.cpu
	if s.rated {
		s.rate = uint64(float64(cpu-s.cpu) / elapsed.Seconds())
	}
	s.at, s.cpu = at, cpu
}
