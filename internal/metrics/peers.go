package metrics

import (
	"cmp"
	"log/slog"
	"math"
	"slices"
	"strings"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
)

// The runtimes whose names the metrics can have as well, so that dashboards and alerts made for them work.
const (
	Containerd = "containerd"
	CRIO       = "crio"
	Dockershim = "dockershim"
)

// PeerNames are all of them.
func PeerNames() []string { return []string{Containerd, CRIO, Dockershim} }

// peerFamily is a metric of another runtime. Its values are those of one of ours.
type peerFamily struct {
	peer, name string
	// from is our metric, of the values whose labels are those of where. What is not in keep is summed up.
	from  string
	where map[string][]string
	// keep is a label of ours to a label of theirs.
	keep map[string]string
	// label rewrites the value of one of their labels; "" leaves the value out. Nil: as it is.
	label func(name, value string) string
	// add are labels of theirs with one value.
	add map[string]string
	// as is the type of the metric. A counter made from a histogram has its count. A summary made from one has
	// its count, its sum and quantiles that are estimated from its buckets.
	as dto.MetricType
}

// containerdTimer is one of containerd's timers of CRI calls. runtime says that it has that label.
func containerdTimer(name, method string, runtime bool) peerFamily {
	f := peerFamily{
		peer: Containerd, name: "containerd_cri_" + name + "_seconds", from: operationSeconds,
		where: map[string][]string{"api": {"runtime"}, "method": {method}}, as: dto.MetricType_HISTOGRAM,
	}
	if runtime {
		f.add = map[string]string{"runtime": "berth"}
	}
	return f
}

// stageTimer is one of containerd's timers of a part of a call, which is a stage here.
func stageTimer(name, stage string, add map[string]string) peerFamily {
	return peerFamily{
		peer: Containerd, name: "containerd_cri_" + name + "_seconds", from: jobStageSeconds,
		where: map[string][]string{"stage": {stage}}, add: add, as: dto.MetricType_HISTOGRAM,
	}
}

// networkOperations are containerd's words for what is done with a pod's network.
func networkOperations(_, stage string) string {
	return map[string]string{"attach network": "set_up_pod", "detach network": "tear_down_pod"}[stage]
}

