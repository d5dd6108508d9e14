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
			then: "`RuntimeDefault` and `Localhost` are refused with Unimplemented, \"apparmor is not supported on this host\"; `Unconfined`, and a request " +
				"that names no profile, run.",
		},
		{
			name:    appArmorParser,
			decides: "`apparmor_parser` is in PATH: it loads berth's own profile when the first container needs it.",
			probe:   "command -v apparmor_parser",
			prints:  "nothing, and fails",
			then: "`RuntimeDefault` is refused with Unimplemented, \"cannot be loaded\", and a request that names no profile runs without one, of which verbose Status " +
				"warns; `Localhost` profiles that are loaded work.",
		},
		{
			name:    seLinux,
			decides: "selinuxfs is mounted and a policy is loaded.",
			probe:   "ls /sys/fs/selinux/enforce",
			prints:  "`ls: cannot access '/sys/fs/selinux/enforce': No such file or directory`",
			then: "A user, role, type or level that would confine is refused with Unimplemented, \"SELinux is not enabled\"; the type `spc_t`, which asks for no confinement, " +
				"and `selinux_relabel`, which every kubelet sends, are nothing to do.",
		},
		{
			name:    seccomp,
			decides: "/proc/self/status has a line that begins with `Seccomp:`.",
			probe:   "grep Seccomp: /proc/self/status",
			prints:  "nothing, and fails",
			then:    "`RuntimeDefault` and `Localhost` are refused with Unimplemented, \"seccomp is not enabled in your kernel\"; `Unconfined` runs.",
		},
		{
			name:    sysResource,
			decides: "The supervisor has the capability: only with it is an oom_score_adj lowered below the supervisor's own.",
			probe:   "echo -999 >/proc/self/oom_score_adj",
			prints:  "`sh: 1: echo: echo: I/O error`",
			then:    "A lower oom_score_adj is raised to what the host allows, and verbose Status warns of it once.",
		},
	}
}

func kernelAbilities() []ability {
	return []ability{
		{
			name:    userNamespaces,
			decides: "berth makes one at its start, and a root file system for it: an overlay on id-mapped layers, which Linux has since 5.19.",
			probe:   "unshare --user --map-root-user true && uname -r && (echo 5.19; uname -r) | sort -CV",
			prints:  "`unshare: unshare failed:` with the kernel's reason, or a release before 5.19, and fails",
			then: "A pod with `userns_options` of mode POD is refused with Unimplemented, \"user namespaces are not supported here\" and why; the runtime handler's feature " +
				"`user_namespaces` is false, and verbose Status tells the reason.",
		},
		{
			name:    mappedMounts,
			decides: "The kernel maps the ids of the volume's file system (Linux 5.12; which file systems can differs by version), tried when the container is created.",
			probe:   "uname -r && (echo 5.12; uname -r) | sort -CV",
			prints:  "a release before 5.12, and fails",
			then:    "The container is refused with Unimplemented and the mount's name.",
		},
		{
			name:    recursiveRO,
			decides: "The kernel has mount_setattr(2), Linux 5.12.",
			probe:   "uname -r && (echo 5.12; uname -r) | sort -CV",
			prints:  "a release before 5.12, and fails",
			then:    "The container is refused with Unimplemented, \"RROUnsupported\"; the runtime handler's feature `recursive_read_only_mounts` is false.",
		},
		{
			name:    cgroupV2,
			decides: "No hierarchy of cgroup v1 is mounted.",
			probe:   "cat /sys/fs/cgroup/cgroup.controllers",
			prints:  "`cat: /sys/fs/cgroup/cgroup.controllers: No such file or directory`",
			then:    "`unified` is refused with Unimplemented and the name of the file, but for `memory.oom.group`, which every kubelet sends and which v1 has no meaning for.",
		},
		{
			name:    hugetlb,
			decides: "The hugetlb controller of cgroup v1 is mounted, or that of v2 is in cgroup.controllers.",
			probe:   "cat /proc/self/mounts /sys/fs/cgroup/cgroup.controllers 2>/dev/null | grep -w hugetlb",
			prints:  "nothing, and fails",
			then:    "A limit above 0 is refused with Unimplemented and its name; 0, which kubelets send for \"none\", is taken.",
		},
		{
			name:    swapLimit,
			decides: "The memory controller of cgroup v1 has memory.memsw.limit_in_bytes, or a cgroup of v2 has memory.swap.max.",
			probe:   "ls /sys/fs/cgroup/memory/memory.memsw.limit_in_bytes 2>/dev/null || ls /sys/fs/cgroup/*/memory.swap.max",
			prints:  "`ls: cannot access '/sys/fs/cgroup/*/memory.swap.max': No such file or directory`",
			then:    "The limit is of memory alone.",
		},
		{
			name:    pressure,
			decides: "The kernel tells pressure (PSI), and the container has a cgroup of the v2 hierarchy, which hybrid hosts have too.",
			probe:   "cat /proc/pressure/cpu && find /sys/fs/cgroup -maxdepth 3 -name cpu.pressure | grep -m 1 .",
			prints:  "`cat: /proc/pressure/cpu: No such file or directory`",
			then:    "The figures of pressure are left out; all others are there.",
		},
	}
}
