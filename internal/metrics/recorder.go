package metrics

import (
	"context"
	"errors"
	"path"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/berthrun/berth/internal/errs"
)

// Recorder counts events. Its methods take no lock that waits and may be called from anywhere. It
// implements the observers of packages cri, pod, network/cni and image.
type Recorder struct {
	operations                       *prometheus.CounterVec
	operationTimes                   *prometheus.HistogramVec
	inFlight                         *prometheus.GaugeVec
	byMethod                         grown[*operation]
	jobs                             *prometheus.CounterVec
	jobTimes, stageTimes             *prometheus.HistogramVec
	resumed, slow                    *prometheus.CounterVec
	stageNames                       names
	plugins, pluginErrors            *prometheus.CounterVec
	pluginTimes                      *prometheus.HistogramVec
	pluginNames                      names
	pulls                            *prometheus.CounterVec
	pullTimes                        prometheus.Observer
	pullBytes                        prometheus.Counter
	pulling                          prometheus.Gauge
	exits, leaksFound, leaksRepaired *prometheus.CounterVec
	build                            *prometheus.GaugeVec
	reasonNames                      names
}

// operation is one method of the socket.
type operation struct {
	api, method string
	ok          prometheus.Counter
	took        prometheus.Observer
	inFlight    prometheus.Gauge
}

// durations are the bounds of histograms in seconds: from a list of pods, which takes less than a
// millisecond, to a container's grace period.
func durations() []float64 {
	return []float64{.0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 120}
}

// stageDurations are those of stages: many take less than the shortest call.
func stageDurations() []float64 {
	return append([]float64{.0001, .00025}, durations()...)
}

// pullDurations are those of pulls.
func pullDurations() []float64 {
	return []float64{.1, .25, .5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600, 1800}
}

// newRecorder registers the metrics of events.
func newRecorder(registry *prometheus.Registry) *Recorder {
	r := &Recorder{}
	counters := map[string]**prometheus.CounterVec{
		operationsTotal: &r.operations, jobsTotal: &r.jobs, jobsResumedTotal: &r.resumed, jobsSlowTotal: &r.slow,
		cniTotal: &r.plugins, cniErrorsTotal: &r.pluginErrors, pullsTotal: &r.pulls, exitsTotal: &r.exits,
		leaksFoundTotal: &r.leaksFound, leaksRepairedTotal: &r.leaksRepaired, pullBytesTotal: nil,
	}
	gauges := map[string]**prometheus.GaugeVec{operationsInFlight: &r.inFlight, buildInfo: &r.build, pullsInFlight: nil}
	histograms := map[string]**prometheus.HistogramVec{
		operationSeconds: &r.operationTimes, jobSeconds: &r.jobTimes, jobStageSeconds: &r.stageTimes, cniSeconds: &r.pluginTimes, pullSeconds: nil,
	}
	for _, f := range eventFamilies() {
		switch f.Type {
		case Counter:
			vec := prometheus.NewCounterVec(prometheus.CounterOpts{Name: f.Name, Help: f.Help}, f.Labels)
			if to := counters[f.Name]; to != nil {
				*to = vec
			} else {
				r.pullBytes = vec.WithLabelValues()
			}
			registry.MustRegister(vec)
		case Gauge:
			vec := prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: f.Name, Help: f.Help}, f.Labels)
			if to := gauges[f.Name]; to != nil {
				*to = vec
			} else {
				r.pulling = vec.WithLabelValues()
			}
			registry.MustRegister(vec)
		case Histogram:
			buckets := durations()
			switch f.Name {
			case jobStageSeconds:
				buckets = stageDurations()
			case pullSeconds:
				buckets = pullDurations()
			}
			vec := prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: f.Name, Help: f.Help, Buckets: buckets}, f.Labels)
			if to := histograms[f.Name]; to != nil {
				*to = vec
			} else {
				r.pullTimes = vec.WithLabelValues()
			}
			registry.MustRegister(vec)
		}
	}
	// What has not happened is 0, so that queries and alerts have data.
	for _, kind := range []string{"sandbox", "container", "attachment", "address", "files"} {
		r.leaksFound.WithLabelValues(kind)
		r.leaksRepaired.WithLabelValues(kind)
	}
	for _, reason := range []string{"Completed", "Error", "OOMKilled", "StartError"} {
		r.exits.WithLabelValues(r.reasonNames.of(reason))
	}
	r.pulls.WithLabelValues("ok")
	return r
}

