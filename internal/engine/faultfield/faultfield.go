// Package faultfield finds the field of a request that an error is about.
//
// The kernel and the OCI runtime find some faults of a request only when they act on it, and
// name files and paths. The cause that such an error carries (errs.Fault) leads to the field.
// An older supervisor sends no cause; then the error names no field.
package faultfield

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

// Container adds the field of a container's request to an error of the supervisor that has
// kind Invalid. It returns any other error as it is.
func Container(config *runtimeapi.ContainerConfig, err error) error {
	var fault *errs.Fault
	if !errors.Is(err, errs.Invalid) || !errors.As(err, &fault) {
		return err
	}
	if field := fieldOf(config, fault); field != "" {
		return fmt.Errorf("%s: %w", field, err)
	}
	return err
}

// fieldOf is the field of a request that a fault is about. It is "" when the fault is about
// a mount or a filter that berth added.
func fieldOf(config *runtimeapi.ContainerConfig, fault *errs.Fault) string {
	switch fault.Cause {
	case errs.CauseDevNull:
		return hidingNull(config)
	case errs.CauseMount:
		for i, m := range config.GetMounts() {
			if path.Clean(m.GetContainerPath()) == fault.Path {
				return fmt.Sprintf("config.mounts[%d].container_path", i)
			}
		}
	case errs.CauseDevice:
		for i, d := range config.GetDevices() {
			if path.Clean(request.DevicePath(d)) == path.Clean(fault.Path) {
				return fmt.Sprintf("config.devices[%d].container_path", i)
			}
		}
		if len(config.GetDevices()) == 1 {
			return "config.devices[0].container_path"
		}
		return "config.devices"
	case errs.CauseSeccomp:
		if requested := request.SeccompOf(config, request.SeccompProfile{}); requested.Path != "" {
			return "config.linux.security_context.seccomp.localhost_ref"
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

// hidingNull names the last device or mount at /dev/null or above it. The OCI runtime must
// be able to use /dev/null.
func hidingNull(config *runtimeapi.ContainerConfig) string {
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
		if hides(request.DevicePath(d)) {
			return fmt.Sprintf("config.devices[%d]", i)
		}
	}
	return "config"
}

// Limit adds the limit that the kernel refused to an error. The limits are in the given
// field of the request.
func Limit(field string, err error) error {
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

// limitOf is the field of LinuxContainerResources that a cgroup's file holds, "" for none.
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

// Sysctl adds the sysctl of a sandbox's request that could not be written to an error.
func Sysctl(config *runtimeapi.PodSandboxConfig, err error) error {
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
