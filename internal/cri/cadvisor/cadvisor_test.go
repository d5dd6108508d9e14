package cadvisor

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berthrun/berth/internal/engine"
	"github.com/berthrun/berth/internal/pod/view"
)

// full has a value for each kind of figure.
func full(cgroup string) *engine.Figures {
	return &engine.Figures{
		At: time.Unix(100, 0), CPU: 2_500_000_000, Tasks: 4,
		Memory:      engine.MemoryFigures{Usage: 10, WorkingSet: 8, Limit: engine.NoLimit, MinorFaults: 3, MajorFaults: 1},
		Swap:        &engine.SwapFigures{Usage: 5},
		CPUPressure: &engine.Pressure{Some: engine.Stall{Total: 3e9}}, MemoryPressure: &engine.Pressure{}, IOPressure: &engine.Pressure{},
		Links:   []engine.Link{{Name: "eth0", RxBytes: 7}, {Name: "net1"}},
		Written: &engine.Written{At: time.Unix(95, 7), Bytes: 6, Device: "/dev/sda1"},
		Details: &engine.Details{
			Cgroup: cgroup, CPUQuota: 5, CPUPeriod: 10, MemorySwapLimit: engine.NoLimit, TasksLimit: engine.NoLimit, OpenFilesLimit: 1024,
			HugePages: []engine.HugePages{{Size: "2MB"}, {Size: "1GB"}},
			Devices:   []engine.DeviceIO{{Major: 8, Device: "/dev/sda", ReadBytes: 9}, {Major: 8, Minor: 16}, {Major: 8, Minor: 32}},
		},
	}
}

func onePod() *view.PodFigures {
	return &view.PodFigures{
		ID: "s1", Metadata: &runtimeapi.PodSandboxMetadata{Name: "web", Namespace: "default"}, CreatedAt: 50e9, Figures: full("/pods/p1"),
		Containers: []view.ContainerFigures{
			{ID: "c1", Name: "main", Image: "busybox", CreatedAt: 60e9, Figures: full("/pods/p1/c1")},
			{ID: "c2", Name: "half", Figures: &engine.Figures{}},
		},
	}
}

// TestEverySampleMatchesItsDescriptor: a kubelet refuses a sample without a matching descriptor.
// Two samples with equal labels make the whole page invalid.
func TestEverySampleMatchesItsDescriptor(t *testing.T) {
	set := New(Groups())
	labels := map[string][]string{}
	for _, d := range set.Descriptors(&engine.Info{HugePages: true}) {
		if labels[d.Name] != nil || d.Help == "" {
			t.Errorf("%s is described twice, or not at all", d.Name)
		}
		labels[d.Name] = d.LabelKeys
	}
	got := set.Pod(onePod())
	all := slices.Clone(got.Metrics)
	for _, c := range got.ContainerMetrics {
		all = append(all, c.Metrics...)
	}
	seen := map[string]bool{}
	for _, m := range all {
		if len(m.LabelValues) != len(labels[m.Name]) {
			t.Errorf("%s has %d labels, its descriptor %d", m.Name, len(m.LabelValues), len(labels[m.Name]))
		}
		key := m.Name + "|" + strings.Join(m.LabelValues, "|")
		if seen[key] {
			t.Errorf("twice: %s", key)
		}
		seen[key] = true
	}
	for name := range labels {
		if !slices.ContainsFunc(all, func(m *runtimeapi.Metric) bool { return m.Name == name }) {
			t.Errorf("%s is described and never told", name)
		}
	}
}

// TestHostWithoutHugePages: each descriptor needs samples, which a host without huge pages cannot
// give.
func TestHostWithoutHugePages(t *testing.T) {
	for _, d := range New(Groups()).Descriptors(&engine.Info{}) {
		if strings.Contains(d.Name, "hugetlb") {
			t.Errorf("%s is described", d.Name)
		}
	}
}

