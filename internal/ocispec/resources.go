package ocispec

import (
	"maps"
	"slices"

	"github.com/opencontainers/runtime-spec/specs-go"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berthrun/berth/internal/ocispec/fielderror"
)

// Resources turns the limits in a request's field into the spec's, for a new container
// or for one that is updated. Package check has passed them. What is 0 or "" is not
// specified and left out. The result is never nil.
func Resources(field string, res *runtimeapi.LinuxContainerResources, host Host) (*specs.LinuxResources, error) {
	out := &specs.LinuxResources{CPU: cpuOf(res), Memory: memoryOf(res, host)}
	for i, limit := range res.GetHugepageLimits() {
		if !host.Hugetlb {
			if limit.GetLimit() == 0 {
				continue // the kubelet's way of saying that none was asked for
			}
			return nil, fielderror.Unsupported(fielderror.Index(field+".hugepage_limits", i, "limit"),
				"%d bytes of %s pages: the host has no usable hugetlb controller", limit.GetLimit(), limit.GetPageSize())
		}
		out.HugepageLimits = append(out.HugepageLimits, specs.LinuxHugepageLimit{
			Pagesize: limit.GetPageSize(), Limit: limit.GetLimit(),
		})
	}
	for _, key := range slices.Sorted(maps.Keys(res.GetUnified())) {
		if host.CgroupV2 {
			if out.Unified == nil {
				out.Unified = map[string]string{}
			}
			out.Unified[key] = res.GetUnified()[key]
			continue
		}
		// Sent for every pod, and without meaning on v1, where the OOM killer
		// takes single processes.
		if key != "memory.oom.group" {
			return nil, fielderror.Unsupported(field+".unified", "%q needs cgroup v2, and the host has v1", key)
		}
	}
	return out, nil
}

// Fit removes from a spec that others have changed a limit of swap that the host cannot have, as
// Resources does, and refuses limits that need what the host does not have.
func Fit(spec *specs.Spec, host Host) error {
	if spec.Linux == nil || spec.Linux.Resources == nil {
		return nil
	}
	limits := spec.Linux.Resources
	if limits.Memory != nil && !host.SwapLimit {
		limits.Memory.Swap = nil
	}
	if len(limits.HugepageLimits) > 0 && !host.Hugetlb {
		return fielderror.Unsupported("linux.resources.hugepage_limits", "the host has no usable hugetlb controller")
	}
	if len(limits.Unified) > 0 && !host.CgroupV2 {
		return fielderror.Unsupported("linux.resources.unified", "it needs cgroup v2, and the host has v1")
	}
	return nil
}

// Update is Resources for what exists. A memory limit below what is in use is refused
// there, instead of ending processes.
func Update(field string, res *runtimeapi.LinuxContainerResources, host Host) (*specs.LinuxResources, error) {
	out, err := Resources(field, res, host)
	if err == nil && out.Memory != nil && out.Memory.Limit != nil {
		check := true
		out.Memory.CheckBeforeUpdate = &check
	}
	return out, err
}

func cpuOf(res *runtimeapi.LinuxContainerResources) *specs.LinuxCPU {
	cpu := &specs.LinuxCPU{Cpus: res.GetCpusetCpus(), Mems: res.GetCpusetMems()}
	if period := uint64(res.GetCpuPeriod()); period != 0 {
		cpu.Period = &period
	}
	if quota := res.GetCpuQuota(); quota != 0 {
		cpu.Quota = &quota
	}
	if shares := uint64(res.GetCpuShares()); shares != 0 {
		cpu.Shares = &shares
	}
	if *cpu == (specs.LinuxCPU{}) {
		return nil
	}
	return cpu
}

// memoryOf: without a limit for swap, memory and swap together are limited to the
// memory limit, so that a container does not swap unless its request says so.
func memoryOf(res *runtimeapi.LinuxContainerResources, host Host) *specs.LinuxMemory {
	memory := &specs.LinuxMemory{}
	limit, swap := res.GetMemoryLimitInBytes(), res.GetMemorySwapLimitInBytes()
	if limit != 0 {
		memory.Limit = &limit
	}
	if swap == 0 {
		swap = limit
	}
	if swap != 0 && host.SwapLimit {
		memory.Swap = &swap
	}
	if *memory == (specs.LinuxMemory{}) {
		return nil
	}
	return memory
}
