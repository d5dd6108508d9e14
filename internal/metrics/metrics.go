// Package metrics is the daemon's metrics in the form of Prometheus: their names, the recorder of events, and
// the figures that are read at a scrape.
//
// It is the only package that imports Prometheus' library. Other packages call small interfaces, which
// Recorder implements, or have figures that the daemon hands over as sources. No label has the name of a
// pod, a container or an image, and each label has a bounded number of values.
package metrics

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"runtime"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// Metrics are those of one daemon.
type Metrics struct {
	*Recorder
	registry *prometheus.Registry
	sources  *sources
	peers    *peers
	// handler is for the network, text for berth's own socket.
	handler, text http.Handler
}

// New makes the metrics of a daemon of this version.
func New(version, commit string) *Metrics {
	m := &Metrics{registry: prometheus.NewRegistry(), sources: newSources()}
	m.Recorder = newRecorder(m.registry)
	m.build.WithLabelValues(version, commit, runtime.Version()).Set(1)
	m.registry.MustRegister(
		m.sources, collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
	)
	m.peers = &peers{own: m.registry}
	opts := promhttp.HandlerOpts{ErrorHandling: promhttp.ContinueOnError} // it would log clients that leave; peers logs faults of berth
	m.text = promhttp.HandlerFor(m.peers, opts)
	opts.MaxRequestsInFlight = scrapesAtOnce
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(m.peers, opts))
	m.handler = mux
	return m
}

// supervisorPrefix begins the names of what the kernel counts of the supervisor.
const supervisorPrefix = "berth_supervisor"

// SetPeers adds the metrics of other runtimes; see PeerNames.
func (m *Metrics) SetPeers(names []string) { m.peers.set(names) }

// AddSource has a scrape call a source. It may be called at any time.
func (m *Metrics) AddSource(source Source) { m.sources.add(source) }

// Handler serves the metrics at the path /metrics in the formats of Prometheus, to a few clients at a time.
func (m *Metrics) Handler() http.Handler { return m.handler }

// Text returns the metrics in Prometheus' text format. It does not wait for the clients of Handler.
func (m *Metrics) Text(ctx context.Context) ([]byte, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "/metrics", http.NoBody)
	if err != nil {
		return nil, err
	}
	var answer answer
	m.text.ServeHTTP(&answer, req)
	if answer.status >= http.StatusBadRequest {
		return nil, fmt.Errorf("cannot collect metrics: %s", bytes.TrimSpace(answer.body.Bytes()))
	}
	return answer.body.Bytes(), nil
}

// answer is the answer of an HTTP handler.
type answer struct {
	header http.Header
	status int
	body   bytes.Buffer
}

// Header implements http.ResponseWriter.
func (a *answer) Header() http.Header {
	if a.header == nil {
		a.header = http.Header{}
	}
	return a.header
}

// Write implements http.ResponseWriter.
func (a *answer) Write(p []byte) (int, error) { return a.body.Write(p) }

// WriteHeader implements http.ResponseWriter.
func (a *answer) WriteHeader(status int) { a.status = status }
