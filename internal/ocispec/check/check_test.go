package check

import (
	"errors"
	"slices"
	"strings"
	"testing"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/fieldtest"
	"github.com/berthrun/berth/internal/ocispec/requesttest"
)

// refusal is a request that must be refused: the change to a valid request, the kind of the error,
// and the field that the message names.
type refusal[C any] struct {
	change func(C)
	kind   error
	field  string
}

func refuse[C any](t *testing.T, good func() C, judge func(C) error, refusals []refusal[C]) {
	t.Helper()
	if err := judge(good()); err != nil {
		t.Fatalf("a good request is refused: %v", err)
	}
	for _, r := range refusals {
		config := good()
		r.change(config)
		err := judge(config)
		if !errors.Is(err, r.kind) {
			t.Errorf("%s: %v, want kind %v", r.field, err, r.kind)
			continue
		}
		if !strings.Contains(err.Error(), r.field) {
			t.Errorf("the message %q does not name %s", err, r.field)
		}
		if path := fieldtest.Named(err.Error()); !strings.HasPrefix(path, "config.") {
			t.Errorf("the message %q names no field of the request", err)
		}
	}
}

func TestSandboxesRefused(t *testing.T) {
	type config = *runtimeapi.PodSandboxConfig
	security := func(c config) *runtimeapi.LinuxSandboxSecurityContext { return c.Linux.SecurityContext }
	long := "/" + strings.Repeat("a/", 3000)
	refuse(t, requesttest.KubeletSandbox, Sandbox, []refusal[config]{
		{func(c *runtimeapi.PodSandboxConfig) { c.Annotations = map[string]string{untrusted: "true"} }, errs.Unsupported, "RuntimeClass"},
		{func(c config) { c.Linux.CgroupParent = long }, errs.Invalid, "linux.cgroup_parent"},
		{func(c config) {
			c.Linux.Sysctls["net.ipv4.ip_forward"], c.Linux.Sysctls["net/ipv4/ip_forward"] = "0", "1"
		}, errs.Invalid, `linux.sysctls["net/ipv4/ip_forward"]`},
		{func(c config) { c.Linux.Sysctls["net."+strings.Repeat("a", 256)] = "1" }, errs.Invalid, "linux.sysctls"},
		{func(c config) { c.Linux.Resources = &runtimeapi.LinuxContainerResources{CpuShares: 1 << 19} }, errs.Invalid, "linux.resources.cpu_shares"},
		{func(c config) { security(c).Seccomp = &runtimeapi.SecurityProfile{ProfileType: 2, LocalhostRef: long} }, errs.Invalid, "seccomp.localhost_ref"},
		{func(c config) { c.Linux.CgroupParent = "/a/../../b" }, errs.Invalid, "linux.cgroup_parent"},
		{func(c config) { c.Linux.CgroupParent = "a:b:c" }, errs.Invalid, "linux.cgroup_parent"},
		{func(c config) { c.Linux.Sysctls["kernel.panic"] = "1" }, errs.Invalid, `linux.sysctls["kernel.panic"]`},
		{func(c config) { c.Linux.Sysctls["net.ipv4.ip_forward"] = "1\n" }, errs.Invalid, `linux.sysctls["net.ipv4.ip_forward"]`},
		{func(c config) { c.Linux.Sysctls["net/../kernel/panic"] = "1" }, errs.Invalid, "linux.sysctls"},
		{func(c config) {
			c.Linux.Sysctls["net.ipv4.ip_forward"] = "1"
			security(c).NamespaceOptions.Network = runtimeapi.NamespaceMode_NODE
		}, errs.Invalid, "host's network namespace"},
		{func(c config) { security(c).RunAsGroup = &runtimeapi.Int64Value{Value: 1} }, errs.Invalid, "run_as_group"},
		{func(c config) { security(c).RunAsUser = &runtimeapi.Int64Value{Value: -1} }, errs.Invalid, "run_as_user"},
		{func(c config) { security(c).SupplementalGroups = []int64{1 << 32} }, errs.Invalid, "supplemental_groups[0]"},
		{func(c config) { security(c).SupplementalGroupsPolicy = 7 }, errs.Invalid, "supplemental_groups_policy"},
		{func(c config) { security(c).SupplementalGroupsPolicy = 7 }, errs.Invalid, "supplemental_groups_policy"},
		{func(c config) { security(c).NamespaceOptions.Network = 9 }, errs.Invalid, "namespace_options.network"},
		{func(c config) { security(c).NamespaceOptions.Ipc = runtimeapi.NamespaceMode_CONTAINER }, errs.Unsupported, "namespace_options.ipc"},
		{func(c config) { security(c).NamespaceOptions.Pid = runtimeapi.NamespaceMode_TARGET }, errs.Invalid, "namespace_options.pid"},
		{func(c config) { security(c).SelinuxOptions = &runtimeapi.SELinuxOption{Type: "t\n"} }, errs.Invalid, "selinux_options.type"},
		{func(c config) { security(c).Seccomp.ProfileType = 5 }, errs.Invalid, "seccomp.profile_type"},
		{func(c config) { security(c).Apparmor = &runtimeapi.SecurityProfile{ProfileType: 2} }, errs.Invalid, "apparmor.localhost_ref"},
		{func(c config) { c.Windows = &runtimeapi.WindowsPodSandboxConfig{} }, errs.Unsupported, "windows"},
	})
}

