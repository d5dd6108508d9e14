package metrics

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"

	"github.com/berthrun/berth/internal/errs"
)

// Source has figures that are read at a scrape.
type Source struct {
	// Name is for the metrics about the scrape, in lower case: "images".
	Name string
	// Read calls set for each value, with one of the exported names of this package and its labels in their
	// order. It returns soon after ctx has ended. What it has set before an error counts.
	Read func(ctx context.Context, set Set) error
}

// Set takes one value of a metric.
type Set func(name string, value float64, labels ...string)

// sources collects the figures of all sources, and what the kernel counts of the supervisor.
type sources struct {
	descs       map[string]*prometheus.Desc
	types       map[string]Type
	up, seconds *prometheus.Desc
	// supervisor is the pid of the supervisor, 0 for none. process is of it.
	supervisor atomic.Int64
	process    prometheus.Collector
	mu         sync.Mutex
	all        []*watched
}

func newSources() *sources {
	s := &sources{descs: map[string]*prometheus.Desc{}, types: map[string]Type{}}
	for _, f := range slices.Concat(scrapedFamilies(), ownFamilies()) {
		s.descs[f.Name], s.types[f.Name] = prometheus.NewDesc(f.Name, f.Help, f.Labels, nil), f.Type
	}
	s.up, s.seconds = s.descs[sourceUp], s.descs[sourceSeconds]
	s.process = collectors.NewProcessCollector(collectors.ProcessCollectorOpts{
		Namespace: supervisorPrefix, PidFn: func() (int, error) { return int(s.supervisor.Load()), nil },
	})
	return s
}

func (s *sources) add(source Source) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.all = append(s.all, &watched{Source: source})
}

// SetSupervisorPid names the process of the supervisor, of which the kernel's figures are shown. 0 is none. A source may
// call it: its scrape has the figures then.
func (m *Metrics) SetSupervisorPid(pid int) { m.sources.supervisor.Store(int64(pid)) }

// Describe implements prometheus.Collector.
func (s *sources) Describe(to chan<- *prometheus.Desc) {
	for _, desc := range s.descs {
		to <- desc
	}
	s.process.Describe(to)
}

// Collect implements prometheus.Collector. Sources are read side by side: one that hangs does not delay the
// others.
func (s *sources) Collect(to chan<- prometheus.Metric) {
	s.mu.Lock()
	all := slices.Clone(s.all)
	s.mu.Unlock()
	var group sync.WaitGroup
	for _, source := range all {
		group.Go(func() { s.collect(source, to) })
	}
	group.Wait()
	s.process.Collect(to) // not before: a source knows the supervisor's pid
}

// watched is a source.
type watched struct {
	Source
	// failed is true when the last reading has failed.
	failed atomic.Bool

	mu sync.Mutex
	// now is the reading under way, nil for none.
	now *reading
}

// errLate is the fault of a source that did not return in time, for example because a file system hangs.
var errLate = fmt.Errorf("no answer within %d seconds", secondsOfOneSource)

// report logs a failure of a source once.
func (w *watched) report(err error) {
	if failed := err != nil; w.failed.Swap(failed) != failed && failed {
		slog.Warn("metrics: the figures of a part cannot be read", "part", w.Name, "error", err)
	}
}

// reading is what one reading of a source has set so far.
type reading struct {
	// done is closed when the source has returned, late at the latest when it has not returned in time.
	done, late <-chan struct{}

	mu      sync.Mutex
	metrics []prometheus.Metric
	err     error
}

func (s *sources) collect(source *watched, to chan<- prometheus.Metric) {
	began := time.Now()
	r := s.join(source)
	select {
	case <-r.done:
	case <-r.late:
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	source.report(r.err)
	for _, metric := range r.metrics {
		to <- metric
	}
	up := 1.0
	if r.err != nil {
		up = 0
	}
	to <- prometheus.MustNewConstMetric(s.up, prometheus.GaugeValue, up, source.Name)
	to <- prometheus.MustNewConstMetric(s.seconds, prometheus.GaugeValue, time.Since(began).Seconds(), source.Name)
}

// join returns the reading of a source that is under way, or begins one: scrapes at the same time share it. A
// source that did not return in time is left alone, and not read again before it has returned.
func (s *sources) join(source *watched) *reading {
	source.mu.Lock()
	defer source.mu.Unlock()
	if source.now == nil {
		source.now = s.begin(source)
		return source.now
	}
	select {
	case <-source.now.late:
		return &reading{late: source.now.late, err: errLate} // what it had set is old
	default:
		return source.now
	}
}

// begin reads a source. source.mu is held.
func (s *sources) begin(source *watched) *reading {
	ctx, cancel := context.WithTimeout(context.Background(), secondsOfOneSource*time.Second)
	done := make(chan struct{})
	r := &reading{done: done, late: ctx.Done(), err: errLate}
	go func() {
		defer cancel()
		defer close(done)
		r.end(errs.Guard("reading of metrics of "+source.Name, func() error {
			return source.Read(ctx, func(name string, value float64, labels ...string) { r.add(s.metric(name, value, labels)) })
		}))
		source.mu.Lock()
		defer source.mu.Unlock()
		source.now = nil
	}()
	return r
}

func (r *reading) end(err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.err = err
}

func (r *reading) add(metric prometheus.Metric) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.metrics = append(r.metrics, metric)
}

func (s *sources) metric(name string, value float64, labels []string) prometheus.Metric {
	kind := prometheus.GaugeValue
	if s.types[name] == Counter {
		kind = prometheus.CounterValue
	}
	metric, err := prometheus.NewConstMetric(s.descs[name], kind, value, labels...)
	if err != nil {
		return prometheus.NewInvalidMetric(s.descs[name], err)
	}
	return metric
}
