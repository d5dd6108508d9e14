package faults

import "github.com/berthrun/berth/internal/finding"

// kernels is a machine with faults of its kernel.
func kernels() Machine {
	return Machine{
		Name: "Kernel", About: "a machine with limits that are too low, and modules that do not fit", Doctor: doctor,
		Faults: []Fault{
			{
				"no forwarding", `echo 0 > /proc/sys/net/ipv4/ip_forward`,
				"kernel", finding.Problem, "net.ipv4.ip_forward", "net.ipv4.ip_forward is 0", "sysctl -w net.ipv4.ip_forward=1", false,
			},
			{
				"few inotify instances", `value /proc/sys/fs/inotify/max_user_instances 64`,
				"inotify", finding.Warning, "fs.inotify.max_user_instances", "is 64", "sysctl -w fs.inotify.max_user_instances=512", false,
			},
			{
				"few watched files", `value /proc/sys/fs/inotify/max_user_watches 8192`,
				"inotify", finding.Warning, "fs.inotify.max_user_watches", "is 8192", "sysctl -w fs.inotify.max_user_watches=65536", false,
			},
			{
				"few mounts", `value /proc/sys/fs/mount-max 1000`,
				"kernel-limits", finding.Warning, "fs.mount-max", "is 1000: no space left on device", "sysctl -w fs.mount-max=100000", false,
			},
			{
				"few keys", `value /proc/sys/kernel/keys/root_maxkeys 200`,
				"kernel-limits", finding.Warning, "kernel.keys.root_maxkeys", "disk quota exceeded", "sysctl -w kernel.keys.root_maxkeys=1000000", false,
			},
			{
				"no memory controller", `if [ -e /sys/fs/cgroup/cgroup.controllers ]; then value /sys/fs/cgroup/cgroup.controllers 'cpuset cpu io pids'
else value /proc/cgroups "$(sed '/^memory/s/1$/0/' /proc/cgroups)"; fi`,
				"cgroups", finding.Problem, "memory", "the cgroup controller memory is off", "cgroup_enable=memory", false,
			},
			{
				"the cgroup driver of systemd, without systemd", `conf runtime 'cgroup_driver = "systemd"'`,
				"cgroups", finding.Problem, "cgroup driver", "systemd is not pid 1", `cgroup_driver = "auto"`, false,
			},
			{
				"an image store that is on an overlay", "mkdir sys/up/root sys/work/root; mount -t overlay overlay -o lowerdir=root,upperdir=sys/up/root,workdir=sys/work/root root",
				"image-store", finding.Warning, "%T/root", "is on overlay (%T/root), which cannot hold overlays: each container takes time and space", "a local disk", false,
			},
			{
				"an AppArmor profile that is not loaded", `if [ -d /sys/module/apparmor ]; then mount -t tmpfs tmpfs /sys/module/apparmor; else
	mkdir -p sys/up/module sys/work/module
	mount -t overlay overlay -o lowerdir=/sys/module,upperdir=sys/up/module,workdir=sys/work/module /sys/module
fi
put /sys/module/apparmor/parameters/enabled <<< Y
mount -t tmpfs tmpfs /sys/kernel/security
put /sys/kernel/security/apparmor/profiles <<< 'other (enforce)'
conf runtime 'apparmor_profile = "mine"'`,
				"security-modules", finding.Problem, "mine", "runtime.apparmor_profile is mine", "apparmor_parser -r", false,
			},
			{
				"a resolv.conf that leads nowhere", `rm /etc/resolv.conf; ln -s ../run/systemd/resolve/stub-resolv.conf /etc/resolv.conf`,
				"name-resolution", finding.Warning, "/etc/resolv.conf", "is a link to ../run/systemd/resolve/stub-resolv.conf, which is not there", "systemctl start systemd-resolved", false,
			},
			{
				"a CNI configuration of a network that has not run, or is gone", `put sys/bin/flannel <<< x
conf network "bin_dirs = ['$T/sys/bin']"
put /etc/cni/net.d/10-flannel.conflist <<< '{"cniVersion": "1.0.0", "name": "n", "plugins": [{"type": "flannel"}]}'`,
				"network", finding.Problem, "/run/flannel/subnet.env", "the CNI plugin flannel of /etc/cni/net.d/10-flannel.conflist reads /run/flannel/subnet.env, which is not there", "remove /etc/cni/net.d/10-flannel.conflist", false,
			},
			{
				"a CNI plugin that is missing", `sed -i 's/}]/}, {"type": "no-such-plugin"}]/' /etc/cni/net.d/10-flannel.conflist`,
				"network", finding.Problem, "no-such-plugin", "wants the CNI plugin no-such-plugin, which is not in %T/sys/bin", "install it", false,
			},
			{
				"something else in the place of the socket", `mkdir /run/berth.sock`,
				"runtime", finding.Problem, "/run/berth.sock", "/run/berth.sock is no socket, and berth cannot listen there", "rm -r /run/berth.sock", false,
			},
		},
	}
}