func TestContainersRefused(t *testing.T) {
	type config = *runtimeapi.ContainerConfig
	security := func(c config) *runtimeapi.LinuxContainerSecurityContext { return c.Linux.SecurityContext }
	judge := func(c config) error { return Container(c, requesttest.KubeletSandbox()) }
	long := "/" + strings.Repeat("a/", 3000)
	device := func(change func(*runtimeapi.Device)) func(config) {
		return func(c config) {
			c.Devices = []*runtimeapi.Device{{HostPath: "/dev/null", ContainerPath: "/dev/x", Permissions: "r"}}
			change(c.Devices[0])
		}
	}
	refuse(t, requesttest.KubeletContainer, judge, []refusal[config]{
		{func(c config) { c.Image.RuntimeHandler = "kata" }, errs.Unsupported, "image.runtime_handler"},
		{func(c config) { c.Command = []string{"a\x00"} }, errs.Invalid, "command[0]"},
		{func(c config) { c.Args = []string{"b", "a\x00"} }, errs.Invalid, "args[1]"},
		{func(c config) { c.WorkingDir = "srv" }, errs.Invalid, "working_dir"},
		{func(c config) { c.Mounts[0].Propagation = 8 }, errs.Invalid, "mounts[0].propagation"},
		{func(c config) { c.Devices = []*runtimeapi.Device{{HostPath: "null", Permissions: "r"}} }, errs.Invalid, "devices[0].host_path"},
		{func(c config) { c.Devices = []*runtimeapi.Device{{HostPath: "/dev/null", Permissions: "x"}} }, errs.Invalid, "devices[0].permissions"},
		{func(c config) { c.Devices = []*runtimeapi.Device{{HostPath: "/dev/null"}} }, errs.Invalid, "devices[0].permissions"},
		{device(func(d *runtimeapi.Device) { d.HostPath = long }), errs.Invalid, "devices[0].host_path"},
		{device(func(d *runtimeapi.Device) { d.ContainerPath = long }), errs.Invalid, "devices[0].container_path"},
		{device(func(d *runtimeapi.Device) { d.ContainerPath = "/dev/../proc/x" }), errs.Invalid, "devices[0].container_path"},
		{device(func(d *runtimeapi.Device) { d.ContainerPath = "/sys/x" }), errs.Invalid, "devices[0].container_path"},
		{func(c config) { c.Mounts[0].MountOptions = slices.Repeat([]string{"nodev"}, 65) }, errs.Invalid, "mounts[0].mount_options"},
		{func(c config) { c.WorkingDir = long }, errs.Invalid, "working_dir"},
		{func(c config) { c.CDIDevices = []*runtimeapi.CDIDevice{{Name: "v c=d"}} }, errs.Invalid, "CDI_devices[0].name"},
		{func(c config) { c.StopSignal = 999 }, errs.Invalid, "stop_signal"},
		{func(c config) { c.Linux.Resources.CpuShares = -1 }, errs.Invalid, "cpu_shares"},
		{func(c config) { c.Linux.Resources.CpuShares = 1 }, errs.Invalid, "cpu_shares"},
		{func(c config) { c.Linux.Resources.CpuShares = 1<<18 + 1 }, errs.Invalid, "cpu_shares"},
		{func(c config) { c.Linux.Resources.CpusetMems = strings.Repeat("0,", 1<<15) + "0" }, errs.Invalid, "cpuset_mems"},
		{func(c config) { c.Linux.Resources.OomScoreAdj = 1001 }, errs.Invalid, "oom_score_adj"},
		{func(c config) { c.Linux.Resources.CpusetCpus = "0;1" }, errs.Invalid, "cpuset_cpus"},
		{func(c config) { c.Linux.Resources.HugepageLimits[0].PageSize = "../x" }, errs.Invalid, "hugepage_limits[0].page_size"},
		{func(c config) { c.Linux.Resources.Unified["../cgroup.procs"] = "1" }, errs.Invalid, "unified"},
		{func(c config) { security(c).Privileged = true }, errs.Invalid, "privileged"},
		{func(c config) { security(c).Capabilities = &runtimeapi.Capability{AddCapabilities: []string{"FLY"}} }, errs.Invalid, "add_capabilities"},
		{func(c config) { security(c).Capabilities = &runtimeapi.Capability{DropCapabilities: []string{"FLY"}} }, errs.Invalid, "drop_capabilities"},
		{func(c config) {
			security(c).Capabilities = &runtimeapi.Capability{AddAmbientCapabilities: []string{"FLY"}}
		}, errs.Invalid, "add_ambient_capabilities"},
		{func(c config) { security(c).RunAsUser.Value = 1 << 31 }, errs.Invalid, "run_as_user"},
		{func(c config) { security(c).RunAsUser.Value = 1 << 32 }, errs.Invalid, "run_as_user"},
		{func(c config) { security(c).RunAsUser.Value = -1 }, errs.Invalid, "run_as_user"},
		{func(c config) { security(c).RunAsGroup = &runtimeapi.Int64Value{Value: 1 << 32} }, errs.Invalid, "run_as_group"},
		{func(c config) {
			security(c).RunAsUser, security(c).RunAsGroup = nil, &runtimeapi.Int64Value{Value: 1}
		}, errs.Invalid, "run_as_group"},
		{func(c config) { security(c).RunAsUsername = "root" }, errs.Invalid, "run_as_username"},
		{func(c config) { security(c).NamespaceOptions.Pid = runtimeapi.NamespaceMode_TARGET }, errs.Invalid, "target_id"},
		{func(c config) { security(c).NamespaceOptions.Network = runtimeapi.NamespaceMode_NODE }, errs.Invalid, "namespace_options.network"},
		{func(c config) { security(c).Seccomp = &runtimeapi.SecurityProfile{ProfileType: 2, LocalhostRef: "rel"} }, errs.Invalid, "seccomp.localhost_ref"},
		{func(c config) { setOld(c, "localhost/rel", "") }, errs.Invalid, "seccomp_profile_path"},
		{func(c config) { setOld(c, "wrong", "") }, errs.Invalid, `unknown seccomp profile option: "wrong"`},
		{func(c config) { security(c).Seccomp = &runtimeapi.SecurityProfile{ProfileType: 7} }, errs.Invalid, `seccomp.profile_type: unknown seccomp profile option: "7"`},
		{func(c config) { setOld(c, "", "localhost/") }, errs.Invalid, "apparmor_profile"},
		{func(c config) { setOld(c, "", "what") }, errs.Invalid, "apparmor_profile"},
		{func(c config) { security(c).MaskedPaths = []string{"proc"} }, errs.Invalid, "masked_paths[0]"},
		{func(c config) { c.Windows = &runtimeapi.WindowsContainerConfig{} }, errs.Unsupported, "windows"},
	})
}

