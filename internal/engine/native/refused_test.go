package native

import (
	"errors"
	"fmt"
	"testing"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/fieldtest"
	"github.com/berthrun/berth/internal/ocispec"
	"github.com/berthrun/berth/internal/sys/sysns"
)

// What the kernel and the OCI runtime refuse in their own words is told by the request's
// field.
func TestRefusalsNameTheField(t *testing.T) {
	config := &runtimeapi.ContainerConfig{
		Mounts:  []*runtimeapi.Mount{{ContainerPath: "/a"}, {ContainerPath: "/etc/passwd/"}},
		Devices: []*runtimeapi.Device{{HostPath: "/dev/zero", ContainerPath: "/dev/x"}, {HostPath: "/dev/null"}, {HostPath: "/dev/zero", ContainerPath: "/etc/group/x"}},
		Linux: &runtimeapi.LinuxContainerConfig{SecurityContext: &runtimeapi.LinuxContainerSecurityContext{
			Seccomp: &runtimeapi.SecurityProfile{ProfileType: runtimeapi.SecurityProfile_Localhost, LocalhostRef: "/p.json"},
		}},
	}
	for text, want := range map[string]string{
		`error mounting "/etc" to rootfs at "/etc/passwd": not a directory`:                               "config.mounts[1].container_path",
		`failed to write "900": write /sys/fs/cgroup/cpuset/x/cpuset.cpus: numerical result out of range`: "config.linux.resources.cpuset_cpus",
		`error creating device nodes: mkdirat /rootfs/etc/group/x: not a directory`:                       "config.devices[2].container_path",
		`error creating device nodes: open /rootfs/other: not a directory`:                                "config.devices",
		`error reopening /dev/null inside container: open /dev/null: operation not permitted`:             "config.devices[1]",
		"string X is not a valid action for seccomp":                                                      "config.linux.security_context.seccomp.localhost_ref",
		"memory limit too low":                                     "config.linux.resources.memory_limit_in_bytes",
		"log file /logs/x is not a regular file":                   "config.log_path",
		`path "x" leads out of "/logs" or through a symbolic link`: "config.log_path",
		"spec is longer than 5 bytes":                              "config",
	} {
		if got := fieldtest.Named(refusedContainer(config, fmt.Errorf("%s: %w", text, errs.Invalid)).Error()); got != want {
			t.Errorf("%s: names %q, want %s", text, got, want)
		}
	}
	config.Mounts = append(config.Mounts, &runtimeapi.Mount{ContainerPath: "/dev"})
	hidden := fmt.Errorf("error reopening /dev/null inside container: open /dev/null: no such file or directory: %w", errs.Invalid)
	if got := fieldtest.Named(refusedContainer(config, hidden).Error()); got != "config.mounts[2].container_path" {
		t.Errorf("a mount over /dev: names %q", got)
	}
	other := errors.New("write cpuset.cpus: input/output error")
	if got := refusedContainer(config, other); !errors.Is(got, other) || got.Error() != other.Error() {
		t.Errorf("no fault of the request: %v", got)
	}
	for text, want := range map[string]string{
		"write cpu.cfs_quota_us: invalid argument": "resources.cpu_quota",
		"unable to set memory limit to 5":          "resources.memory_limit_in_bytes",
		"something else":                           "resources",
	} {
		if got := fieldtest.Named(refusedLimit(ocispec.FieldUpdateSandbox, fmt.Errorf("%s: %w", text, errs.Invalid)).Error()); got != want {
			t.Errorf("%s: names %q, want %s", text, got, want)
		}
	}
	pod := &runtimeapi.PodSandboxConfig{Linux: &runtimeapi.LinuxPodSandboxConfig{Sysctls: map[string]string{"net.no.such": "1"}}}
	fault := &sysns.SysctlError{File: "net/no/such", Err: errs.Invalid}
	if got := fieldtest.Named(refusedSysctl(pod, fmt.Errorf("cannot: %w", fault)).Error()); got != `config.linux.sysctls["net.no.such"]` {
		t.Errorf("a sysctl: names %q", got)
	}
}
