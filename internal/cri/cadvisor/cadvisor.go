// Package cadvisor shows figures of pods as CRI metrics, under the names and labels
// of cAdvisor, which dashboards and alerts know.
//
// It is pure: figures in, messages out. A metric of CRI is a whole number, so
// seconds are whole seconds here.
package cadvisor

import (
	"slices"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berthrun/berth/internal/engine"
	"github.com/berthrun/berth/internal/pod/view"
)

// subject is a pod, a sandbox or a container, as a metric sees it.
type subject struct {
	*engine.Figures
	createdAt int64
	// labels are the values of baseLabels.
	labels []string
}

// baseLabels are the labels that every metric has, as a kubelet's own cAdvisor
// metrics have them.
func baseLabels() []string { return []string{"container", "id", "image", "name", "namespace", "pod"} }

// sandboxImage takes the place of the image of a pause container: dashboards leave out
// sandboxes without an image.
const sandboxImage = "berth/sandbox"

// sample is one value and the values of a metric's own labels.
type sample struct {
	value  uint64
	labels []string
	// at is when it was taken, zero for one that was just read.
	at time.Time
}

// metric is one name.
type metric struct {
	name, help string
	kind       runtimeapi.MetricType
	// labels come after baseLabels.
	labels []string
	// samples returns nothing if the subject has no such figure.
	samples func(s *subject) []sample
}

// Set is a set of metrics.
type Set struct {
	// ofGroups are of cgroups, ofHugePages of those of hosts that count these, and
	// ofNetworks of sandboxes' networks.
	ofGroups, ofHugePages, ofNetworks []metric
}

// The groups of metrics that a Set may leave out.
const (
	GroupCPU     = "cpu"
	GroupMemory  = "memory"
	GroupProcess = "process"
	GroupPSI     = "pressure"
	GroupDisk    = "disk"
	GroupSpec    = "spec"
	GroupHuge    = "hugetlb"
	GroupNetwork = "network"
)

// Groups are all of them.
func Groups() []string {
	return []string{GroupCPU, GroupMemory, GroupProcess, GroupPSI, GroupDisk, GroupSpec, GroupHuge, GroupNetwork}
}

// New makes a set of these groups. Every set has the metrics that show that an object exists.
func New(groups []string) *Set {
	s := &Set{ofGroups: generalMetrics()}
	for _, group := range []struct {
		name    string
		metrics []metric
	}{
		{GroupCPU, cpuMetrics()},
		{GroupMemory, memoryMetrics()},
		{GroupProcess, processMetrics()},
		{GroupPSI, pressureMetrics()},
		{GroupDisk, append(diskMetrics(), deviceMetrics()...)},
		{GroupSpec, specMetrics()},
	} {
		if slices.Contains(groups, group.name) {
			s.ofGroups = append(s.ofGroups, group.metrics...)
		}
	}
	if slices.Contains(groups, GroupHuge) {
		s.ofHugePages = hugePageMetrics()
	}
	if slices.Contains(groups, GroupNetwork) {
		s.ofNetworks = networkMetrics()
	}
	return s
}

// Descriptors describe those of the set that a host can have.
func (s *Set) Descriptors(host *engine.Info) []*runtimeapi.MetricDescriptor {
	groups := [][]metric{s.ofGroups, s.ofNetworks}
	if host.HugePages {
		groups = append(groups, s.ofHugePages)
	}
	var all []*runtimeapi.MetricDescriptor
	for _, group := range groups {
		for _, m := range group {
			all = append(all, &runtimeapi.MetricDescriptor{Name: m.name, Help: m.help, LabelKeys: append(baseLabels(), m.labels...)})
		}
	}
	return all
}

// Pod shows the figures of one pod and its containers.
func (s *Set) Pod(p *view.PodFigures) *runtimeapi.PodSandboxMetrics {
	id := ""
	if p.Figures.Details != nil {
		id = p.Figures.Details.Cgroup
	}
	namespace, name := p.Metadata.GetNamespace(), p.Metadata.GetName()
	group := &subject{p.Figures, p.CreatedAt, []string{"", id, "", "", namespace, name}}
	network := &subject{p.Figures, p.CreatedAt, []string{"", id + "/" + p.ID, sandboxImage, p.ID, namespace, name}}
	out := &runtimeapi.PodSandboxMetrics{PodSandboxId: p.ID}
	if p.Figures.Details != nil {
		out.Metrics = append(show(s.ofGroups, group), show(s.ofHugePages, group)...)
	}
	out.Metrics = append(out.Metrics, show(s.ofNetworks, network)...)
	for _, c := range p.Containers {
		if c.Figures.Details == nil {
			continue
		}
		container := &subject{c.Figures, c.CreatedAt, []string{c.Name, c.Figures.Details.Cgroup, c.Image, c.ID, namespace, name}}
		out.ContainerMetrics = append(out.ContainerMetrics, &runtimeapi.ContainerMetrics{
			ContainerId: c.ID,
			Metrics:     append(show(s.ofGroups, container), show(s.ofHugePages, container)...),
		})
	}
	return out
}

// show gives a timestamp to samples that were kept since; CRI's 0 means "just read".
func show(metrics []metric, s *subject) []*runtimeapi.Metric {
	all := make([]*runtimeapi.Metric, 0, len(metrics))
	for _, m := range metrics {
		for _, one := range m.samples(s) {
			labels := s.labels
			if len(m.labels) > 0 {
				labels = append(append(make([]string, 0, len(labels)+len(one.labels)), labels...), one.labels...)
			}
			shown := &runtimeapi.Metric{
				Name: m.name, MetricType: m.kind, LabelValues: labels, Value: &runtimeapi.UInt64Value{Value: one.value},
			}
			if !one.at.IsZero() {
				shown.Timestamp = one.at.UnixNano()
			}
			all = append(all, shown)
		}
	}
	return all
}

// gauge and counter make metrics with one value and no labels of their own.
func gauge(name, help string, value func(*subject) uint64) metric {
	return metric{name, help, runtimeapi.MetricType_GAUGE, nil, only(value)}
}

func counter(name, help string, value func(*subject) uint64) metric {
	return metric{name, help, runtimeapi.MetricType_COUNTER, nil, only(value)}
}

func only(value func(*subject) uint64) func(*subject) []sample {
	return func(s *subject) []sample { return []sample{{value: value(s)}} }
}

// when makes a metric that has samples only where a condition holds.
func when(condition func(*subject) bool, m metric) metric {
	samples := m.samples
	m.samples = func(s *subject) []sample {
		if !condition(s) {
			return nil
		}
		return samples(s)
	}
	return m
}

func seconds(nanoseconds uint64) uint64 { return nanoseconds / uint64(time.Second) }

// limit shows no limit as 0.
func limit(value uint64) uint64 {
	if value == engine.NoLimit {
		return 0
	}
	return value
}
