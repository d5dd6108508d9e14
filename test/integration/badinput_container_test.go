//go:build integration

package integration

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/berthrun/berth/internal/engine/docker/translate"
	"github.com/berthrun/berth/test/harness"
	"google.golang.org/grpc/codes"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

type containerConfig = *runtimeapi.ContainerConfig

func containerSecurity(c containerConfig) *runtimeapi.LinuxContainerSecurityContext {
	return c.Linux.SecurityContext
}

// apparmorCode is the code for a request of a profile that is not loaded.
func apparmorCode() codes.Code {
	data, err := os.ReadFile("/sys/module/apparmor/parameters/enabled")
	if err == nil && strings.HasPrefix(string(data), "Y") {
		return codes.InvalidArgument
	}
	return codes.Unimplemented
}

func user(id int64) *runtimeapi.Int64Value { return &runtimeapi.Int64Value{Value: id} }

func TestBadContainersAreRefusedAndLeaveNothing(t *testing.T) {
	x := newTrial(t, harness.Options{})
	const invalid, unsupported = codes.InvalidArgument, codes.Unimplemented
	create := func(sandbox string, config containerConfig) func() error {
		return func() error {
			_, err := x.Runtime.CreateContainer(x.Ctx(), &runtimeapi.CreateContainerRequest{PodSandboxId: sandbox, Config: config, SandboxConfig: x.pod.Config})
			return err
		}
	}
	x.try(t, []attempt{
		{"no config", create(x.pod.Sandbox, nil), invalid, []string{"config is missing"}},
		{"no sandbox", create("", x.Container("bad", "exit 0")), invalid, []string{"pod_sandbox_id"}},
		{"unknown sandbox", create(strings.Repeat("0", 64), x.Container("bad", "exit 0")), codes.NotFound, []string{"PodSandbox", strings.Repeat("0", 64)}},
		x.badContainer("no metadata", invalid, func(c containerConfig) { c.Metadata = nil }, "metadata"),
		x.badContainer("no name", invalid, func(c containerConfig) { c.Metadata.Name = "" }, "metadata.name"),
		x.badContainer("name that is a path", invalid, func(c containerConfig) { c.Metadata.Name = "../x" }, "metadata.name"),
		x.badContainer("huge name", invalid, func(c containerConfig) { c.Metadata.Name = huge }, "metadata.name"),
		x.badContainer("no image", invalid, func(c containerConfig) { c.Image = nil }, "image"),
		x.badContainer("image that is not there", codes.NotFound, func(c containerConfig) { c.Image.Image = "registry.invalid/no:1" }, "registry.invalid/no:1", "not on this node"),
		x.badContainer("image id that is not there", codes.NotFound, func(c containerConfig) { c.Image.Image = "sha256:" + strings.Repeat("0", 64) }, "not on this node"),
		x.badContainer("image name that is none", invalid, func(c containerConfig) { c.Image.Image = "UPPER case\n" }, "UPPER case"),
		x.badContainer("image's handler", unsupported, func(c containerConfig) { c.Image.RuntimeHandler = "kata" }, "image.runtime_handler", "kata"),

		x.badContainer("command with NUL", invalid, func(c containerConfig) { c.Command = []string{"a\x00b"} }, "command[0]"),
		x.badContainer("argument with NUL", invalid, func(c containerConfig) { c.Args = []string{"b", "\x00"} }, "args[1]"),
		x.badContainer("relative working directory", invalid, func(c containerConfig) { c.WorkingDir = "srv" }, "working_dir"),
		x.badContainer("variable without a name", invalid, func(c containerConfig) { c.Envs = []*runtimeapi.KeyValue{{Value: []byte("v")}} }, "envs[0].key"),
		x.badContainer("variable of two lines", invalid, func(c containerConfig) { c.Envs = []*runtimeapi.KeyValue{{Key: "A\nB"}} }, "envs[0].key"),
		x.badContainer("variable with NUL", invalid, func(c containerConfig) { c.Envs = []*runtimeapi.KeyValue{{Key: "A", Value: []byte{0}}} }, "envs[0].value"),
		x.badContainer("annotation's key of two lines", invalid, func(c containerConfig) { c.Annotations = map[string]string{"a\nb": "c"} }, "annotations"),
		x.badContainer("unknown stop signal", invalid, func(c containerConfig) { c.StopSignal = 999 }, "stop_signal"),
		x.badContainer("negative shares", invalid, func(c containerConfig) { c.Linux.Resources.CpuShares = -1 }, "cpu_shares"),
		x.badContainer("CPUs that are no set", invalid, func(c containerConfig) { c.Linux.Resources.CpusetCpus = "0;1" }, "cpuset_cpus"),
		x.badContainer("CPUs that the host lacks", invalid, func(c containerConfig) { c.Linux.Resources.CpusetCpus = "900" }, "cpuset"),
		x.badContainer("memory nodes that the host lacks", invalid, func(c containerConfig) { c.Linux.Resources.CpusetMems = "900" }, "cpuset_mems"),
		x.badContainer("huge list of CPUs", invalid, func(c containerConfig) { c.Linux.Resources.CpusetCpus = strings.Repeat("0,", 1<<19) + "0" }, "cpuset_cpus"),
		x.badContainer("one share", invalid, func(c containerConfig) { c.Linux.Resources.CpuShares = 1 }, "cpu_shares"),
		x.badContainer("huge shares", invalid, func(c containerConfig) { c.Linux.Resources.CpuShares = 1 << 62 }, "cpu_shares"),
		x.badContainer("page size that is a path", invalid, func(c containerConfig) {
			c.Linux.Resources.HugepageLimits = []*runtimeapi.HugepageLimit{{PageSize: "../x", Limit: 1}}
		}, "hugepage_limits[0].page_size"),
		x.badContainer("unified key that is a path", invalid, func(c containerConfig) {
			c.Linux.Resources.Unified = map[string]string{"../cgroup.procs": "1"}
		}, "unified"),

		x.badContainer("privileged in a pod that is not", invalid, func(c containerConfig) { containerSecurity(c).Privileged = true }, "privileged"),
		x.badContainer("unknown capability", invalid, func(c containerConfig) {
			containerSecurity(c).Capabilities = &runtimeapi.Capability{AddCapabilities: []string{"FLY"}}
		}, "add_capabilities", "FLY"),
		x.badContainer("unknown capability to drop", invalid, func(c containerConfig) {
			containerSecurity(c).Capabilities = &runtimeapi.Capability{DropCapabilities: []string{"CAP_FLY"}}
		}, "drop_capabilities", "CAP_FLY"),
		x.badContainer("unknown ambient capability", invalid, func(c containerConfig) {
			containerSecurity(c).Capabilities = &runtimeapi.Capability{AddAmbientCapabilities: []string{"FLY"}}
		}, "add_ambient_capabilities"),
		x.badContainer("network of the node", invalid, func(c containerConfig) {
			containerSecurity(c).NamespaceOptions.Network = runtimeapi.NamespaceMode_NODE
		}, "namespace_options.network"),
		x.badContainer("target that is not there", codes.NotFound, func(c containerConfig) {
			containerSecurity(c).NamespaceOptions = &runtimeapi.NamespaceOption{Pid: runtimeapi.NamespaceMode_TARGET, TargetId: "../../etc"}
		}, "target_id", "../../etc"),
		x.badContainer("user namespace that its pod lacks", invalid, func(c containerConfig) {
			containerSecurity(c).NamespaceOptions.UsernsOptions = &runtimeapi.UserNamespace{Mode: runtimeapi.NamespaceMode_POD}
		}, "userns_options"),
		x.badContainer("SELinux", unsupported, func(c containerConfig) { containerSecurity(c).SelinuxOptions = &runtimeapi.SELinuxOption{Level: "s0"} }, "selinux_options"),
		x.badContainer("AppArmor profile", apparmorCode(), func(c containerConfig) {
			containerSecurity(c).Apparmor = &runtimeapi.SecurityProfile{ProfileType: runtimeapi.SecurityProfile_Localhost, LocalhostRef: "p"}
		}, "apparmor"),
		x.badContainer("unknown policy of groups", invalid, func(c containerConfig) {
			containerSecurity(c).SupplementalGroupsPolicy = 9
		}, "supplemental_groups_policy"),
		x.badContainer("AppArmor profile of two lines", invalid, func(c containerConfig) {
			containerSecurity(c).Apparmor = &runtimeapi.SecurityProfile{ProfileType: runtimeapi.SecurityProfile_Localhost, LocalhostRef: "a\nb"}
		}, "apparmor.localhost_ref"),
		x.badContainer("unknown kind of AppArmor profile", invalid, func(c containerConfig) {
			containerSecurity(c).Apparmor = &runtimeapi.SecurityProfile{ProfileType: 7}
		}, "apparmor.profile_type"),
		x.badContainer("seccomp profile that is not there", invalid, func(c containerConfig) {
			containerSecurity(c).Seccomp = &runtimeapi.SecurityProfile{ProfileType: runtimeapi.SecurityProfile_Localhost, LocalhostRef: filepath.Join(x.Dir, "no.json")}
		}, "seccomp", "no.json"),
		x.badContainer("seccomp profile that is none", invalid, func(c containerConfig) {
			containerSecurity(c).Seccomp = &runtimeapi.SecurityProfile{ProfileType: runtimeapi.SecurityProfile_Localhost, LocalhostRef: x.file("bad.json", "not { json")}
		}, "seccomp", "bad.json"),
		x.badContainer("seccomp profile that is a directory", invalid, func(c containerConfig) {
			containerSecurity(c).Seccomp = &runtimeapi.SecurityProfile{ProfileType: runtimeapi.SecurityProfile_Localhost, LocalhostRef: "/etc"}
		}, "seccomp.localhost_ref", "regular file"),
		x.badContainer("seccomp profile of an unknown action", invalid, func(c containerConfig) {
			profile := x.file("action.json", `{"defaultAction":"SCMP_ACT_ALLOW","syscalls":[{"names":["getpid"],"action":"NO"}]}`)
			containerSecurity(c).Seccomp = &runtimeapi.SecurityProfile{ProfileType: runtimeapi.SecurityProfile_Localhost, LocalhostRef: profile}
		}, "seccomp.localhost_ref", "action"),
		x.badContainer("seccomp profile of a seventh argument", invalid, func(c containerConfig) {
			profile := x.file("argument.json", `{"defaultAction":"SCMP_ACT_ALLOW","syscalls":[{"names":["getpid"],"action":"SCMP_ACT_ERRNO","args":[{"index":7,"value":1,"op":"SCMP_CMP_EQ"}]}]}`)
			containerSecurity(c).Seccomp = &runtimeapi.SecurityProfile{ProfileType: runtimeapi.SecurityProfile_Localhost, LocalhostRef: profile}
		}, "seccomp.localhost_ref", "arguments"),
		x.badContainer("too many masked paths", invalid, func(c containerConfig) { containerSecurity(c).MaskedPaths = make([]string, 2000) }, "masked_paths"),
		x.badContainer("huge read-only path", invalid, func(c containerConfig) { containerSecurity(c).ReadonlyPaths = []string{"/" + huge} }, "readonly_paths[0]"),
		x.badContainer("read-only path with NUL", invalid, func(c containerConfig) { containerSecurity(c).ReadonlyPaths = []string{"/a\x00"} }, "readonly_paths[0]"),
		x.badContainer("too many capabilities", invalid, func(c containerConfig) {
			containerSecurity(c).Capabilities = &runtimeapi.Capability{AddCapabilities: slices.Repeat([]string{"CHOWN"}, 1000)}
		}, "add_capabilities"),
		x.badContainer("too many devices", invalid, func(c containerConfig) {
			c.Devices = slices.Repeat([]*runtimeapi.Device{{HostPath: "/dev/null", Permissions: "r"}}, 2000)
		}, "devices"),
		x.badContainer("huge device", invalid, func(c containerConfig) {
			c.Devices = []*runtimeapi.Device{{HostPath: "/dev/null", ContainerPath: "/" + huge, Permissions: "r"}}
		}, "devices[0].container_path"),
		x.badContainer("device below a file of the image", invalid, func(c containerConfig) {
			c.Devices = []*runtimeapi.Device{{HostPath: "/dev/null", ContainerPath: "/etc/passwd/x", Permissions: "r"}}
		}, "devices[0].container_path"),
		x.badContainer("device in /proc", invalid, func(c containerConfig) {
			c.Devices = []*runtimeapi.Device{{HostPath: "/dev/null", ContainerPath: "/proc/x", Permissions: "r"}}
		}, "devices[0].container_path"),
		x.badContainer("/dev/null that cannot be written", invalid, func(c containerConfig) {
			c.Devices = []*runtimeapi.Device{{HostPath: "/dev/null", Permissions: "r"}}
		}, "devices[0]"),
		x.badContainer("permissions that are none", invalid, func(c containerConfig) {
			c.Devices = []*runtimeapi.Device{{HostPath: "/dev/null", Permissions: "rx"}}
		}, "devices[0].permissions"),
		x.badContainer("SELinux level of two lines", invalid, func(c containerConfig) {
			containerSecurity(c).SelinuxOptions = &runtimeapi.SELinuxOption{Level: "s0\nc1"}
		}, "selinux_options.level"),
		x.badContainer("huge oom score", invalid, func(c containerConfig) { c.Linux.Resources.OomScoreAdj = 1 << 40 }, "oom_score_adj"),
		x.badContainer("negative user", invalid, func(c containerConfig) { containerSecurity(c).RunAsUser = user(-1) }, "run_as_user"),
		x.badContainer("one group too many", invalid, func(c containerConfig) {
			for gid := range int64(65536) {
				containerSecurity(c).SupplementalGroups = append(containerSecurity(c).SupplementalGroups, gid+10)
			}
		}, "supplemental_groups"),
		x.badContainer("huge working directory", invalid, func(c containerConfig) { c.WorkingDir = "/" + huge }, "working_dir"),
		x.badContainer("negative memory", invalid, func(c containerConfig) { c.Linux.Resources.MemoryLimitInBytes = -5 }, "memory_limit_in_bytes"),
		x.badContainer("relative masked path", invalid, func(c containerConfig) { containerSecurity(c).MaskedPaths = []string{"proc"} }, "masked_paths[0]"),
		x.badContainer("CDI device that is none", invalid, func(c containerConfig) { c.CDIDevices = []*runtimeapi.CDIDevice{{Name: "v c=d"}} }, "CDI_devices[0].name"),
		x.badContainer("CDI device that no spec has", x.codeOf(translate.CDIDevices, invalid), func(c containerConfig) { c.CDIDevices = []*runtimeapi.CDIDevice{{Name: "no.example/c=d"}} }, x.wordOf(translate.CDIDevices, "no.example/c=d")),
		x.badContainer("device that is not there", invalid, func(c containerConfig) {
			c.Devices = []*runtimeapi.Device{{HostPath: "/dev/no-such", ContainerPath: "/dev/x", Permissions: "rwm"}}
		}, "devices[0]", "/dev/no-such"),
		x.badContainer("device that is a file", invalid, func(c containerConfig) {
			c.Devices = []*runtimeapi.Device{{HostPath: "/etc/passwd", ContainerPath: "/dev/x", Permissions: "rwm"}}
		}, "devices[0]", "/etc/passwd"),
		x.badContainer("Windows", unsupported, func(c containerConfig) { c.Windows = &runtimeapi.WindowsContainerConfig{} }, "windows"),
	})
	// A stopped sandbox accepts no more containers.
	stopped := x.RunSandbox(x.Sandbox("stopped"))
	if _, err := x.Runtime.StopPodSandbox(x.Ctx(), &runtimeapi.StopPodSandboxRequest{PodSandboxId: stopped}); err != nil {
		t.Fatal(err)
	}
	x.ground = x.StillGround()
	x.try(t, []attempt{{"stopped sandbox", create(stopped, x.Container("bad", "exit 0")), codes.FailedPrecondition, []string{"not ready", stopped}}})
}