// peerFamilies are all metrics of other runtimes that have a counterpart.
func peerFamilies() []peerFamily {
	const counter, gauge, histogram, summary = dto.MetricType_COUNTER, dto.MetricType_GAUGE, dto.MetricType_HISTOGRAM, dto.MetricType_SUMMARY
	stages := map[string][]string{"stage": {"attach network", "detach network"}}
	operation, call := map[string]string{"method": "operation"}, map[string]string{"call": "operation_type"}
	grpc := map[string]string{"api": "grpc_service", "method": "grpc_method", "code": "grpc_code"}
	grpcTimes := map[string]string{"api": "grpc_service", "method": "grpc_method"}
	networkOperation := map[string]string{"stage": "operation_type"}
	berth := map[string]string{"runtime": "berth"}
	return []peerFamily{
		containerdTimer("sandbox_list", "ListPodSandbox", false),
		containerdTimer("stream_sandbox_list", "StreamPodSandboxes", false),
		stageTimer("sandbox_create_network", "attach network", nil),
		stageTimer("sandbox_delete_network", "detach network", nil),
		stageTimer("sandbox_runtime_create", "create sandbox", berth),
		containerdTimer("sandbox_runtime_stop", "StopPodSandbox", true),
		containerdTimer("sandbox_remove", "RemovePodSandbox", true),
		containerdTimer("container_list", "ListContainers", false),
		containerdTimer("stream_container_list", "StreamContainers", false),
		containerdTimer("container_create", "CreateContainer", true),
		containerdTimer("container_start", "StartContainer", true),
		containerdTimer("container_stop", "StopContainer", true),
		containerdTimer("container_remove", "RemoveContainer", true),
		containerdTimer("container_checkpoint", "CheckpointContainer", true),
		{peer: Containerd, name: "containerd_cri_container_events_dropped_total", from: EventsDropped, as: counter},
		{peer: Containerd, name: "containerd_cri_network_plugin_operations_total_total", from: jobStageSeconds, where: stages, keep: networkOperation, label: networkOperations, as: counter},
		{peer: Containerd, name: "containerd_cri_network_plugin_operations_duration_seconds_seconds", from: jobStageSeconds, where: stages, keep: networkOperation, label: networkOperations, as: histogram},
		{peer: Containerd, name: "containerd_cri_network_plugin_operations_errors_total_total", from: cniErrorsTotal, where: map[string][]string{"operation": {"ADD", "DEL"}}, keep: map[string]string{"operation": "operation_type"}, label: networkVerbs, as: counter},
		{peer: Containerd, name: "containerd_cri_sandboxed_image_pulls_total", from: pullsTotal, keep: map[string]string{"result": "status"}, label: successOrFailure, as: counter},
		{peer: Containerd, name: "containerd_cri_sandboxed_in_progress_image_pulls_total", from: pullsInFlight, as: gauge},
		{peer: Containerd, name: "containerd_cri_input_bytes_total", from: LogReadBytes, as: counter},
		{peer: Containerd, name: "containerd_cri_output_bytes_total", from: LogWrittenBytes, as: counter},
		{peer: Containerd, name: "containerd_cri_output_entries_total", from: LogWrittenLines, as: counter},
		{peer: Containerd, name: "containerd_build_info_total", from: buildInfo, keep: map[string]string{"version": "version", "commit": "revision"}, as: counter},
		{peer: Containerd, name: "grpc_server_handled_total", from: operationsTotal, keep: grpc, label: grpcLabels, add: map[string]string{"grpc_type": "unary"}, as: counter},
		{peer: Containerd, name: "grpc_server_handling_seconds", from: operationSeconds, keep: grpcTimes, label: grpcLabels, add: map[string]string{"grpc_type": "unary"}, as: histogram},

		{peer: CRIO, name: "container_runtime_crio_operations_total", from: operationsTotal, keep: operation, as: counter},
		{peer: CRIO, name: "container_runtime_crio_operations_errors_total", from: operationsTotal, where: map[string][]string{"code": notOK()}, keep: operation, as: counter},
		{peer: CRIO, name: "container_runtime_crio_operations_latency_seconds_total", from: operationSeconds, keep: operation, as: summary},
		{peer: CRIO, name: "container_runtime_crio_operations_latency_seconds_total", from: jobStageSeconds, where: map[string][]string{"stage": {"attach network"}}, keep: map[string]string{"stage": "operation"}, label: crioStages, as: summary},
		{peer: CRIO, name: "container_runtime_crio_image_pulls_success_total", from: pullsTotal, where: map[string][]string{"result": {"ok"}}, as: counter},
		{peer: CRIO, name: "container_runtime_crio_image_pulls_failure_total", from: pullsTotal, keep: map[string]string{"result": "error"}, label: crioPullError, as: counter},
		{peer: CRIO, name: "container_runtime_crio_image_pulls_bytes_total", from: pullBytesTotal, add: map[string]string{"mediatype": "", "size": ""}, as: counter},
		{peer: CRIO, name: "container_runtime_crio_containers_oom_total", from: exitsTotal, where: map[string][]string{"reason": {"OOMKilled"}}, as: counter},
		{peer: CRIO, name: "container_runtime_crio_containers_events_dropped_total", from: EventsDropped, as: counter},
		{peer: CRIO, name: "container_runtime_crio_resources_stalled_at_stage", from: jobsSlowTotal, keep: map[string]string{"stage": "stage"}, as: counter},
		{peer: CRIO, name: "container_runtime_crio_default_runtime", from: buildInfo, add: berth, as: gauge},

		{peer: Dockershim, name: "kubelet_docker_operations_total", from: EngineCalls, keep: call, as: counter},
		{peer: Dockershim, name: "kubelet_docker_operations_errors_total", from: EngineCallErrors, keep: call, as: counter},
		{peer: Dockershim, name: "kubelet_docker_operations_timeout_total", from: EngineCallTimeouts, keep: call, as: counter},
		{peer: Dockershim, name: "kubelet_network_plugin_operations_total", from: jobStageSeconds, where: stages, keep: networkOperation, label: networkOperations, as: counter},
		{peer: Dockershim, name: "kubelet_network_plugin_operations_errors_total", from: cniErrorsTotal, where: map[string][]string{"operation": {"ADD", "DEL"}}, keep: map[string]string{"operation": "operation_type"}, label: networkVerbs, as: counter},
		{peer: Dockershim, name: "kubelet_network_plugin_operations_duration_seconds", from: jobStageSeconds, where: stages, keep: networkOperation, label: networkOperations, as: histogram},
	}
}