func TestNeutralValuesPass(t *testing.T) {
	sandbox := &runtimeapi.PodSandboxConfig{Metadata: &runtimeapi.PodSandboxMetadata{Name: "x"}}
	if err := Sandbox(sandbox); err != nil {
		t.Errorf("a sandbox with nothing but a name: %v", err)
	}
	container := &runtimeapi.ContainerConfig{
		Metadata: &runtimeapi.ContainerMetadata{Name: "x"},
		Image:    &runtimeapi.ImageSpec{Image: "busybox"},
		Linux: &runtimeapi.LinuxContainerConfig{SecurityContext: &runtimeapi.LinuxContainerSecurityContext{
			SelinuxOptions: &runtimeapi.SELinuxOption{},
			Apparmor:       &runtimeapi.SecurityProfile{ProfileType: runtimeapi.SecurityProfile_RuntimeDefault},
			Capabilities:   &runtimeapi.Capability{AddCapabilities: []string{"all", "CAP_net_admin"}},
		}},
	}
	if err := Container(container, sandbox); err != nil {
		t.Errorf("a container with neutral values: %v", err)
	}
	setOld(container, "runtime/default", "runtime/default")
	if err := Container(container, sandbox); err != nil {
		t.Errorf("the same in an older client's fields: %v", err)
	}
	if err := Container(&runtimeapi.ContainerConfig{
		Metadata: container.Metadata, Image: container.Image,
	}, sandbox); err != nil {
		t.Errorf("a container with nothing but an image: %v", err)
	}
}

// setOld sets what older clients send: names of profiles in place of profiles.
func setOld(c *runtimeapi.ContainerConfig, seccomp, appArmor string) {
	security := c.Linux.SecurityContext
	security.Seccomp, security.Apparmor = nil, nil
	security.SeccompProfilePath, security.ApparmorProfile = seccomp, appArmor //nolint:staticcheck // deprecated, still sent
}