func TestBadUsersAreRefusedAndLeaveNothing(t *testing.T) {
	x := newTrial(t, harness.Options{})
	const invalid = codes.InvalidArgument
	attempts := []attempt{
		x.badContainer("no such user", invalid, func(c containerConfig) { containerSecurity(c).RunAsUsername = "nobody-here" }, "nobody-here", "passwd"),
		x.badContainer("group without a user", invalid, func(c containerConfig) { containerSecurity(c).RunAsGroup = user(1) }, "run_as_group"),
		x.badContainer("user and name", invalid, func(c containerConfig) {
			containerSecurity(c).RunAsUser, containerSecurity(c).RunAsUsername = user(1), "web"
		}, "run_as_username"),
		x.badContainer("negative user", invalid, func(c containerConfig) { containerSecurity(c).RunAsUser = user(-1) }, "run_as_user"),
		x.badContainer("user 2^31", invalid, func(c containerConfig) { containerSecurity(c).RunAsUser = user(1 << 31) }, "run_as_user"),
		x.badContainer("user 2^32", invalid, func(c containerConfig) { containerSecurity(c).RunAsUser = user(1 << 32) }, "run_as_user"),
		x.badContainer("user -2^63", invalid, func(c containerConfig) { containerSecurity(c).RunAsUser = user(-1 << 63) }, "run_as_user"),
		x.badContainer("group 2^32", invalid, func(c containerConfig) {
			containerSecurity(c).RunAsUser, containerSecurity(c).RunAsGroup = user(1), user(1<<32)
		}, "run_as_group"),
		x.badContainer("supplemental group 2^32", invalid, func(c containerConfig) { containerSecurity(c).SupplementalGroups = []int64{1 << 32} }, "supplemental_groups[0]"),
	}
	// berth never looks up a number as a name.
	for _, name := range []string{"4294967296", "2147483648", "9223372036854775808", "99999999999999999999", "-1", "+0", " 0", "0 ", "1e3", "0x0", "0b1", "1_0", "root\n", "a:b", "../x", "\x00"} {
		attempts = append(attempts, x.badContainer("name "+name, invalid, func(c containerConfig) { containerSecurity(c).RunAsUsername = name }, "run_as_username"))
	}
	x.try(t, attempts)
}

