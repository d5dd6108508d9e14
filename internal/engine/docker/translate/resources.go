package translate

import (
	"math"
	"strings"

	"github.com/moby/moby/api/types/container"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berthrun/berth/internal/ocispec/request"
)

// Resources are the limits in a request's field for the engine. What is 0 or "" stays as it is
// in an update. Without a limit for swap, memory and swap together are limited to the memory
// limit, so that a container does not swap unless its request says so.
func Resources(field string, res *runtimeapi.LinuxContainerResources, facts Facts) (container.Resources, error) {
	if err := CheckResources(field, res, facts); err != nil {
		return container.Resources{}, err
	}
	out := container.Resources{
		CPUShares: res.GetCpuShares(), CPUPeriod: res.GetCpuPeriod(), CPUQuota: res.GetCpuQuota(),
		CpusetCpus: res.GetCpusetCpus(), CpusetMems: res.GetCpusetMems(),
		Memory: res.GetMemoryLimitInBytes(),
	}
	swap := res.GetMemorySwapLimitInBytes()
	if swap == 0 {
		swap = out.Memory
	}
	if facts.SwapLimit {
		out.MemorySwap = swap
	}
	return out, nil
}

// setDevices adds the device nodes. CDI devices are the engine's to inject.
func setDevices(in ContainerInput, host *container.HostConfig) error {
	for _, d := range in.Devices {
		host.Resources.Devices = append(host.Resources.Devices, container.DeviceMapping{
			PathOnHost: d.Source, PathInContainer: d.Path, CgroupPermissions: d.Access,
		})
	}
	names, err := request.CDIDevices(in.Spec.Config)
	if err != nil || len(names) == 0 {
		return err
	}
	host.Resources.DeviceRequests = append(host.Resources.DeviceRequests, container.DeviceRequest{Driver: "cdi", DeviceIDs: names})
	return nil
}

// ulimitName is the engine's name of a limit ("nofile") from the OCI spec's ("RLIMIT_NOFILE").
func ulimitName(limit string) string {
	return strings.ToLower(strings.TrimPrefix(limit, "RLIMIT_"))
}

// clamp is a limit as the engine takes it: -1 is no limit.
func clamp(value uint64) int64 {
	if value > math.MaxInt64 {
		return -1
	}
	return int64(value)
}
