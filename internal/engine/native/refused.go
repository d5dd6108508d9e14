package native

import (
	"errors"
	"fmt"
	"path"
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
	for i, m := range config.GetMounts() {
		if strings.Contains(text, `at `+strconv.Quote(path.Clean(m.GetContainerPath()))) {
			return fmt.Errorf("config.mounts[%d].container_path: %w", i, err)
		}
	}
	for _, part := range []struct{ words, field string }{
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