// notOK are the codes of gRPC but for OK.
func notOK() []string {
	return []string{
		"Canceled", "Unknown", "InvalidArgument", "DeadlineExceeded", "NotFound", "AlreadyExists", "PermissionDenied", "ResourceExhausted",
		"FailedPrecondition", "Aborted", "OutOfRange", "Unimplemented", "Internal", "Unavailable", "DataLoss", "Unauthenticated",
	}
}

// networkVerbs are containerd's words for the verbs of CNI.
func networkVerbs(_, verb string) string {
	return map[string]string{"ADD": "set_up_pod", "DEL": "tear_down_pod"}[verb]
}

func successOrFailure(_, result string) string {
	if result == "ok" {
		return "success"
	}
	return "failure"
}

// crioPullError leaves out pulls that succeeded.
func crioPullError(_, result string) string {
	if result == "ok" {
		return ""
	}
	return strings.ToUpper(result)
}

// crioStages are CRI-O's words for what it measures beside calls.
func crioStages(_, stage string) string {
	return map[string]string{"attach network": "network_setup_pod"}[stage]
}

// grpcLabels are the names that servers of gRPC use in Go.
func grpcLabels(label, value string) string {
	if label != "grpc_service" {
		return value
	}
	return map[string]string{"runtime": "runtime.v1.RuntimeService", "image": "runtime.v1.ImageService"}[value]
}

// peers adds metrics of other runtimes to ours. They are made from ours at each scrape, so an event
// is counted once.
type peers struct {
	own   prometheus.Gatherer
	names atomic.Pointer[[]string]
	// failed is true when the last scrape has left out values.
	failed atomic.Bool
}

func (p *peers) set(names []string) { p.names.Store(&names) }

// Gather implements prometheus.Gatherer.
func (p *peers) Gather() ([]*dto.MetricFamily, error) {
	all, err := p.own.Gather()
	if failed := err != nil; p.failed.Swap(failed) != failed && failed {
		slog.Error("metrics: a fault in berth leaves values out", "error", err)
	}
	wanted := p.names.Load()
	if wanted == nil || len(*wanted) == 0 {
		return all, err
	}
	byName := map[string]*dto.MetricFamily{}
	for _, family := range all {
		byName[family.GetName()] = family
	}
	for _, peer := range peerFamilies() {
		if from := byName[peer.from]; from != nil && slices.Contains(*wanted, peer.peer) {
			derived := peer.derive(from)
			switch have := byName[peer.name]; {
			case len(derived.Metric) == 0:
			case have != nil: // other values of one metric
				have.Metric = append(have.Metric, derived.Metric...)
			default:
				byName[peer.name] = derived
				all = append(all, derived)
			}
		}
	}
	slices.SortFunc(all, func(a, b *dto.MetricFamily) int { return cmp.Compare(a.GetName(), b.GetName()) })
	return all, err
}

// derive makes the metric from ours.
func (f *peerFamily) derive(from *dto.MetricFamily) *dto.MetricFamily {
	help := f.help()
	derived := &dto.MetricFamily{Name: &f.name, Help: &help, Type: f.as.Enum()}
	sums := map[string]*dto.Metric{}
	for _, m := range from.Metric {
		labels, ok := f.labels(m)
		if !ok {
			continue
		}
		key := keyOf(labels)
		sum := sums[key]
		if sum == nil {
			sum = &dto.Metric{Label: labels}
			sums[key] = sum
			derived.Metric = append(derived.Metric, sum)
		}
		f.addTo(sum, m)
	}
	if f.as == dto.MetricType_SUMMARY {
		for _, sum := range derived.Metric {
			sum.Summary, sum.Histogram = summaryOf(sum.Histogram), nil
		}
	}
	slices.SortFunc(derived.Metric, func(a, b *dto.Metric) int { return cmp.Compare(keyOf(a.Label), keyOf(b.Label)) })
	return derived
}