func TestBadMountsAreRefusedAndLeaveNothing(t *testing.T) {
	x := newTrial(t, harness.Options{})
	const invalid, unsupported = codes.InvalidArgument, codes.Unimplemented
	file := x.file("file", "text")
	mount := func(name string, code codes.Code, m *runtimeapi.Mount, words ...string) attempt {
		return x.badContainer(name, code, func(c containerConfig) { c.Mounts = []*runtimeapi.Mount{m} }, words...)
	}
	x.try(t, []attempt{
		mount("no host path", invalid, &runtimeapi.Mount{ContainerPath: "/m"}, "mounts[0]", "HostPath"),
		mount("no container path", invalid, &runtimeapi.Mount{HostPath: "/etc"}, "mounts[0]", "ContainerPath"),
		mount("relative host path", invalid, &runtimeapi.Mount{HostPath: "etc", ContainerPath: "/m"}, "mounts[0].host_path", `"etc"`),
		mount("relative container path", invalid, &runtimeapi.Mount{HostPath: "/etc", ContainerPath: "m"}, "mounts[0].container_path"),
		mount("over the root", invalid, &runtimeapi.Mount{HostPath: "/etc", ContainerPath: "/.."}, "mounts[0].container_path"),
		mount("host path with NUL", invalid, &runtimeapi.Mount{HostPath: "/etc\x00", ContainerPath: "/m"}, "mounts[0].host_path"),
		mount("host path of two lines", invalid, &runtimeapi.Mount{HostPath: "/etc\n/x", ContainerPath: "/m"}, "mounts[0].host_path"),
		mount("huge host path", invalid, &runtimeapi.Mount{HostPath: "/" + huge, ContainerPath: "/m"}, "mounts[0].host_path"),
		mount("deep host path", invalid, &runtimeapi.Mount{HostPath: x.Dir + strings.Repeat("/a", 3000), ContainerPath: "/m"}, "mounts[0].host_path"),
		mount("huge container path", invalid, &runtimeapi.Mount{HostPath: "/etc", ContainerPath: "/" + huge}, "mounts[0].container_path"),
		mount("over /proc", invalid, &runtimeapi.Mount{HostPath: "/etc", ContainerPath: "/proc"}, "mounts[0].container_path"),
		mount("in /proc", invalid, &runtimeapi.Mount{HostPath: "/etc", ContainerPath: "/proc/self"}, "mounts[0].container_path"),
		mount("over /dev/null", invalid, &runtimeapi.Mount{HostPath: file, ContainerPath: "/dev/null"}, "mounts[0].container_path"),
		mount("too many options", invalid, &runtimeapi.Mount{
			HostPath: "/etc", ContainerPath: "/m", MountOptions: slices.Repeat([]string{"nodev"}, 1000),
		}, "mounts[0].mount_options"),
		mount("below a file", invalid, &runtimeapi.Mount{HostPath: file + "/x", ContainerPath: "/m"}, "mount source", file),
		mount("link to itself", invalid, &runtimeapi.Mount{HostPath: x.link("loop", "loop"), ContainerPath: "/m"}, "mount source", "loop"),
		mount("file over a directory", invalid, &runtimeapi.Mount{HostPath: file, ContainerPath: "/etc"}, "/etc"),
		mount("directory over a file", invalid, &runtimeapi.Mount{HostPath: "/etc", ContainerPath: "/etc/passwd"}, "/etc/passwd"),
		mount("below a file of the image", invalid, &runtimeapi.Mount{HostPath: "/etc", ContainerPath: "/etc/passwd/x"}, "/etc/passwd/x"),
		mount("unknown propagation", invalid, &runtimeapi.Mount{HostPath: "/etc", ContainerPath: "/m", Propagation: 8}, "mounts[0].propagation"),
		mount("image without a name", invalid, &runtimeapi.Mount{ContainerPath: "/m", HostPath: "/etc", Readonly: true, Image: &runtimeapi.ImageSpec{}}, "mounts[0].image.image"),
		mount("image and host path", invalid, &runtimeapi.Mount{ContainerPath: "/m", HostPath: "/etc", Readonly: true, Image: &runtimeapi.ImageSpec{Image: "x"}}, "mounts[0].host_path"),
		mount("writable image", invalid, &runtimeapi.Mount{ContainerPath: "/m", Image: &runtimeapi.ImageSpec{Image: "x"}}, "mounts[0].readonly"),
		mount("absent image", x.codeOf(translate.ImageMounts, codes.NotFound), &runtimeapi.Mount{ContainerPath: "/m", Readonly: true, Image: &runtimeapi.ImageSpec{Image: "x"}}, x.wordOf(translate.ImageMounts, "ImageVolumeMountFailed: config.mounts[0].image")),
		mount("image's sub path leads out", invalid, &runtimeapi.Mount{ContainerPath: "/m", Readonly: true, Image: &runtimeapi.ImageSpec{Image: "x"}, ImageSubPath: "a/../../b"}, "mounts[0].image_sub_path"),
		mount("absolute sub path", invalid, &runtimeapi.Mount{ContainerPath: "/m", Readonly: true, Image: &runtimeapi.ImageSpec{Image: "x"}, ImageSubPath: "/etc"}, "mounts[0].image_sub_path"),
		mount("recursively read-only, but writable", invalid, &runtimeapi.Mount{HostPath: "/etc", ContainerPath: "/m", RecursiveReadOnly: true}, "mounts[0].recursive_read_only"),
		mount("mapped users, not groups", invalid, &runtimeapi.Mount{HostPath: "/etc", ContainerPath: "/m", UidMappings: []*runtimeapi.IDMapping{{Length: 1}}}, "mounts[0].gidMappings"),
		mount("mapped groups, not users", invalid, &runtimeapi.Mount{HostPath: "/etc", ContainerPath: "/m", GidMappings: []*runtimeapi.IDMapping{{Length: 1}}}, "mounts[0].uidMappings"),
		mount("unknown mount option", invalid, &runtimeapi.Mount{HostPath: "/etc", ContainerPath: "/m", MountOptions: []string{"noexec", "suid"}}, "mounts[0].mount_options"),
	})
}

