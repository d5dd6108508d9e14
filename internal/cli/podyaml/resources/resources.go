// Package resources turns the requests and limits of a pod into resources of CRI.
package resources

import (
	"fmt"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// How a kubelet turns CPU into cgroup values.
const (
	cpuPeriod     = 100_000
	minCPUQuota   = 1_000
	sharesPerCPU  = 1_024
	minCPUShares  = 2
	milliPerCPU   = 1_000
	quotaPerMilli = cpuPeriod / milliPerCPU
)

// pids is the resource by which newer Pods bound their processes.
const pids corev1.ResourceName = "pids"

// ForContainer are the resources of a container. One without limits has the pod's, where those are
// given.
func ForContainer(pod *corev1.Pod, c *corev1.Container) *runtimeapi.LinuxContainerResources {
	limits := maps.Clone(c.Resources.Limits)
	if all := pod.Spec.Resources; all != nil {
		for _, name := range []corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory} {
			_, own := limits[name]
			if limit, there := all.Limits[name]; there && !own {
				if limits == nil {
					limits = corev1.ResourceList{}
				}
				limits[name] = limit
			}
		}
	}
	requests := c.Resources.Requests
	if _, asked := requests[corev1.ResourceCPU]; !asked {
		if own, there := c.Resources.Limits[corev1.ResourceCPU]; there {
			requests = corev1.ResourceList{corev1.ResourceCPU: own}
		}
	}
	return linuxResources(requests, limits)
}

// ForPod are the resources of the pod as a whole, nil for no bounds.
func ForPod(pod *corev1.Pod) *runtimeapi.LinuxContainerResources {
	all := pod.Spec.Resources
	if all == nil || len(all.Limits)+len(all.Requests) == 0 {
		return nil
	}
	requests := all.Requests
	if _, asked := requests[corev1.ResourceCPU]; !asked {
		requests = all.Limits
	}
	return linuxResources(requests, all.Limits)
}

// Overhead are the resources of the pod's sandbox itself, nil for none.
func Overhead(pod *corev1.Pod) *runtimeapi.LinuxContainerResources {
	if len(pod.Spec.Overhead) == 0 {
		return nil
	}
	return linuxResources(pod.Spec.Overhead, pod.Spec.Overhead)
}

func linuxResources(requests, limits corev1.ResourceList) *runtimeapi.LinuxContainerResources {
	out := &runtimeapi.LinuxContainerResources{CpuShares: minCPUShares}
	request := requests[corev1.ResourceCPU]
	if milli := request.MilliValue(); milli > 0 {
		out.CpuShares = max(milli*sharesPerCPU/milliPerCPU, minCPUShares)
	}
	if limit, ok := limits[corev1.ResourceCPU]; ok && limit.MilliValue() > 0 {
		out.CpuPeriod = cpuPeriod
		out.CpuQuota = max(limit.MilliValue()*quotaPerMilli, minCPUQuota)
	}
	if limit, ok := limits[corev1.ResourceMemory]; ok {
		out.MemoryLimitInBytes = limit.Value()
	}
	if limit, ok := limits[pids]; ok {
		out.Unified = map[string]string{"pids.max": fmt.Sprint(limit.Value())}
	}
	for _, name := range slices.Sorted(maps.Keys(limits)) {
		if size, ok := pageSizeOf(name); ok {
			limit := limits[name]
			out.HugepageLimits = append(out.HugepageLimits, &runtimeapi.HugepageLimit{
				PageSize: pageSizeName(size), Limit: uint64(max(limit.Value(), 0)),
			})
		}
	}
	return out
}

// StorageLimit is how many bytes a container may write to disk, 0 for any number.
func StorageLimit(c *corev1.Container) int64 {
	limit := c.Resources.Limits[corev1.ResourceEphemeralStorage]
	return limit.Value()
}