func (f *peerFamily) help() string { return "As " + f.peer + " has it, from " + f.from + "." }

func keyOf(labels []*dto.LabelPair) string {
	var key strings.Builder
	for _, l := range labels {
		key.WriteString(l.GetName() + "\x00" + l.GetValue() + "\x00")
	}
	return key.String()
}

// labels are the labels of a value of ours in the peer's words, in their order. ok is false for a value that the peer does not have.
func (f *peerFamily) labels(m *dto.Metric) (labels []*dto.LabelPair, ok bool) {
	values := map[string]string{}
	for _, l := range m.Label {
		values[l.GetName()] = l.GetValue()
	}
	for name, accepted := range f.where {
		if !slices.Contains(accepted, values[name]) {
			return nil, false
		}
	}
	add := func(name, value string) { labels = append(labels, &dto.LabelPair{Name: &name, Value: &value}) }
	for ours, theirs := range f.keep {
		value := values[ours]
		if f.label != nil {
			if value = f.label(theirs, value); value == "" {
				return nil, false
			}
		}
		add(theirs, value)
	}
	for name, value := range f.add {
		add(name, value)
	}
	slices.SortFunc(labels, func(a, b *dto.LabelPair) int { return cmp.Compare(a.GetName(), b.GetName()) })
	return labels, true
}

// addTo adds a value of ours to one of the peer's.
func (f *peerFamily) addTo(sum, m *dto.Metric) {
	value := m.GetCounter().GetValue() + m.GetGauge().GetValue()
	switch f.as {
	case dto.MetricType_GAUGE:
		total := sum.GetGauge().GetValue() + value
		sum.Gauge = &dto.Gauge{Value: &total}
	case dto.MetricType_HISTOGRAM, dto.MetricType_SUMMARY: // derive makes the summary from the sum
		sum.Histogram = addHistograms(sum.Histogram, m.Histogram)
	default:
		total := sum.GetCounter().GetValue() + value + float64(m.GetHistogram().GetSampleCount())
		sum.Counter = &dto.Counter{Value: &total}
	}
}

// addHistograms adds two histograms with the same bounds. a may be nil.
func addHistograms(a, b *dto.Histogram) *dto.Histogram {
	count, seconds := a.GetSampleCount()+b.GetSampleCount(), a.GetSampleSum()+b.GetSampleSum()
	sum := &dto.Histogram{SampleCount: &count, SampleSum: &seconds}
	for i, bucket := range b.GetBucket() {
		total := bucket.GetCumulativeCount()
		if i < len(a.GetBucket()) {
			total += a.Bucket[i].GetCumulativeCount()
		}
		sum.Bucket = append(sum.Bucket, &dto.Bucket{UpperBound: bucket.UpperBound, CumulativeCount: &total})
	}
	return sum
}

// summaryOf returns a summary with the quantiles that CRI-O has.
func summaryOf(h *dto.Histogram) *dto.Summary {
	s := &dto.Summary{SampleCount: h.SampleCount, SampleSum: h.SampleSum}
	for _, quantile := range []float64{0.5, 0.9, 0.99} {
		value := estimate(h, quantile)
		s.Quantile = append(s.Quantile, &dto.Quantile{Quantile: &quantile, Value: &value})
	}
	return s
}

// estimate returns a quantile of a histogram, as if its values were spread evenly over each bucket, NaN when it
// has none. What is above the highest bound counts as that bound.
func estimate(h *dto.Histogram, quantile float64) float64 {
	rank := quantile * float64(h.GetSampleCount())
	if rank == 0 {
		return math.NaN()
	}
	lowest, below := 0.0, uint64(0)
	for _, bucket := range h.GetBucket() {
		bound, count := bucket.GetUpperBound(), bucket.GetCumulativeCount()
		if math.IsInf(bound, 1) {
			break
		}
		if float64(count) >= rank {
			return lowest + (bound-lowest)*(rank-float64(below))/float64(count-below)
		}
		lowest, below = bound, count
	}
	return lowest
}
