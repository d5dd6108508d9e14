package faults

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/fieldtest"
)

const runc = "failed to create shim task: OCI runtime create failed: runc create failed: unable to start container process: "

// TestStart: errors of engines 20.10 and 29 about containers that cannot be started.
func TestStart(t *testing.T) {
	config := &runtimeapi.ContainerConfig{
		Mounts:  []*runtimeapi.Mount{{ContainerPath: "/a"}, {ContainerPath: "/etc/passwd/"}},
		Devices: []*runtimeapi.Device{{HostPath: "/dev/zero", ContainerPath: "/etc/group/x"}},
		Linux: &runtimeapi.LinuxContainerConfig{SecurityContext: &runtimeapi.LinuxContainerSecurityContext{
			Seccomp: &runtimeapi.SecurityProfile{ProfileType: runtimeapi.SecurityProfile_Localhost, LocalhostRef: "/p.json"},
		}},
	}
	for text, want := range map[string]string{
		runc + `error during container init: error mounting "/etc" to rootfs at "/etc/passwd": mount /etc:/etc/passwd (via /proc/self/fd/6), flags: 0x5000: not a directory: unknown: Are you trying to mount a directory onto a file (or vice-versa)?`: "config.mounts[1].container_path",
		runc + "error during container init: error creating device nodes: mkdir parent of device inode \"/etc/group/x\": not a directory":                                                                                                               "config.devices[0].container_path",
		runc + "error creating seccomp syscall condition for syscall getpid: syscalls only have up to 6 arguments (7 given): unknown":                                                                                                                   "config.linux.security_context.seccomp.localhost_ref",
		runc + `exec: "/no/such": stat /no/such: no such file or directory: unknown`:                                                                                                                                                                    "",
		"something new": "",
	} {
		err := Start(config, text)
		if got := fieldtest.Named(err.Error()); got != want || !errors.Is(err, errs.Invalid) {
			t.Errorf("%v names %q, want %q", err, got, want)
		}
		if without := Start(nil, text); !errors.Is(without, errs.Invalid) || !strings.Contains(without.Error(), text) {
			t.Errorf("without the request: %v", without)
		}
	}
}

func TestLimits(t *testing.T) {
	engines := func(text string) error {
		return fmt.Errorf("docker create container: Error response from daemon: %s: %w", text, errs.Invalid)
	}
	for text, want := range map[string]string{
		"Requested CPUs are not available - requested 900, available: 0-1":           "cpuset_cpus",
		"Requested memory nodes are not available - requested 900, available: 0":     "cpuset_mems",
		"Minimum memoryswap limit should be larger than memory limit, see usage":     "memory_swap_limit_in_bytes",
		"Minimum memory limit allowed is 6MB":                                        "memory_limit_in_bytes",
		"CPU cfs period can not be less than 1ms (i.e. 1000) or larger than 1s (i.e": "cpu_period",
	} {
		if err := Create(engines(text)); fieldtest.Named(err.Error()) != "config.linux.resources."+want || !errors.Is(err, errs.Invalid) {
			t.Errorf("create: %v, want %s", err, want)
		}
		if err := Update("linux", engines(text)); fieldtest.Named(err.Error()) != "linux."+want {
			t.Errorf("update: %v, want %s", err, want)
		}
	}
	refused := errors.New(`docker update container: Cannot update container x: runc did not terminate successfully: failed to write "4096": write /sys/fs/cgroup/memory/x/memory.limit_in_bytes: invalid argument: unknown`)
	if err := Update("linux", refused); fieldtest.Named(err.Error()) != "linux.memory_limit_in_bytes" || !errors.Is(err, errs.Invalid) {
		t.Errorf("the kernel refuses: %v", err)
	}
	for _, err := range []error{nil, fmt.Errorf("no such container: %w", errs.NotFound), fmt.Errorf("away: %w", errs.Unavailable)} {
		if Create(err) != err || Update("linux", err) != err { //nolint:errorlint // the same value
			t.Errorf("%v is changed", err)
		}
	}
}