// RequestBegan implements cri.Observer.
func (r *Recorder) RequestBegan(fullMethod string) {
	r.operation(fullMethod).inFlight.Inc()
}

// RequestEnded implements cri.Observer.
func (r *Recorder) RequestEnded(fullMethod, code string, took time.Duration) {
	op := r.operation(fullMethod)
	op.inFlight.Dec()
	if code == "OK" {
		op.ok.Inc()
	} else {
		r.operations.WithLabelValues(op.api, op.method, code).Inc()
	}
	if op.took != nil {
		op.took.Observe(took.Seconds())
	}
}

func (r *Recorder) operation(fullMethod string) *operation {
	return r.byMethod.get(fullMethod, func(key string) *operation {
		api, method := apiOf(path.Dir(key)), path.Base(key)
		op := &operation{api: api, method: method, ok: r.operations.WithLabelValues(api, method, "OK"), inFlight: r.inFlight.WithLabelValues(api, method)}
		if method != operationOfListeners {
			op.took = r.operationTimes.WithLabelValues(api, method)
		}
		return op
	})
}

// apiOf is the short name of a service of gRPC.
func apiOf(service string) string {
	switch service = strings.TrimPrefix(service, "/"); service {
	case "runtime.v1.RuntimeService":
		return "runtime"
	case "runtime.v1.ImageService":
		return "image"
	case ".", "":
		return otherValue
	}
	name, _, _ := strings.Cut(service, ".")
	return name
}

// StageEnded implements job.Observer.
func (r *Recorder) StageEnded(job, stage string, took time.Duration) {
	r.stageTimes.WithLabelValues(job, r.stageNames.of(stage)).Observe(took.Seconds())
}

// StageSlow implements job.Observer.
func (r *Recorder) StageSlow(job, stage string) {
	r.slow.WithLabelValues(job, r.stageNames.of(stage)).Inc()
}

// JobEnded implements job.Observer.
func (r *Recorder) JobEnded(job, result string, took time.Duration) {
	r.jobs.WithLabelValues(job, result).Inc()
	r.jobTimes.WithLabelValues(job).Observe(took.Seconds())
}

// JobResumed implements pod.Observer.
func (r *Recorder) JobResumed(job string) { r.resumed.WithLabelValues(job).Inc() }

// ContainerExited implements pod.Observer.
func (r *Recorder) ContainerExited(reason string) {
	r.exits.WithLabelValues(r.reasonNames.of(reason)).Inc()
}

// LeakFound implements pod.Observer and cni.Observer.
func (r *Recorder) LeakFound(kind string) {
	r.leaksFound.WithLabelValues(kind).Inc()
}

// LeakRepaired implements pod.Observer and cni.Observer.
func (r *Recorder) LeakRepaired(kind string) { r.leaksRepaired.WithLabelValues(kind).Inc() }

// PluginCalled implements cni.Observer.
func (r *Recorder) PluginCalled(plugin, operation string, took time.Duration, err error) {
	plugin = r.pluginNames.of(plugin)
	r.plugins.WithLabelValues(plugin, operation).Inc()
	r.pluginTimes.WithLabelValues(plugin, operation).Observe(took.Seconds())
	failures := r.pluginErrors.WithLabelValues(plugin, operation) // 0 from the first call on
	if err != nil {
		failures.Inc()
	}
}

// PullBegan implements image.PullObserver.
func (r *Recorder) PullBegan() { r.pulling.Inc() }

// PullEnded implements image.PullObserver.
func (r *Recorder) PullEnded(bytes int64, took time.Duration, err error) {
	r.pulling.Dec()
	r.pulls.WithLabelValues(pullResult(err)).Inc()
	r.pullTimes.Observe(took.Seconds())
	r.pullBytes.Add(float64(max(bytes, 0)))
}

// pullResult is the kind of an error, in the form of a label. The clients of a pull that is cancelled have left it.
func pullResult(err error) string {
	if err == nil {
		return "ok"
	}
	kind := errs.Kind(err)
	switch {
	case errors.Is(err, context.Canceled):
		return "cancelled"
	case kind == nil:
		return "internal"
	}
	return strings.ReplaceAll(kind.Error(), " ", "_")
}