// A refused container leaves no directories of its volumes, no matter which check refuses it.
func TestRefusedContainersLeaveNoMountSources(t *testing.T) {
	x := newTrial(t, harness.Options{})
	there := filepath.Join(x.Dir, "there")
	if err := os.Mkdir(there, 0o755); err != nil {
		t.Fatal(err)
	}
	missing := []*runtimeapi.Mount{
		{HostPath: filepath.Join(there, "a", "b"), ContainerPath: "/a"},
		{HostPath: filepath.Join(there, "a", "c"), ContainerPath: "/c"},
	}
	refused := func(name string, change func(containerConfig), words ...string) attempt {
		return x.badContainer(name, codes.InvalidArgument, func(c containerConfig) {
			c.Mounts = slices.Clone(missing)
			change(c)
		}, words...)
	}
	attempts := []attempt{
		refused("by a check", func(c containerConfig) {
			c.Mounts = append(c.Mounts, &runtimeapi.Mount{HostPath: "/etc/passwd/x", ContainerPath: "/m"})
		}, "config.mounts[2].host_path"),
		refused("for a profile", func(c containerConfig) {
			containerSecurity(c).Seccomp = &runtimeapi.SecurityProfile{ProfileType: runtimeapi.SecurityProfile_Localhost, LocalhostRef: filepath.Join(x.Dir, "no.json")}
		}, "config.linux.security_context.seccomp.localhost_ref"),
		refused("by the kernel", func(c containerConfig) { c.Linux.Resources.CpusetCpus = "900" }, "config.linux.resources.cpuset_cpus"),
		refused("by the OCI runtime", func(c containerConfig) {
			c.Mounts = append(c.Mounts, &runtimeapi.Mount{HostPath: "/etc", ContainerPath: "/etc/passwd"})
		}, "config.mounts[2].container_path"),
	}
	for i, a := range attempts {
		do := a.do
		attempts[i].do = func() error {
			err := do()
			if left, _ := os.ReadDir(there); len(left) > 0 {
				t.Errorf("%s: left behind: %v", a.name, left)
			}
			return err
		}
	}
	x.try(t, attempts)
}

