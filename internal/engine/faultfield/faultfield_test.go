package faultfield

import (
	"errors"
	"fmt"
	"testing"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/fieldtest"
	"github.com/berthrun/berth/internal/ocispec/request"
	"github.com/berthrun/berth/internal/sys/sysns"
)

// If the kernel or the OCI runtime refuses a value, the error names the field of the request.
func TestRefusalsNameTheField(t *testing.T) {
	config := &runtimeapi.ContainerConfig{
		Mounts:  []*runtimeapi.Mount{{ContainerPath: "/a"}, {ContainerPath: "/etc/passwd/"}},
		Devices: []*runtimeapi.Device{{HostPath: "/dev/zero", ContainerPath: "/dev/x"}, {HostPath: "/dev/null"}, {HostPath: "/dev/zero", ContainerPath: "/etc/group/x"}},
		Linux: &runtimeapi.LinuxContainerConfig{SecurityContext: &runtimeapi.LinuxContainerSecurityContext{
			Seccomp: &runtimeapi.SecurityProfile{ProfileType: runtimeapi.SecurityProfile_Localhost, LocalhostRef: "/p.json"},
		}},
	}
	invalid := func(cause errs.Cause, path string) error {
		return fmt.Errorf("made: %w", &errs.Fault{Cause: cause, Path: path, Err: fmt.Errorf("no: %w", errs.Invalid)})
	}
	for _, c := range []struct {
		cause      errs.Cause
		path, want string
	}{
		{errs.CauseMount, "/etc/passwd", "config.mounts[1].container_path"},
		{errs.CauseMount, "/sys", ""},
		{errs.CauseLimit, "cpuset.cpus", "config.linux.resources.cpuset_cpus"},
		{errs.CauseLimit, "cpuset.mems", "config.linux.resources.cpuset_mems"},
		{errs.CauseLimit, "memory.max", "config.linux.resources.memory_limit_in_bytes"},
		{errs.CauseLimit, "io.max", ""},
		{errs.CauseDevice, "/etc/group/x", "config.devices[2].container_path"},
		{errs.CauseDevice, "/dev/null", "config.devices[1].container_path"},
		{errs.CauseDevice, "/rootfs/other", "config.devices"},
		{errs.CauseDevice, "", "config.devices"},
		{errs.CauseDevNull, "/dev/null", "config.devices[1]"},
		{errs.CauseSeccomp, "", "config.linux.security_context.seccomp.localhost_ref"},
		{errs.CauseLog, "x", "config.log_path"},
		{errs.CauseSpec, "", "config"},
		{"of a newer supervisor", "/a", ""},
	} {
		err := invalid(c.cause, c.path)
		got := Container(config, err)
		if fieldtest.Named(got.Error()) != c.want || !errors.Is(got, errs.Invalid) {
			t.Errorf("%s %q: %v, want %s", c.cause, c.path, got, c.want)
		}
		if c.want == "" && got.Error() != err.Error() {
			t.Errorf("%s %q: %v became %v", c.cause, c.path, err, got)
		}
	}
	if got := fieldtest.Named(Container(&runtimeapi.ContainerConfig{}, invalid(errs.CauseSeccomp, "")).Error()); got != "" {
		t.Errorf("berth's own filter: names %q", got)
	}
	config.Mounts = append(config.Mounts, &runtimeapi.Mount{ContainerPath: "/dev"})
	if got := fieldtest.Named(Container(config, invalid(errs.CauseDevNull, "/dev/null")).Error()); got != "config.mounts[2].container_path" {
		t.Errorf("a mount over /dev: names %q", got)
	}
	for name, other := range map[string]error{
		"no fault of the request":  &errs.Fault{Cause: errs.CauseLimit, Path: "cpuset.cpus", Err: errors.New("input/output error")},
		"from an older supervisor": fmt.Errorf("write cpuset.cpus: %w", errs.Invalid),
	} {
		if got := Container(config, other); !errors.Is(got, other) || got.Error() != other.Error() {
			t.Errorf("%s: %v", name, got)
		}
	}
	for err, want := range map[error]string{
		invalid(errs.CauseLimit, "cpu.cfs_quota_us"):                                        "resources.cpu_quota",
		&errs.Fault{Cause: errs.CauseLimit, Path: "memory.limit_in_bytes", Err: errs.State}: "resources.memory_limit_in_bytes",
		invalid(errs.CauseLimit, ""):                                                        "resources",
		fmt.Errorf("container x is ending: %w", errs.State):                                 "resources",
		fmt.Errorf("container x: %w", errs.NotFound):                                        "",
	} {
		if got := fieldtest.Named(Limit(request.FieldUpdateSandbox, err).Error()); got != want {
			t.Errorf("%v: names %q, want %s", err, got, want)
		}
	}
	pod := &runtimeapi.PodSandboxConfig{Linux: &runtimeapi.LinuxPodSandboxConfig{Sysctls: map[string]string{"net.no.such": "1"}}}
	fault := &sysns.SysctlError{File: "net/no/such", Err: errs.Invalid}
	if got := fieldtest.Named(Sysctl(pod, fmt.Errorf("cannot: %w", fault)).Error()); got != `config.linux.sysctls["net.no.such"]` {
		t.Errorf("a sysctl: names %q", got)
	}
}
