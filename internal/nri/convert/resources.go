package convert

import (
	"fmt"
	"maps"
	"strings"

	"github.com/containerd/nri/pkg/api"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berthrun/berth/internal/errs"
)

// Resources returns the limits of a request as plugins see them. What is 0 or "" is left out. Nil
// for nil.
func Resources(res *runtimeapi.LinuxContainerResources) *api.LinuxResources {
	if res == nil {
		return nil
	}
	out := &api.LinuxResources{
		Memory:  &api.LinuxMemory{},
		Cpu:     &api.LinuxCPU{Cpus: res.GetCpusetCpus(), Mems: res.GetCpusetMems()},
		Unified: maps.Clone(res.GetUnified()),
	}
	if limit := res.GetMemoryLimitInBytes(); limit != 0 {
		out.Memory.Limit = api.Int64(limit)
	}
	if swap := res.GetMemorySwapLimitInBytes(); swap != 0 {
		out.Memory.Swap = api.Int64(swap)
	}
	if shares := res.GetCpuShares(); shares != 0 {
		out.Cpu.Shares = api.UInt64(uint64(shares))
	}
	if quota := res.GetCpuQuota(); quota != 0 {
		out.Cpu.Quota = api.Int64(quota)
	}
	if period := res.GetCpuPeriod(); period != 0 {
		out.Cpu.Period = api.UInt64(uint64(period))
	}
	for _, limit := range res.GetHugepageLimits() {
		out.HugepageLimits = append(out.HugepageLimits, &api.HugepageLimit{PageSize: limit.GetPageSize(), Limit: limit.GetLimit()})
	}
	return out
}

// Update returns the limits of a plugin's update as a request has them. A limit that no update of
// a container can change is Unsupported, and named. Nil for nil.
func Update(res *api.LinuxResources) (*runtimeapi.LinuxContainerResources, error) {
	if res == nil {
		return nil, nil
	}
	if fixed := notUpdatable(res); len(fixed) > 0 {
		return nil, fmt.Errorf("linux.resources: %s cannot be changed by an update: %w", strings.Join(fixed, ", "), errs.Unsupported)
	}
	return Limits(res), nil
}

// Limits returns those limits of plugins that a request of CRI has, too.
func Limits(res *api.LinuxResources) *runtimeapi.LinuxContainerResources {
	out := &runtimeapi.LinuxContainerResources{
		MemoryLimitInBytes:     res.GetMemory().GetLimit().GetValue(),
		MemorySwapLimitInBytes: res.GetMemory().GetSwap().GetValue(),
		CpuShares:              int64(res.GetCpu().GetShares().GetValue()),
		CpuQuota:               res.GetCpu().GetQuota().GetValue(),
		CpuPeriod:              int64(res.GetCpu().GetPeriod().GetValue()),
		CpusetCpus:             res.GetCpu().GetCpus(),
		CpusetMems:             res.GetCpu().GetMems(),
		Unified:                maps.Clone(res.GetUnified()),
	}
	for _, limit := range res.GetHugepageLimits() {
		out.HugepageLimits = append(out.HugepageLimits, &runtimeapi.HugepageLimit{PageSize: limit.GetPageSize(), Limit: limit.GetLimit()})
	}
	return out
}

// notUpdatable names the limits that an update has and that CRI cannot express.
func notUpdatable(res *api.LinuxResources) []string {
	var names []string
	memory, cpu := res.GetMemory(), res.GetCpu()
	for _, limit := range []struct {
		name string
		set  bool
	}{
		{"memory.reservation", memory.GetReservation() != nil},
		{"memory.kernel", memory.GetKernel() != nil},
		{"memory.kernel_tcp", memory.GetKernelTcp() != nil},
		{"memory.swappiness", memory.GetSwappiness() != nil},
		{"memory.disable_oom_killer", memory.GetDisableOomKiller() != nil},
		{"memory.use_hierarchy", memory.GetUseHierarchy() != nil},
		{"cpu.realtime_runtime", cpu.GetRealtimeRuntime() != nil},
		{"cpu.realtime_period", cpu.GetRealtimePeriod() != nil},
		{"pids", res.GetPids() != nil},
		{"devices", len(res.GetDevices()) > 0},
		{"blockio_class", res.GetBlockioClass() != nil},
		{"rdt_class", res.GetRdtClass() != nil},
	} {
		if limit.set {
			names = append(names, limit.name)
		}
	}
	return names
}