// disks is a machine with faults of its disks.
func disks() Machine {
	return Machine{
		Name: "Disk", About: "a machine whose disks are full, or not fit for images", Doctor: doctor,
		Faults: []Fault{
			{
				"a disk in memory", "mount -t tmpfs -o size=4m tmpfs root",
				"image-store", finding.Warning, "%T/root", "is on tmpfs (%T/root): images take memory", "a local disk", false,
			},
			{
				"a full disk", "head -c 8m /dev/zero > root/fill 2> /dev/null || true",
				"disk", finding.Problem, "%T/root", "has 0 MiB of 4 MiB left: it is full", "make room", false,
			},
			{
				"a disk that the kernel has made read-only", "mount -o remount,ro root",
				"image-store", finding.Problem, "%T/root", "with the option ro: berth cannot write", "mount -o remount,rw %T/root", false,
			},
			{
				"a disk without inodes", `mkdir -p /var/lib/containerd; mount -t tmpfs -o nr_inodes=8 tmpfs /var/lib/containerd; for i in 1 2 3 4 5 6 7 8; do : > /var/lib/containerd/$i || true; done 2> /dev/null`,
				"disk", finding.Problem, "/var/lib/containerd", "has room for 0 of 8 files left: no file can be made", "du --inodes", false,
			},
			{
				"no execution from the disk", "mount -o remount,ro,noexec root",
				"image-store", finding.Problem, "%T/root", "noexec: no program of a container starts", "mount -o remount,exec %T/root", false,
			},
			{
				"a clock that was set back", `put state/pods/containers/x.json <<< '{"version":1,"id":"x","record":{"id":"x","state":"exited","config":{"metadata":{"name":"c"}}}}'; touch -d '+3 days' state/pods/containers/x.json`,
				"clock", finding.Problem, "clock", "berth wrote %T/state/pods/containers/x.json at", "timedatectl", false,
			},
		},
	}
}

// namespaces is a machine in a user namespace, whose limits are its own.
func namespaces() Machine {
	return Machine{
		Name: "Namespace", About: "a machine in a user namespace, which has limits of its own",
		Doctor: `unshare --user --map-root-user sh -c 'if [ -e limits ]; then while read key value; do echo $value > /proc/sys/user/$key; done < limits; fi
exec berth doctor --config /etc/berth/berth.toml --check inotify,kernel-limits "$@"' sh`,
		Faults: []Fault{
			{
				"no inotify instances left", `echo max_inotify_instances 3 >> limits`,
				"inotify", finding.Problem, "fs.inotify.max_user_instances", "root can watch files 3 more times", "sysctl -w fs.inotify.max_user_instances=8192", false,
			},
			{
				"few network namespaces", `echo max_net_namespaces 64 >> limits`,
				"kernel-limits", finding.Warning, "user.max_net_namespaces", "is 64: no space left on device when a pod starts", "sysctl -w user.max_net_namespaces=65536", false,
			},
			{
				"few mount namespaces", `echo max_mnt_namespaces 64 >> limits`,
				"kernel-limits", finding.Warning, "user.max_mnt_namespaces", "is 64", "sysctl -w user.max_mnt_namespaces=65536", false,
			},
			{
				"few PID namespaces", `echo max_pid_namespaces 64 >> limits`,
				"kernel-limits", finding.Warning, "user.max_pid_namespaces", "is 64", "sysctl -w user.max_pid_namespaces=65536", false,
			},
		},
	}
}

// joining is a machine that is to become a node of kubeadm's.
func joining() Machine {
	return Machine{
		Name: "Join", About: "a machine that is to join a cluster", Doctor: doctor + " --check kubeadm,modules",
		Setup: `if [ ! -d /lib/modules ]; then
	mkdir -p sys/up/lib sys/work/lib
	mount -t overlay overlay -o lowerdir=/usr/lib,upperdir=sys/up/lib,workdir=sys/work/lib /usr/lib
	mkdir -p /lib/modules
fi
mount -t tmpfs tmpfs /lib/modules
put "/lib/modules/$(uname -r)/modules.dep" <<< kernel/drivers/net/veth.ko:
mkdir -p sys/up/module sys/work/module
mount -t overlay overlay -o lowerdir=/sys/module,upperdir=sys/up/module,workdir=sys/work/module /sys/module
rm -rf /sys/module/veth`,
		Means: []string{"kubeadm FileContent--proc-sys-net-bridge-bridge-nf-call-iptables"}, // of br_netfilter
		Faults: []Fault{
			{
				"certificates of an earlier cluster", `put /etc/kubernetes/pki/ca.crt <<< x`,
				"kubeadm", finding.Warning, "FileAvailable--etc-kubernetes-pki-ca.crt", "/etc/kubernetes/pki/ca.crt is there: kubeadm join refuses", "kubeadm reset", false,
			},
			{
				"a kernel without a module", `: > "/lib/modules/$(uname -r)/modules.dep"`,
				"modules", finding.Problem, "veth", "the kernel has no module veth: pods have no network", "install the modules of the running kernel", false,
			},
			{
				"a module that is not loaded", `kube 'maxPods: 110'; if [ -d /proc/sys/net/bridge ]; then mount -t tmpfs tmpfs /proc/sys/net/bridge; fi`,
				"modules", finding.Warning, "br_netfilter", "the module br_netfilter is not loaded", "modprobe br_netfilter", false,
			},
		},
	}
}
