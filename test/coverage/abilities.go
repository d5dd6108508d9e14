package main

// ability is something that a host may lack, and that a row needs.
type ability struct {
	name string
	// decides is what berth itself checks.
	decides string
	// probe is a shell command that succeeds if the host has it.
	probe string
	// prints is what the probe does if the host lacks it.
	prints string
	// then is what berth does in this case.
	then string
}

// The names of the abilities.
const (
	appArmor       = "AppArmor"
	appArmorParser = "AppArmor's parser"
	seLinux        = "SELinux"
	seccomp        = "seccomp"
	cgroupV2       = "cgroup v2"
	hugetlb        = "hugetlb controller"
	swapLimit      = "swap accounting"
	pressure       = "pressure figures"
	userNamespaces = "user namespaces"
	mappedMounts   = "id-mapped mounts"
	recursiveRO    = "recursive mount attributes"
	sysResource    = "CAP_SYS_RESOURCE"
)

func abilities() []ability {
	return append(securityAbilities(), kernelAbilities()...)
}

func securityAbilities() []ability {
	return []ability{
		{
			name:    appArmor,
			decides: "The kernel says that AppArmor is enabled, and lists its profiles in /sys/kernel/security/apparmor/profiles.",
			probe:   "grep Y /sys/module/apparmor/parameters/enabled && ls /sys/kernel/security/apparmor/profiles",
			prints:  "`grep: /sys/module/apparmor/parameters/enabled: No such file or directory`",
			then: "berth refuses `RuntimeDefault` and `Localhost` with Unimplemented, \"apparmor is not supported on this host\". `Unconfined`, and a request " +
				"without a profile, run.",
		},
		{
			name:    appArmorParser,
			decides: "`apparmor_parser` is in PATH: it loads berth's own profile when the first container needs it.",
			probe:   "command -v apparmor_parser",
			prints:  "nothing, and fails",
			then: "berth refuses `RuntimeDefault` with Unimplemented, \"cannot be loaded\". A request without a profile runs without one, and verbose Status " +
				"warns about it. Loaded `Localhost` profiles work.",
		},
		{
			name:    seLinux,
			decides: "selinuxfs is mounted and a policy is loaded.",
			probe:   "ls /sys/fs/selinux/enforce",
			prints:  "`ls: cannot access '/sys/fs/selinux/enforce': No such file or directory`",
			then: "berth refuses a user, role, type or level that would confine, with Unimplemented, \"SELinux is not enabled\". The type `spc_t`, which requests no confinement, " +
				"and `selinux_relabel`, which every kubelet sends, have no effect.",
		},
		{
			name:    seccomp,
			decides: "/proc/self/status has a line that begins with `Seccomp:`.",
			probe:   "grep Seccomp: /proc/self/status",
			prints:  "nothing, and fails",
			then:    "berth refuses `RuntimeDefault` and `Localhost` with Unimplemented, \"seccomp is not enabled in your kernel\". `Unconfined` runs.",
		},
		{
			name:    sysResource,
			decides: "The supervisor has the capability; over a Docker engine, dockerd and its containerd have it. Without it no oom_score_adj can be lower than their own.",
			probe:   "echo -999 >/proc/self/oom_score_adj",
			prints:  "`sh: 1: echo: echo: I/O error`",
			then: "berth raises a lower oom_score_adj to what the host allows, and verbose Status warns about it once. Over a Docker engine this holds for pause containers, too " +
				"(`TestEngineWithoutSysResource`; [docker.md](docker.md#an-engine-without-cap_sys_resource)).",
		},
	}
}

func kernelAbilities() []ability {
	return []ability{
		{
			name:    userNamespaces,
			decides: "At its start berth creates one, and a root file system for it: an overlay on id-mapped layers, which Linux has since 5.19.",
			probe:   "unshare --user --map-root-user true && uname -r && (echo 5.19; uname -r) | sort -CV",
			prints:  "`unshare: unshare failed:` with the kernel's reason, or a release before 5.19, and fails",
			then: "berth refuses a pod with `userns_options` of mode POD with Unimplemented, \"user namespaces are not supported here\" and the reason. The runtime handler's feature " +
				"`user_namespaces` is false, and verbose Status has the reason.",
		},
		{
			name:    mappedMounts,
			decides: "The kernel maps the ids of the volume's file system (Linux 5.12; the file systems differ by version). berth tries it when it creates the container.",
			probe:   "uname -r && (echo 5.12; uname -r) | sort -CV",
			prints:  "a release before 5.12, and fails",
			then:    "berth refuses the container with Unimplemented and the mount's name.",
		},
		{
			name:    recursiveRO,
			decides: "The kernel has mount_setattr(2), Linux 5.12.",
			probe:   "uname -r && (echo 5.12; uname -r) | sort -CV",
			prints:  "a release before 5.12, and fails",
			then:    "berth refuses the container with Unimplemented, \"RROUnsupported\". The runtime handler's feature `recursive_read_only_mounts` is false.",
		},
		{
			name:    cgroupV2,
			decides: "No hierarchy of cgroup v1 is mounted.",
			probe:   "cat /sys/fs/cgroup/cgroup.controllers",
			prints:  "`cat: /sys/fs/cgroup/cgroup.controllers: No such file or directory`",
			then:    "berth refuses `unified` with Unimplemented and the name of the file. It ignores `memory.oom.group`, which every kubelet sends and v1 does not have.",
		},
		{
			name:    hugetlb,
			decides: "The hugetlb controller of cgroup v1 is mounted, or that of v2 is in cgroup.controllers.",
			probe:   "cat /proc/self/mounts /sys/fs/cgroup/cgroup.controllers 2>/dev/null | grep -w hugetlb",
			prints:  "nothing, and fails",
			then:    "berth refuses a limit above 0 with Unimplemented and its name. It accepts 0, which kubelets send for \"none\".",
		},
		{
			name:    swapLimit,
			decides: "The memory controller of cgroup v1 has memory.memsw.limit_in_bytes, or a cgroup of v2 has memory.swap.max.",
			probe:   "ls /sys/fs/cgroup/memory/memory.memsw.limit_in_bytes 2>/dev/null || ls /sys/fs/cgroup/*/memory.swap.max",
			prints:  "`ls: cannot access '/sys/fs/cgroup/*/memory.swap.max': No such file or directory`",
			then:    "The limit applies to memory only.",
		},
		{
			name:    pressure,
			decides: "The kernel reports pressure (PSI), and the container has a cgroup of the v2 hierarchy. Hybrid hosts have this, too.",
			probe:   "cat /proc/pressure/cpu && find /sys/fs/cgroup -maxdepth 3 -name cpu.pressure | grep -m 1 .",
			prints:  "`cat: /proc/pressure/cpu: No such file or directory`",
			then:    "Stats lack the pressure figures, and have all others.",
		},
	}
}
