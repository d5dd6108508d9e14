package native

import (
	"errors"
	"fmt"
	"path"
	"slices"
	"strconv"
	"strings"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/ocispec"
	"github.com/berthrun/berth/internal/sys/sysns"
)

// What only the kernel or the OCI runtime finds out is told in their words, which name
// files and paths. These find the request's field to put before them.

// refusedContainer names the field of a request for a container that the supervisor
// refused as Invalid.
func refusedContainer(config *runtimeapi.ContainerConfig, err error) error {
	if !errors.Is(err, errs.Invalid) {
		return err
	}
	text := err.Error()
	if strings.Contains(text, "/dev/null inside container") {
		return fmt.Errorf("%s: %w", hidesNull(config), err)
	}
	for i, m := range config.GetMounts() {
		if strings.Contains(text, `at `+strconv.Quote(path.Clean(m.GetContainerPath()))) {
			return fmt.Errorf("config.mounts[%d].container_path: %w", i, err)
		}
	}
	if asked, _ := ocispec.SeccompOf(config, ocispec.SeccompProfile{}); asked.Path != "" && strings.Contains(text, "seccomp") {
		return fmt.Errorf("%s.localhost_ref: %w", seccompField, err)
	}
	for i, d := range config.GetDevices() {
		if strings.Contains(text, "creating device nodes") && strings.Contains(text, path.Clean(placeOf(d))) {
			return fmt.Errorf("config.devices[%d].container_path: %w", i, err)
		}
	}
	for _, part := range []struct{ words, field string }{
		{"creating device nodes", "config.devices"},
		{"log file", "config.log_path"},
		{"log path", "config.log_path"},
		{"log directory", "config.log_path"},
		{"leads out of", "config.log_path"},
		{"spec is longer than", "config"},
	} {
		if strings.Contains(text, part.words) {
			return fmt.Errorf("%s: %w", part.field, err)
		}
	}
	if field, known := limitOf(text); known {
		return fmt.Errorf("%s.%s: %w", ocispec.FieldCreate, field, err)
	}
	return err
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
	if name, known := limitOf(err.Error()); known {
		field += "." + name
	}
	return fmt.Errorf("%s: %w", field, err)
}

// limitOf tells which limit a text with a cgroup's file or libcontainer's words means.
func limitOf(text string) (field string, known bool) {
	for _, limit := range []struct{ words, field string }{
		{"cpuset.cpus", "cpuset_cpus"},
		{"cpuset.mems", "cpuset_mems"},
		{"cpu.cfs_quota_us", "cpu_quota"},
		{"cpu.cfs_period_us", "cpu_period"},
		{"cpu.max", "cpu_quota"},
		{"cpu.shares", "cpu_shares"},
		{"cpu.weight", "cpu_shares"},
		{"cpu-shares", "cpu_shares"},
		{"hugetlb.", "hugepage_limits"},
		{"memory.memsw", "memory_swap_limit_in_bytes"},
		{"memory.swap", "memory_swap_limit_in_bytes"},
		{"memory.limit_in_bytes", "memory_limit_in_bytes"},
		{"memory.max", "memory_limit_in_bytes"},
		{"memory limit", "memory_limit_in_bytes"},
		{"rejecting memory", "memory_limit_in_bytes"},
		{"cpuset", "cpuset_cpus"},
	} {
		if strings.Contains(text, limit.words) {
			return limit.field, true
		}
	}
	return "", false
}

// refusedSysctl names the sysctl of a request that could not be written.
func refusedSysctl(config *runtimeapi.PodSandboxConfig, err error) error {
	var fault *sysns.SysctlError
	if !errors.As(err, &fault) {
		return err
	}
	for name := range config.GetLinux().GetSysctls() {
		if ocispec.SysctlFile(name) == fault.File {
			return fmt.Errorf("config.linux.sysctls[%q]: %w", name, err)
		}
	}
	return err
}
