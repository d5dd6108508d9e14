package podyaml

import (
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

func resources(r corev1.ResourceRequirements) *runtimeapi.LinuxContainerResources {
	out := &runtimeapi.LinuxContainerResources{CpuShares: minCPUShares}
	// What is limited and not requested is requested as much as it is limited.
	request, ok := r.Requests[corev1.ResourceCPU]
	if !ok {
		request = r.Limits[corev1.ResourceCPU]
	}
	if milli := request.MilliValue(); milli > 0 {
		out.CpuShares = max(milli*sharesPerCPU/milliPerCPU, minCPUShares)
	}
	if limit, ok := r.Limits[corev1.ResourceCPU]; ok && limit.MilliValue() > 0 {
		out.CpuPeriod = cpuPeriod
		out.CpuQuota = max(limit.MilliValue()*quotaPerMilli, minCPUQuota)
	}
	if limit, ok := r.Limits[corev1.ResourceMemory]; ok {
		out.MemoryLimitInBytes = limit.Value()
	}
	return out
}
