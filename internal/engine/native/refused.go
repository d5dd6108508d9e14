package native

import (
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/ocispec/request"
	"github.com/berthrun/berth/internal/sys/sysns"
)

// Some faults of a request are found by the kernel or the OCI runtime only, in terms of
// files and paths. These find the request's field for them, by the cause that the error
// carries (errs.Fault). An older supervisor sends none: then no field is named.

// refusedContainer names the field of a request for a container that the supervisor
// refused as Invalid.
func refusedContainer(config *runtimeapi.ContainerConfig, err error) error {
	var fault *errs.Fault
	if !errors.Is(err, errs.Invalid) || !errors.As(err, &fault) {
		return err
	}
	if field := fieldOf(config, fault); field != "" {
		return fmt.Errorf("%s: %w", field, err)
	}
	return err
}

// fieldOf is the field of a request that a fault is about, "" when no field is: a mount
// or a filter may be of berth's own making.
func fieldOf(config *runtimeapi.ContainerConfig, fault *errs.Fault) string {
	switch fault.Cause {
	case errs.CauseDevNull:
		return hidesNull(config)
	case errs.CauseMount:
		for i, m := range config.GetMounts() {
			if path.Clean(m.GetContainerPath()) == fault.Path {
				return fmt.Sprintf("config.mounts[%d].container_path", i)
			}
		}
	case errs.CauseDevice:
		for i, d := range config.GetDevices() {
			if path.Clean(placeOf(d)) == path.Clean(fault.Path) {
				return fmt.Sprintf("config.devices[%d].container_path", i)
			}
		}
		return "config.devices"
	case errs.CauseSeccomp:
		if asked := request.SeccompOf(config, request.SeccompProfile{}); asked.Path != "" {
			return seccompField + ".localhost_ref"
		}
	case errs.CauseLimit:
		if limit := limitOf(fault.Path); limit != "" {
			return request.FieldCreate + "." + limit
		}
	case errs.CauseLog:
		return "config.log_path"
	case errs.CauseSpec:
		return "config"
	}
	return ""
}

// hidesNull names what takes the place of /dev/null, which the OCI runtime must be able
// to use: the last device or mount there, or above it.
func hidesNull(config *runtimeapi.ContainerConfig) string {
	const null = "/dev/null"
	hides := func(place string) bool {
		place = path.Clean(place)
		return place == null || strings.HasPrefix(null, strings.TrimSuffix(place, "/")+"/")
	}
	for i, m := range slices.Backward(config.GetMounts()) {
		if hides(m.GetContainerPath()) {
			return fmt.Sprintf("config.mounts[%d].container_path", i)
		}
	}
	for i, d := range slices.Backward(config.GetDevices()) {
		if hides(placeOf(d)) {
			return fmt.Sprintf("config.devices[%d]", i)
		}
	}
	return "config"
}

// placeOf is where the container sees the device.
func placeOf(d *runtimeapi.Device) string {
	if to := d.GetContainerPath(); to != "" {
		return to
	}
	return d.GetHostPath()
}

// refusedLimit names the limit, of those in a request's field, that the kernel refused.
func refusedLimit(field string, err error) error {
	if !errors.Is(err, errs.Invalid) && !errors.Is(err, errs.State) {
		return err
	}
	var fault *errs.Fault
	if errors.As(err, &fault) && fault.Cause == errs.CauseLimit {
		if limit := limitOf(fault.Path); limit != "" {
			field += "." + limit
		}
	}
	return fmt.Errorf("%s: %w", field, err)
}

// limitOf is the field of LinuxContainerResources that is written to a cgroup's file, ""
// for none.
func limitOf(file string) string {
	for _, limit := range []struct{ prefix, field string }{
		{"cpuset.mems", "cpuset_mems"},
		{"cpuset.", "cpuset_cpus"},
		{"cpu.cfs_quota_us", "cpu_quota"},
		{"cpu.cfs_period_us", "cpu_period"},
		{"cpu.max", "cpu_quota"},
		{"cpu.shares", "cpu_shares"},
		{"cpu.weight", "cpu_shares"},
		{"hugetlb.", "hugepage_limits"},
		{"memory.memsw", "memory_swap_limit_in_bytes"},
		{"memory.swap", "memory_swap_limit_in_bytes"},
		{"memory.limit_in_bytes", "memory_limit_in_bytes"},
		{"memory.max", "memory_limit_in_bytes"},
	} {
		if strings.HasPrefix(file, limit.prefix) {
			return limit.field
		}
	}
	return ""
}

// refusedSysctl names the sysctl of a request that could not be written.
func refusedSysctl(config *runtimeapi.PodSandboxConfig, err error) error {
	var fault *sysns.SysctlError
	if !errors.As(err, &fault) {
		return err
	}
	for name := range config.GetLinux().GetSysctls() {
		if request.SysctlFile(name) == fault.File {
			return fmt.Errorf("config.linux.sysctls[%q]: %w", name, err)
		}
	}
	return err
}
