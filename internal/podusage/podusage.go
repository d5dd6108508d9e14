// Package podusage joins what CRI reports of pods and containers in several lists, and computes rates of
// CPU and network from two readings of them. It is pure: it calls no runtime and reads no clock.
package podusage

import (
	"cmp"
	"slices"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// Unknown is the value of a figure that the runtime does not report, or that needs an earlier reading.
const Unknown = -1

// Reading is what a runtime reported at one time. Lists that it did not answer are nil.
type Reading struct {
	Pods       []*runtimeapi.PodSandbox
	Containers []*runtimeapi.Container
	// PodStats have the figures of containers of runtimes that report them there, berth among them.
	// ContainerStats are for the others.
	PodStats       []*runtimeapi.PodSandboxStats
	ContainerStats []*runtimeapi.ContainerStats
}

// Figures are what a pod or a container uses. Each may be Unknown.
type Figures struct {
	// CPU is the use of CPU in cores: 0.5 is half of one.
	CPU float64 `json:"cpu"`
	// Memory is the working set in bytes.
	Memory float64 `json:"memory"`
	// Received and Sent are bytes per second over all interfaces of a pod. A container has none of its own.
	Received float64 `json:"received"`
	Sent     float64 `json:"sent"`
}

// Pod is a sandbox with its containers.
type Pod struct {
	ID        string    `json:"id"`
	Namespace string    `json:"namespace"`
	Name      string    `json:"name"`
	Ready     bool      `json:"ready"`
	Created   time.Time `json:"created"`
	// Restarts is the largest of its containers.
	Restarts uint32 `json:"restarts"`
	Figures
	// Containers are the newest attempt of each name, sorted by name.
	Containers []Container `json:"containers"`
}

// FullName is NAMESPACE/NAME.
func (p *Pod) FullName() string { return p.Namespace + "/" + p.Name }

// Running is the number of containers that run.
func (p *Pod) Running() int {
	n := 0
	for i := range p.Containers {
		if p.Containers[i].Running() {
			n++
		}
	}
	return n
}

// Container is a container of a pod.
type Container struct {
	ID   string `json:"id"`
	Name string `json:"name"`
	// State is "created", "running", "exited" or "unknown".
	State   string    `json:"state"`
	Created time.Time `json:"created"`
	// Restarts is the attempt, which counts from 0.
	Restarts uint32 `json:"restarts"`
	Figures
}

// Running reports whether the container runs.
func (c *Container) Running() bool { return c.State == "running" }

// Join returns the pods of the later reading, sorted by name, with rates since the earlier one. The earlier one may
// be nil: then a rate is known only if the runtime reports it.
func Join(before, after *Reading) []Pod {
	if before == nil {
		before = &Reading{}
	}
	earlier, now := index(before), index(after)
	containers := map[string][]Container{}
	for _, c := range newest(after.Containers) {
		one := Container{
			ID: c.GetId(), Name: c.GetMetadata().GetName(), State: containerState(c.GetState()),
			Created: time.Unix(0, c.GetCreatedAt()), Restarts: c.GetMetadata().GetAttempt(),
			Figures: containerFigures(earlier.containers[c.GetId()], now.containers[c.GetId()]),
		}
		containers[c.GetPodSandboxId()] = append(containers[c.GetPodSandboxId()], one)
	}
	pods := make([]Pod, 0, len(after.Pods))
	for _, p := range after.Pods {
		pod := Pod{
			ID: p.GetId(), Namespace: p.GetMetadata().GetNamespace(), Name: p.GetMetadata().GetName(),
			Ready:   p.GetState() == runtimeapi.PodSandboxState_SANDBOX_READY,
			Created: time.Unix(0, p.GetCreatedAt()), Containers: containers[p.GetId()],
		}
		for i := range pod.Containers {
			pod.Restarts = max(pod.Restarts, pod.Containers[i].Restarts)
		}
		pod.Figures = podFigures(earlier.pods[p.GetId()], now.pods[p.GetId()], pod.Containers)
		pods = append(pods, pod)
	}
	slices.SortFunc(pods, func(a, b Pod) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name), cmp.Compare(a.ID, b.ID))
	})
	return pods
}

// indexed has the figures of a reading by id.
type indexed struct {
	pods       map[string]*runtimeapi.LinuxPodSandboxStats
	containers map[string]*runtimeapi.ContainerStats
}

func index(r *Reading) indexed {
	all := indexed{map[string]*runtimeapi.LinuxPodSandboxStats{}, map[string]*runtimeapi.ContainerStats{}}
	for _, c := range r.ContainerStats {
		all.containers[c.GetAttributes().GetId()] = c
	}
	for _, p := range r.PodStats {
		all.pods[p.GetAttributes().GetId()] = p.GetLinux()
		for _, c := range p.GetLinux().GetContainers() {
			all.containers[c.GetAttributes().GetId()] = c
		}
	}
	return all
}

