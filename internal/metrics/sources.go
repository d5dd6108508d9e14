package metrics

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
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

// sources collects the figures of all sources.
type sources struct {
	descs       map[string]*prometheus.Desc
	types       map[string]Type
	up, seconds *prometheus.Desc
	supervisor  atomic.Int64
	mu          sync.Mutex
	all         []Source
}

func newSources() *sources {
	s := &sources{descs: map[string]*prometheus.Desc{}, types: map[string]Type{}}
	for _, f := range slices.Concat(scrapedFamilies(), ownFamilies()) {
		s.descs[f.Name], s.types[f.Name] = prometheus.NewDesc(f.Name, f.Help, f.Labels, nil), f.Type
	}
	s.up, s.seconds = s.descs[sourceUp], s.descs[sourceSeconds]
	return s
}

func (s *sources) add(source Source) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.all = append(s.all, source)
}

// SetSupervisorPid names the process of the supervisor, of which the kernel's figures are shown. 0 is none.
func (m *Metrics) SetSupervisorPid(pid int) { m.sources.supervisor.Store(int64(pid)) }

// supervisorPid is for the collector of processes. Without a supervisor it gets a pid that no process has.
func (s *sources) supervisorPid() (int, error) { return int(s.supervisor.Load()), nil }

// Describe implements prometheus.Collector.
func (s *sources) Describe(to chan<- *prometheus.Desc) {
	for _, desc := range s.descs {
		to <- desc
	}
}

// Collect implements prometheus.Collector. Sources are read side by side: one that hangs until its time is
// over does not delay the others.
func (s *sources) Collect(to chan<- prometheus.Metric) {
	s.mu.Lock()
	all := slices.Clone(s.all)
	s.mu.Unlock()
	var group sync.WaitGroup
	for _, source := range all {
		group.Go(func() { s.collect(source, to) })
	}
	group.Wait()
}

func (s *sources) collect(source Source, to chan<- prometheus.Metric) {
	ctx, cancel := context.WithTimeout(context.Background(), secondsOfOneSource*time.Second)
	defer cancel()
	began, up := time.Now(), 1.0
	err := source.Read(ctx, func(name string, value float64, labels ...string) {
		kind := prometheus.GaugeValue
		if s.types[name] == Counter {
			kind = prometheus.CounterValue
		}
		metric, err := prometheus.NewConstMetric(s.descs[name], kind, value, labels...)
		if err != nil {
			metric = prometheus.NewInvalidMetric(s.descs[name], err)
		}
		to <- metric
	})
	if err != nil {
		up = 0
	}
	to <- prometheus.MustNewConstMetric(s.up, prometheus.GaugeValue, up, source.Name)
	to <- prometheus.MustNewConstMetric(s.seconds, prometheus.GaugeValue, time.Since(began).Seconds(), source.Name)
}
