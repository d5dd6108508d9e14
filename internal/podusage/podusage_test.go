package podusage

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

func u64(v uint64) *runtimeapi.UInt64Value { return &runtimeapi.UInt64Value{Value: v} }

func cpuAt(at time.Duration, used uint64) *runtimeapi.CpuUsage {
	return &runtimeapi.CpuUsage{Timestamp: int64(at), UsageCoreNanoSeconds: u64(used)}
}

func container(pod, id, name string, attempt uint32, state runtimeapi.ContainerState) *runtimeapi.Container {
	return &runtimeapi.Container{
		Id: id, PodSandboxId: pod, State: state, CreatedAt: int64(time.Second),
		Metadata: &runtimeapi.ContainerMetadata{Name: name, Attempt: attempt},
	}
}

func stats(id string, c *runtimeapi.CpuUsage, memory *runtimeapi.UInt64Value) *runtimeapi.ContainerStats {
	return &runtimeapi.ContainerStats{
		Attributes: &runtimeapi.ContainerAttributes{Id: id}, Cpu: c, Memory: &runtimeapi.MemoryUsage{WorkingSetBytes: memory},
	}
}

func link(rx, tx uint64) *runtimeapi.NetworkInterfaceUsage {
	return &runtimeapi.NetworkInterfaceUsage{RxBytes: u64(rx), TxBytes: u64(tx)}
}

func podStats(id string, linux *runtimeapi.LinuxPodSandboxStats) *runtimeapi.PodSandboxStats {
	return &runtimeapi.PodSandboxStats{Attributes: &runtimeapi.PodSandboxAttributes{Id: id}, Linux: linux}
}

func sandbox(id, namespace, name string) *runtimeapi.PodSandbox {
	return &runtimeapi.PodSandbox{Id: id, CreatedAt: int64(time.Second), Metadata: &runtimeapi.PodSandboxMetadata{Namespace: namespace, Name: name}}
}

// A reading of berth: the figures of containers are in those of their pods.
func TestRatesBetweenTwoReadings(t *testing.T) {
	reading := func(at time.Duration, podCPU, containerCPU, rx, tx uint64) *Reading {
		return &Reading{
			Pods: []*runtimeapi.PodSandbox{sandbox("p2", "z", "last"), sandbox("p1", "default", "web")},
			Containers: []*runtimeapi.Container{
				container("p1", "c0", "app", 0, runtimeapi.ContainerState_CONTAINER_EXITED),
				container("p1", "c1", "app", 3, runtimeapi.ContainerState_CONTAINER_RUNNING),
				container("p1", "c2", "a-side", 0, runtimeapi.ContainerState_CONTAINER_CREATED),
			},
			PodStats: []*runtimeapi.PodSandboxStats{podStats("p1", &runtimeapi.LinuxPodSandboxStats{
				Cpu: cpuAt(at, podCPU), Memory: &runtimeapi.MemoryUsage{WorkingSetBytes: u64(3000)},
				Network: &runtimeapi.NetworkUsage{
					Timestamp: int64(at), DefaultInterface: link(rx, tx), Interfaces: []*runtimeapi.NetworkInterfaceUsage{link(10, 20)},
				},
				Containers: []*runtimeapi.ContainerStats{stats("c1", cpuAt(at, containerCPU), u64(1000))},
			})},
		}
	}
	got := Join(reading(time.Second, 0, 0, 0, 0), reading(3*time.Second, 3e9, 1e9, 4000, 2000))
	none := Figures{Unknown, Unknown, Unknown, Unknown}
	created := time.Unix(1, 0)
	want := []Pod{
		{
			ID: "p1", Namespace: "default", Name: "web", Ready: true, Created: created, Restarts: 3, Figures: Figures{1.5, 3000, 2000, 1000},
			Containers: []Container{
				{ID: "c2", Name: "a-side", State: "created", Created: created, Figures: none},
				{ID: "c1", Name: "app", State: "running", Created: created, Restarts: 3, Figures: Figures{0.5, 1000, Unknown, Unknown}},
			},
		},
		{ID: "p2", Namespace: "z", Name: "last", Ready: true, Created: created, Figures: none},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	if got[0].Running() != 1 || got[0].FullName() != "default/web" {
		t.Errorf("%d run in %s", got[0].Running(), got[0].FullName())
	}
	if total := Total(got, func(f *Figures) float64 { return f.CPU }); total != 1.5 {
		t.Errorf("the total is %v", total)
	}
}

// A runtime without figures of pods: theirs are the sums of their containers.
func TestFiguresOfContainersAlone(t *testing.T) {
	rate := &runtimeapi.CpuUsage{Timestamp: 5, UsageNanoCores: u64(25e7)}
	got := Join(nil, &Reading{
		Pods: []*runtimeapi.PodSandbox{sandbox("p1", "a", "b")},
		Containers: []*runtimeapi.Container{
			container("p1", "c1", "x", 0, runtimeapi.ContainerState_CONTAINER_RUNNING),
			container("p1", "c2", "y", 0, runtimeapi.ContainerState_CONTAINER_RUNNING),
			container("p1", "c3", "z", 0, runtimeapi.ContainerState_CONTAINER_UNKNOWN),
		},
		ContainerStats: []*runtimeapi.ContainerStats{stats("c1", rate, u64(7)), stats("c2", rate, u64(8))},
	})
	if want := (Figures{0.5, 15, Unknown, Unknown}); got[0].Figures != want {
		t.Errorf("got %v, want %v", got[0].Figures, want)
	}
	if got[0].Containers[2].State != "unknown" {
		t.Errorf("got %v", got[0].Containers[2])
	}
}

// A counter that was set back, and a clock that stands, make no absurd rate.
func TestCountersThatGoBack(t *testing.T) {
	if got := CPU(cpuAt(1e9, 9e9), cpuAt(2e9, 1e9)); got != 1 {
		t.Errorf("got %v", got)
	}
	if got := CPU(cpuAt(2e9, 1), cpuAt(2e9, 2)); got != Unknown {
		t.Errorf("got %v", got)
	}
	if rx, tx := traffic(&runtimeapi.NetworkUsage{Timestamp: 9}, &runtimeapi.NetworkUsage{Timestamp: 8}); rx != Unknown || tx != Unknown {
		t.Errorf("got %v, %v", rx, tx)
	}
}