// newest returns the newest attempt of each container of each pod, sorted by name.
func newest(all []*runtimeapi.Container) []*runtimeapi.Container {
	sorted := slices.Clone(all)
	slices.SortFunc(sorted, func(a, b *runtimeapi.Container) int {
		return cmp.Or(
			cmp.Compare(a.GetPodSandboxId(), b.GetPodSandboxId()),
			cmp.Compare(a.GetMetadata().GetName(), b.GetMetadata().GetName()),
			cmp.Compare(b.GetMetadata().GetAttempt(), a.GetMetadata().GetAttempt()),
		)
	})
	return slices.CompactFunc(sorted, func(a, b *runtimeapi.Container) bool {
		return a.GetPodSandboxId() == b.GetPodSandboxId() && a.GetMetadata().GetName() == b.GetMetadata().GetName()
	})
}

func containerState(s runtimeapi.ContainerState) string {
	switch s {
	case runtimeapi.ContainerState_CONTAINER_CREATED:
		return "created"
	case runtimeapi.ContainerState_CONTAINER_RUNNING:
		return "running"
	case runtimeapi.ContainerState_CONTAINER_EXITED:
		return "exited"
	}
	return "unknown"
}

func containerFigures(before, after *runtimeapi.ContainerStats) Figures {
	return Figures{CPU: CPU(before.GetCpu(), after.GetCpu()), Memory: value(after.GetMemory().GetWorkingSetBytes()), Received: Unknown, Sent: Unknown}
}

// podFigures takes CPU and memory from the pod's cgroup. Where the runtime does not report that, they are the sums of
// the containers.
func podFigures(before, after *runtimeapi.LinuxPodSandboxStats, containers []Container) Figures {
	f := Figures{CPU: CPU(before.GetCpu(), after.GetCpu()), Memory: value(after.GetMemory().GetWorkingSetBytes())}
	f.Received, f.Sent = traffic(before.GetNetwork(), after.GetNetwork())
	if f.CPU == Unknown {
		f.CPU = sum(containers, func(c *Container) float64 { return c.CPU })
	}
	if f.Memory == Unknown {
		f.Memory = sum(containers, func(c *Container) float64 { return c.Memory })
	}
	return f
}

// Total adds a figure of all pods. Those that do not have it are left out; without any it is Unknown.
func Total(pods []Pod, figure func(*Figures) float64) float64 {
	return sum(pods, func(p *Pod) float64 { return figure(&p.Figures) })
}

func sum[T any](all []T, figure func(*T) float64) float64 {
	total := float64(Unknown)
	for i := range all {
		if v := figure(&all[i]); v != Unknown {
			total = max(total, 0) + v
		}
	}
	return total
}

// CPU is a rate in cores: between two readings, or the one that the runtime reports. Unknown if there is neither.
func CPU(before, after *runtimeapi.CpuUsage) float64 {
	then, now := before.GetUsageCoreNanoSeconds(), after.GetUsageCoreNanoSeconds()
	if elapsed := after.GetTimestamp() - before.GetTimestamp(); then != nil && now != nil && elapsed > 0 {
		return grown(then.GetValue(), now.GetValue()) / float64(elapsed)
	}
	if rate := after.GetUsageNanoCores(); rate != nil {
		return float64(rate.GetValue()) / float64(time.Second)
	}
	return Unknown
}

// traffic is bytes per second, over all interfaces.
func traffic(before, after *runtimeapi.NetworkUsage) (received, sent float64) {
	elapsed := float64(after.GetTimestamp()-before.GetTimestamp()) / float64(time.Second)
	if before == nil || after == nil || elapsed <= 0 {
		return Unknown, Unknown
	}
	thenReceived, thenSent := bytesOf(before)
	nowReceived, nowSent := bytesOf(after)
	return grown(thenReceived, nowReceived) / elapsed, grown(thenSent, nowSent) / elapsed
}

func bytesOf(n *runtimeapi.NetworkUsage) (received, sent uint64) {
	for _, link := range append([]*runtimeapi.NetworkInterfaceUsage{n.GetDefaultInterface()}, n.GetInterfaces()...) {
		received += link.GetRxBytes().GetValue()
		sent += link.GetTxBytes().GetValue()
	}
	return received, sent
}

// grown is the growth of a counter. One that was set back has grown from 0.
func grown(then, now uint64) float64 {
	if now < then {
		return float64(now)
	}
	return float64(now - then)
}

func value(v *runtimeapi.UInt64Value) float64 {
	if v == nil {
		return Unknown
	}
	return float64(v.GetValue())
}
