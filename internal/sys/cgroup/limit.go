package cgroup

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"strings"
	"syscall"

	"github.com/opencontainers/cgroups"
	"github.com/opencontainers/cgroups/manager"
	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/berthrun/berth/internal/errs"
)

// Limit changes the limits of a pod's cgroup. Limits that are nil or empty in res stay as
// they are. slice is the pod's slice, which systemd limits too, "" with the cgroupfs driver.
// On v1 it writes memory and swap in the order that the kernel accepts. Either all limits
// change or, also when ctx ends meanwhile, none; the error names those that could not be
// restored. Kind NotFound when there is no such cgroup, Invalid for values that the kernel
// refuses, State for a memory limit below the usage.
func Limit(ctx context.Context, paths Paths, slice string, res *specs.LinuxResources) error {
	config := &cgroups.Cgroup{Resources: resourcesOf(res)}
	if slice != "" {
		config.Name, config.Systemd = slice, true
	}
	m, err := manager.NewWithPaths(config, managed(paths))
	if err != nil {
		return fmt.Errorf("cannot limit the pod's cgroup: %w", err)
	}
	if !m.Exists() {
		return fmt.Errorf("cannot limit the pod's cgroup, which is not there: %w", errs.NotFound)
	}
	if err := change(ctx, m, filesOf(paths, config.Resources), slice != "", config.Resources); err != nil {
		return fmt.Errorf("cannot limit the pod's cgroup: %w", refused(err))
	}
	return nil
}

// refused gives a limit that the kernel refuses its kind and the name of its file.
func refused(err error) error {
	var kind error
	fault := &errs.Fault{Cause: errs.CauseLimit}
	var written *fs.PathError
	if errors.As(err, &written) {
		fault.Path = path.Base(written.Path)
	}
	switch {
	case tooLittleMemory(err):
		kind, fault.Path = errs.State, "memory.limit_in_bytes"
	case errors.Is(err, syscall.EBUSY):
		kind = errs.State
	case errors.Is(err, syscall.EINVAL), errors.Is(err, syscall.ERANGE):
		kind = errs.Invalid
	default:
		return err
	}
	fault.Err = fmt.Errorf("%w: %w", err, kind)
	return fault
}

// tooLittleMemory reports whether a memory limit is below what is in use: on v1 package
// cgroups has a text for that in place of the kernel's EBUSY, and no type.
func tooLittleMemory(err error) bool {
	return strings.HasPrefix(err.Error(), "unable to set memory limit")
}

// managed leaves out the hierarchies without limits.
func managed(paths Paths) map[string]string {
	if paths.unified() {
		return paths
	}
	out := map[string]string{}
	for controller, dir := range paths {
		if controller != "" && !strings.HasPrefix(controller, "name=") {
			out[controller] = dir
		}
	}
	return out
}

func resourcesOf(res *specs.LinuxResources) *cgroups.Resources {
	// The rules of devices are the containers' own.
	out := &cgroups.Resources{SkipDevices: true, SkipFreezeOnSet: true, Unified: res.Unified}
	if memory := res.Memory; memory != nil {
		assign(&out.Memory, memory.Limit)
		assign(&out.MemorySwap, memory.Swap)
		assign(&out.MemoryCheckBeforeUpdate, memory.CheckBeforeUpdate)
	}
	if cpu := res.CPU; cpu != nil {
		assign(&out.CpuShares, cpu.Shares)
		assign(&out.CpuQuota, cpu.Quota)
		assign(&out.CpuPeriod, cpu.Period)
		out.CpusetCpus, out.CpusetMems = cpu.Cpus, cpu.Mems
		if out.CpuShares != 0 {
			out.CpuWeight = cgroups.ConvertCPUSharesToCgroupV2Value(out.CpuShares)
		}
	}
	for _, limit := range res.HugepageLimits {
		out.HugetlbLimit = append(out.HugetlbLimit, &cgroups.HugepageLimit{Pagesize: limit.Pagesize, Limit: limit.Limit})
	}
	return out
}

func assign[T any](to *T, from *T) {
	if from != nil {
		*to = *from
	}
}
