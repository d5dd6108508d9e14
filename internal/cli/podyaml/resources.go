package podyaml

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
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

// resources of a container. One without limits has the pod's, where those are given.
func (b *Bundle) resources(c *corev1.Container) *runtimeapi.LinuxContainerResources {
	limits := maps.Clone(c.Resources.Limits)
	if pod := b.Pod.Spec.Resources; pod != nil {
		for _, name := range []corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory} {
			_, own := limits[name]
			if limit, there := pod.Limits[name]; there && !own {
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

// podResources bound the pod as a whole, nil for no bounds.
func (b *Bundle) podResources() *runtimeapi.LinuxContainerResources {
	pod := b.Pod.Spec.Resources
	if pod == nil || len(pod.Limits)+len(pod.Requests) == 0 {
		return nil
	}
	requests := pod.Requests
	if _, asked := requests[corev1.ResourceCPU]; !asked {
		requests = pod.Limits
	}
	return linuxResources(requests, pod.Limits)
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

// pageSizeOf reads hugepages-SIZE.
func pageSizeOf(name corev1.ResourceName) (size int64, ok bool) {
	text, ok := strings.CutPrefix(string(name), corev1.ResourceHugePagesPrefix)
	if !ok {
		return 0, false
	}
	quantity, err := resource.ParseQuantity(text)
	if err != nil || quantity.Value() < 1<<10 {
		return 0, false
	}
	return quantity.Value(), true
}

// pageSizeName is the kernel's name of a size: 2MB.
func pageSizeName(size int64) string {
	units := []string{"B", "KB", "MB", "GB", "TB"}
	n := 0
	for size >= 1<<10 && size%(1<<10) == 0 && n < len(units)-1 {
		size >>= 10
		n++
	}
	return fmt.Sprintf("%d%s", size, units[n])
}

// pageSize of an emptyDir on huge pages: of the medium, or the only one that the pod's
// containers ask for. It is 0 for other volumes.
func (b *Bundle) pageSize(v *corev1.Volume) (int64, error) {
	medium := string(v.EmptyDir.Medium)
	if text, ok := strings.CutPrefix(medium, string(corev1.StorageMediumHugePagesPrefix)); ok {
		size, ok := pageSizeOf(corev1.ResourceName(corev1.ResourceHugePagesPrefix + text))
		if !ok {
			return 0, fmt.Errorf("%q is no size of pages", text)
		}
		return size, nil
	}
	if medium != string(corev1.StorageMediumHugePages) {
		return 0, nil
	}
	sizes := map[int64]bool{}
	for _, c := range b.containers() {
		for name := range c.Resources.Limits {
			if size, ok := pageSizeOf(name); ok {
				sizes[size] = true
			}
		}
	}
	if len(sizes) != 1 {
		return 0, fmt.Errorf("containers ask for huge pages of %d sizes: HugePages wants one", len(sizes))
	}
	for size := range sizes {
		return size, nil
	}
	return 0, nil
}

// StorageLimit is how many bytes a container may write to disk, 0 for any number.
func StorageLimit(c *corev1.Container) int64 {
	limit := c.Resources.Limits[corev1.ResourceEphemeralStorage]
	return limit.Value()
}

// validateResources refuses what only a device plugin could give.
func validateResources(f *faults, field string, r *corev1.ResourceRequirements, ofPod bool) {
	for which, list := range map[string]corev1.ResourceList{"limits": r.Limits, "requests": r.Requests} {
		for _, name := range slices.Sorted(maps.Keys(list)) {
			quantity, at := list[name], field+"."+which+"."+string(name)
			if quantity.Sign() < 0 {
				f.add(at, "it is negative")
			}
			_, isPages := pageSizeOf(name)
			switch {
			case name == corev1.ResourceCPU, name == corev1.ResourceMemory, isPages, ofPod && name == pids:
			case name == corev1.ResourceEphemeralStorage && !ofPod:
			default:
				f.add(at, "this resource is not honoured: nothing on this host hands it out")
			}
			limit, limited := r.Limits[name]
			if which == "requests" && limited && quantity.Cmp(limit) > 0 {
				f.add(at, "it is more than the limit of %s", limit.String())
			}
		}
	}
}