func TestLabelsAreTheKubelets(t *testing.T) {
	got := New(Groups()).Pod(onePod())
	if len(got.ContainerMetrics) != 1 || got.ContainerMetrics[0].ContainerId != "c1" {
		t.Fatalf("containers %v, want the one that has figures", got.ContainerMetrics)
	}
	find := func(metrics []*runtimeapi.Metric, name string) *runtimeapi.Metric {
		for _, m := range metrics {
			if m.Name == name {
				return m
			}
		}
		t.Fatalf("no %s", name)
		return nil
	}
	for _, test := range []struct {
		metric *runtimeapi.Metric
		value  uint64
		labels []string
	}{
		{find(got.ContainerMetrics[0].Metrics, "container_cpu_usage_seconds_total"), 2, []string{"main", "/pods/p1/c1", "busybox", "c1", "default", "web", "total"}},
		{find(got.ContainerMetrics[0].Metrics, "container_start_time_seconds"), 60, []string{"main", "/pods/p1/c1", "busybox", "c1", "default", "web"}},
		{find(got.ContainerMetrics[0].Metrics, "container_spec_memory_limit_bytes"), 0, []string{"main", "/pods/p1/c1", "busybox", "c1", "default", "web"}},
		{find(got.Metrics, "container_memory_working_set_bytes"), 8, []string{"", "/pods/p1", "", "", "default", "web"}},
		{find(got.Metrics, "container_network_receive_bytes_total"), 7, []string{"", "/pods/p1/s1", "berth/sandbox", "s1", "default", "web", "eth0"}},
	} {
		if test.metric.Value.Value != test.value {
			t.Errorf("%s = %d, want %d", test.metric.Name, test.metric.Value.Value, test.value)
		}
		if diff := cmp.Diff(test.labels, test.metric.LabelValues); diff != "" {
			t.Errorf("labels of %s (-want +got):\n%s", test.metric.Name, diff)
		}
	}
}

// TestSamplesHaveTheirTime: samples that were measured earlier have a timestamp. Samples that were
// just read have none, as CRI defines.
func TestSamplesHaveTheirTime(t *testing.T) {
	measured := []string{"container_fs_usage_bytes", "container_fs_limit_bytes", "container_fs_inodes_total", "container_fs_inodes_free"}
	seen := map[string]bool{}
	for _, m := range New(Groups()).Pod(onePod()).ContainerMetrics[0].Metrics {
		want := int64(0)
		if slices.Contains(measured, m.Name) {
			want = time.Unix(95, 7).UnixNano()
			seen[m.Name] = true
		}
		if m.Timestamp != want {
			t.Errorf("%s is of %d, want %d", m.Name, m.Timestamp, want)
		}
	}
	if len(seen) != len(measured) {
		t.Errorf("samples of the filesystem: %v, want %v", seen, measured)
	}
}

// A disabled group has neither descriptors nor samples. All groups together cover everything.
func TestGroups(t *testing.T) {
	for group, name := range map[string]string{
		GroupCPU: "container_cpu_usage_seconds_total", GroupMemory: "container_memory_working_set_bytes", GroupProcess: "container_processes",
		GroupPSI: "container_pressure_cpu_waiting_seconds_total", GroupDisk: "container_fs_usage_bytes", GroupSpec: "container_spec_cpu_shares",
		GroupHuge: "container_hugetlb_usage_bytes", GroupNetwork: "container_network_receive_bytes_total",
	} {
		without := New(slices.DeleteFunc(Groups(), func(g string) bool { return g == group }))
		for what, set := range map[string]*Set{"with": New([]string{group}), "without": without} {
			described := slices.ContainsFunc(set.Descriptors(&engine.Info{HugePages: true}), func(d *runtimeapi.MetricDescriptor) bool { return d.Name == name })
			if described != (what == "with") {
				t.Errorf("%s group %s: %s is described: %v", what, group, name, described)
			}
		}
	}
	if got := len(New(nil).Descriptors(&engine.Info{})); got != len(generalMetrics()) {
		t.Errorf("without any group %d are described", got)
	}
}