// A hostPath volume without a type may name a directory that does not exist: berth creates it.
func TestMissingMountSourceIsMade(t *testing.T) {
	x := newTrial(t, harness.Options{})
	missing := filepath.Join(x.Dir, "made", "below")
	config := x.Container("c2", "echo text > /m/file")
	config.Mounts = []*runtimeapi.Mount{{HostPath: missing, ContainerPath: "/m"}}
	id := x.Create(x.pod.Sandbox, config, x.pod.Config)
	x.StartContainer(id)
	x.AwaitExit(id)
	if data, err := os.ReadFile(filepath.Join(missing, "file")); err != nil || string(data) != "text\n" {
		t.Errorf("%q, %v", data, err)
	}
}

func TestBadLogPathsWriteNothingElsewhere(t *testing.T) {
	x := newTrial(t, harness.Options{})
	outside := t.TempDir()
	logs := x.pod.Config.LogDirectory
	for link, target := range map[string]string{"out": outside, "file.log": filepath.Join(outside, "file")} {
		if err := os.Symlink(target, filepath.Join(logs, link)); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.MkdirAll(filepath.Join(logs, "dir.log"), 0o755); err != nil {
		t.Fatal(err)
	}
	path := func(name string, path string, words ...string) attempt {
		return x.badContainer(name, codes.InvalidArgument, func(c containerConfig) { c.LogPath = path }, append(words, "log")...)
	}
	x.try(t, []attempt{
		path("absolute", outside+"/0.log", "log_path"),
		path("climbs", "../0.log", "log_path"),
		path("climbs in the middle", "a/../../0.log", "log_path"),
		path("is the directory", ".", "log_path"),
		path("ends in a slash", "a/", "log_path"),
		path("two lines", "a\nb", "log_path"),
		path("NUL", "a\x00b", "log_path"),
		path("through a link that leads out", "out/0.log"),
		path("a link that leads out", "file.log"),
		path("a directory", "dir.log"),
		path("huge", huge, "log_path"),
	})
	if entries, err := os.ReadDir(outside); err != nil || len(entries) > 0 {
		t.Errorf("outside the log directory: %v, %v", entries, err)
	}
}

// Only the start can report what depends on the container's own filesystem.
func TestBadProgramsAreRefusedAndLeaveNothing(t *testing.T) {
	x := newTrial(t, harness.Options{})
	const invalid = codes.InvalidArgument
	x.try(t, []attempt{
		x.badStart("no such command", func(c containerConfig) { c.Command = []string{"/no/such"} }, "/no/such"),
		x.badStart("no such command in PATH", func(c containerConfig) { c.Command = []string{"no-such"} }, "no-such", "executable file not found in $PATH"),
		x.badStart("a directory", func(c containerConfig) { c.Command = []string{"/etc"} }, "/etc"),
		x.badStart("not executable", func(c containerConfig) { c.Command = []string{"/etc/passwd"} }, "/etc/passwd", "permission denied"),
		x.badStart("working directory that is a file", func(c containerConfig) { c.WorkingDir = "/etc/passwd" }, "/etc/passwd"),
		x.badContainer("more arguments than a spec may have", invalid, func(c containerConfig) { c.Args = []string{huge, huge, huge, huge, huge, huge, huge, huge, huge} }, "longer than"),
	})
}

// badStart tests a container that can be created and not started. Its status has the reason, as the
// kubelet expects.
func (x *trial) badStart(name string, change func(containerConfig), words ...string) attempt {
	return attempt{name, func() error {
		config := x.Container("cannot", "exit 0")
		change(config)
		id := x.Create(x.pod.Sandbox, config, x.pod.Config)
		_, startErr := x.Runtime.StartContainer(x.Ctx(), &runtimeapi.StartContainerRequest{ContainerId: id})
		status := x.Status(id)
		if status.State != runtimeapi.ContainerState_CONTAINER_EXITED || status.ExitCode != 128 || status.Reason != "StartError" ||
			status.FinishedAt == 0 || !strings.Contains(status.Message, words[0]) {
			x.T.Errorf("%s: status %v", name, status)
		}
		if _, err := x.Runtime.RemoveContainer(x.Ctx(), &runtimeapi.RemoveContainerRequest{ContainerId: id}); err != nil {
			x.T.Error(err)
		}
		return startErr
	}, codes.InvalidArgument, words}
}

// After this point the init cannot report an error of execve to its parent. The message goes into
// the container's log, as with runc.
func TestProgramsThatCannotBeExecuted(t *testing.T) {
	x := newTrial(t, harness.Options{})
	for name, c := range map[string]struct {
		command []string
		words   string
	}{
		"no format":      {[]string{x.program("plain", "no shebang\n")}, "exec format error"},
		"no interpreter": {[]string{x.program("lost", "#!/no/such\n")}, "no such file or directory"},
		"long argument":  {[]string{"/bin/true", huge}, "argument list too long"},
	} {
		t.Run(name, func(t *testing.T) {
			config := x.Container("cannot", "")
			config.Command = c.command
			config.Mounts = []*runtimeapi.Mount{{HostPath: x.Dir, ContainerPath: x.Dir, Readonly: true}}
			id := x.Create(x.pod.Sandbox, config, x.pod.Config)
			x.StartContainer(id)
			if status := x.AwaitExit(id); status.ExitCode == 0 {
				t.Errorf("%s, code %d, reason %q, message %q", status.State, status.ExitCode, status.Reason, status.Message)
			}
			lines, err := harness.LogLines(filepath.Join(x.pod.Config.LogDirectory, "cannot", "0.log"))
			if err != nil || len(lines) == 0 || !strings.Contains(strings.Join(lines, "\n"), c.words) {
				t.Errorf("the log does not say %q: %q, %v", c.words, lines, err)
			}
			_, err = x.Runtime.StartContainer(x.Ctx(), &runtimeapi.StartContainerRequest{ContainerId: id})
			checkRefusal(t, err, codes.FailedPrecondition, []string{"not created"})
			if _, err := x.Runtime.RemoveContainer(x.Ctx(), &runtimeapi.RemoveContainerRequest{ContainerId: id}); err != nil {
				t.Error(err)
			}
			x.nothingLeft(t)
		})
	}
}

// file writes a file into the instance's directory and returns its path.
func (x *trial) file(name, content string) string {
	x.T.Helper()
	path := filepath.Join(x.Dir, name)
	if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
		x.T.Fatal(err)
	}
	return path
}

func (x *trial) program(name, content string) string {
	x.T.Helper()
	path := x.file(name, content)
	if err := os.Chmod(path, 0o755); err != nil {
		x.T.Fatal(err)
	}
	return path
}

func (x *trial) link(name, target string) string {
	x.T.Helper()
	path := filepath.Join(x.Dir, name)
	if err := os.Symlink(target, path); err != nil {
		x.T.Fatal(err)
	}
	return path
}
