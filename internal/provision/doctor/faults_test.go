package doctor_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/berthrun/berth/internal/finding"
	"github.com/berthrun/berth/internal/provision"
	"github.com/berthrun/berth/internal/provision/doctor"
	"github.com/berthrun/berth/internal/provision/provisiontest"
)

// planted is a fault, and the finding that explains it.
type planted struct {
	name  string
	plant func(t *testing.T, h *provisiontest.Host, b *doctor.Berth)
	space doctor.Space // of all file systems; the zero Space is that of a machine with room
	id    string
	level finding.Level
	// object is the whole object, evidence and fix are parts.
	object, evidence, fix string
}

const (
	config  = "/var/lib/kubelet/config.yaml"
	toBerth = "containerRuntimeEndpoint: unix:///run/berth/berth.sock\n"
)

// file plants a file.
func file(path, content string) func(*testing.T, *provisiontest.Host, *doctor.Berth) {
	return func(t *testing.T, h *provisiontest.Host, _ *doctor.Berth) { write(t, h, path, content) }
}

// kubelet plants a kubelet of berth with a configuration.
func kubelet(content string) func(*testing.T, *provisiontest.Host, *doctor.Berth) {
	return file(config, toBerth+content)
}

func sysctl(key, value string) func(*testing.T, *provisiontest.Host, *doctor.Berth) {
	return func(_ *testing.T, h *provisiontest.Host, _ *doctor.Berth) { h.SetSysctlNow(key, value) }
}

func absent(module string) func(*testing.T, *provisiontest.Host, *doctor.Berth) {
	return func(_ *testing.T, h *provisiontest.Host, _ *doctor.Berth) {
		h.SetModule(module, provision.ModuleAbsent)
	}
}

func settings(change func(b *doctor.Berth)) func(*testing.T, *provisiontest.Host, *doctor.Berth) {
	return func(_ *testing.T, _ *provisiontest.Host, b *doctor.Berth) { change(b) }
}

func removed(path string) func(*testing.T, *provisiontest.Host, *doctor.Berth) {
	return func(t *testing.T, h *provisiontest.Host, _ *doctor.Berth) {
		if err := h.Files().Remove(path); err != nil {
			t.Fatal(err)
		}
	}
}

// both plants two faults.
func both(plants ...func(*testing.T, *provisiontest.Host, *doctor.Berth)) func(*testing.T, *provisiontest.Host, *doctor.Berth) {
	return func(t *testing.T, h *provisiontest.Host, b *doctor.Berth) {
		for _, plant := range plants {
			plant(t, h, b)
		}
	}
}

func mount(m provision.Mount) func(*testing.T, *provisiontest.Host, *doctor.Berth) {
	return func(_ *testing.T, h *provisiontest.Host, _ *doctor.Berth) { h.AddMount(m) }
}

func builtin(subnets ...string) func(*testing.T, *provisiontest.Host, *doctor.Berth) {
	return settings(func(b *doctor.Berth) { b.Network, b.Subnets = "builtin", subnets })
}

// TestPlantedFaults: each single fault is found and explained, by the check whose id it has.
func TestPlantedFaults(t *testing.T) {
	for _, c := range plantedFaults() {
		t.Run(c.name, func(t *testing.T) {
			h, b := wellMachine(t), berth()
			c.plant(t, h, &b)
			space := func(string) (doctor.Space, error) { return c.space, nil }
			if c.space == (doctor.Space{}) {
				space = nil
			}
			found := examine(t, h, b, space)
			var all []string
			for _, f := range found {
				if f.ID == c.id && f.Level == c.level && f.Object == c.object && strings.Contains(f.Evidence, c.evidence) && strings.Contains(f.Fix, c.fix) && f.Fix != "" && f.Docs == "docs/doctor.md#"+c.id {
					return
				}
				if f.Level != finding.OK {
					all = append(all, f.ID+" "+string(f.Level)+" "+f.Object+": "+f.Evidence+" => "+f.Fix)
				}
			}
			t.Errorf("no finding %s of level %s about %q says %q and %q:\n%s", c.id, c.level, c.object, c.evidence, c.fix, strings.Join(all, "\n"))
		})
	}
}

func plantedFaults() []planted {
	all := faultsOfRuntimes()
	all = append(all, faultsOfKubelet()...)
	all = append(all, faultsOfKernel()...)
	return append(all, faultsOfBerth()...)
}

func faultsOfRuntimes() []planted {
	return []planted{
		{"no runtime", settings(func(b *doctor.Berth) { b.Supervisor = "" }), doctor.Space{}, "runtime", finding.Problem, "CRI socket", "no runtime answers", "install one: berth node init"},
		{"a berth that does not run", func(*testing.T, *provisiontest.Host, *doctor.Berth) {}, doctor.Space{}, "runtime", finding.Problem, "CRI socket", "nor does one on berth's, /run/berth/berth.sock", "systemctl start berth"},
		{"a unit that should run", func(t *testing.T, h *provisiontest.Host, _ *doctor.Berth) {
			write(t, h, "/etc/systemd/system/kubelet.service", "[Service]\n")
			if err := h.Units().Enable(t.Context(), "kubelet.service"); err != nil {
				t.Fatal(err)
			}
		}, doctor.Space{}, "services", finding.Problem, "kubelet.service", "is enabled and does not run", "systemctl start kubelet.service"},
		{"a masked unit", func(t *testing.T, h *provisiontest.Host, _ *doctor.Berth) {
			write(t, h, "/etc/systemd/system/berth.service", "[Service]\n")
			if err := h.Units().Mask(t.Context(), "berth.service"); err != nil {
				t.Fatal(err)
			}
		}, doctor.Space{}, "services", finding.Warning, "berth.service", "is masked", "systemctl unmask berth.service"},
		{"a unit that failed", func(t *testing.T, h *provisiontest.Host, _ *doctor.Berth) {
			write(t, h, "/etc/systemd/system/berth.service", "[Service]\n")
			h.Broken["berth.service"] = "exit-code"
			if err := errors.Join(h.Units().Reload(t.Context()), h.Units().Start(t.Context(), "berth.service")); err == nil {
				t.Fatal("a broken unit starts")
			}
		}, doctor.Space{}, "services", finding.Problem, "berth.service", "is failed", "journalctl -u berth.service"},
		{"a unit that systemd has not read again", func(t *testing.T, h *provisiontest.Host, _ *doctor.Berth) {
			write(t, h, "/etc/systemd/system/berth.service", "[Service]\n")
			if _, err := h.Units().State(t.Context(), "berth.service"); err != nil { // the fake reloads units that it knows
				t.Fatal(err)
			}
			if err := h.Units().Reload(t.Context()); err != nil {
				t.Fatal(err)
			}
			write(t, h, "/etc/systemd/system/berth.service", "[Service]\nUser=x\n")
		}, doctor.Space{}, "services", finding.Warning, "berth.service", "has changed on disk", "systemctl daemon-reload"},
		{
			"a socket whose server does not serve CRI", both(settings(func(b *doctor.Berth) { b.Socket = "/run/elsewhere.sock" }), file("/run/elsewhere.sock", "")),
			doctor.Space{},
			"runtime", finding.Problem, "/run/elsewhere.sock", "does not serve CRI", "See its log",
		},
		{
			"a range of pods with an address of the host", file("/etc/cni/net.d/10-x.conflist", `{"plugins":[{"type":"bridge","isGateway":true,"ipam":{"type":"host-local","subnet":"192.0.2.0/24"}}]}`),
			doctor.Space{},
			"pod-ranges", finding.Problem, "192.0.2.0/24", "contains 192.0.2.9, an address of the host on link eth0", "choose another range in /etc/cni/net.d/10-x.conflist",
		},
		{"a plugin that is missing", file("/etc/cni/net.d/10-x.conflist", `{"plugins":[{"type":"vrf"}]}`), doctor.Space{}, "network", finding.Problem, "vrf", "wants the CNI plugin vrf, which is not in /opt/cni/bin or /usr/lib/cni", "containernetworking-plugins"},
		{"a network whose daemon has not run", both(file("/etc/cni/net.d/10-flannel.conflist", `{"plugins":[{"type":"flannel"}]}`), file("/opt/cni/bin/flannel", "")), doctor.Space{}, "network", finding.Problem, "/run/flannel/subnet.env", "the CNI plugin flannel of /etc/cni/net.d/10-flannel.conflist reads /run/flannel/subnet.env, which is not there", "remove /etc/cni/net.d/10-flannel.conflist"},
		{"a network that is gone", both(file("/etc/cni/net.d/10-calico.conflist", `{"plugins":[{"type":"calico","kubernetes":{"kubeconfig":"/etc/cni/net.d/calico-kubeconfig"}}]}`), file("/opt/cni/bin/calico", "")), doctor.Space{}, "network", finding.Problem, "/etc/cni/net.d/calico-kubeconfig", "the CNI plugin calico", "remove /etc/cni/net.d/10-calico.conflist"},
		{"a CNI configuration without a plugin", file("/etc/cni/net.d/10-x.conflist", `{"name":"x"}`), doctor.Space{}, "network", finding.Problem, "/etc/cni/net.d/10-x.conflist", "names no plugin", "correct or remove it"},
		{"a CNI configuration that is no JSON", file("/etc/cni/net.d/10-x.conflist", `{`), doctor.Space{}, "network", finding.Problem, "/etc/cni/net.d/10-x.conflist", "is not JSON", "correct or remove it"},
		{
			"what kubeadm refuses", both(file("/usr/bin/kubeadm", ""), file("/etc/kubernetes/pki/ca.crt", "")),
			doctor.Space{},
			"kubeadm", finding.Warning, "FileAvailable--etc-kubernetes-pki-ca.crt", "/etc/kubernetes/pki/ca.crt is there: kubeadm join refuses", "kubeadm reset",
		},
	}
}

func faultsOfKubelet() []planted {
	return []planted{
		{"a runtime that does not answer", file(config, "containerRuntimeEndpoint: unix:///run/x.sock\n"), doctor.Space{}, "kubelet-runtime", finding.Problem, "/run/x.sock", "the kubelet talks to /run/x.sock (/var/lib/kubelet/config.yaml), where no runtime answers", "containerRuntimeEndpoint"},
		{
			"a kubelet elsewhere", both(file("/proc/12/cmdline", "/opt/kubelet\x00--config=/opt/k.yaml\x00"), file("/opt/k.yaml", "containerRuntimeEndpoint: unix:///run/x.sock\n")),
			doctor.Space{},
			"kubelet-runtime", finding.Problem, "/run/x.sock", "(/opt/k.yaml), where no runtime answers", "in /opt/k.yaml",
		},
		{
			"another cgroup driver than berth's", both(kubelet("cgroupDriver: systemd\n"), settings(func(b *doctor.Berth) { b.CgroupDriver = "cgroupfs" })),
			doctor.Space{},
			"kubelet-runtime", finding.Problem, "cgroup driver", "is systemd (/var/lib/kubelet/config.yaml), that of berth is cgroupfs (/etc/berth/berth.toml)", "restart both",
		},
		{
			"a unit without its kubelet", both(file("/etc/systemd/system/kubelet.service", "[Service]\nExecStart=/usr/bin/kubelet\n"),
				file("/etc/systemd/system/kubelet.service.d/10-kubeadm.conf", "[Service]\nExecStart=\nExecStart=/opt/bin/kubelet $KUBELET_ARGS\n"), file("/usr/bin/kubelet", "")),
			doctor.Space{},
			"kubelet", finding.Problem, "/opt/bin/kubelet", "kubelet.service starts /opt/bin/kubelet, which is not there", "kubelet.assets",
		},
		{"a configuration that is not YAML", file(config, "a: b: c"), doctor.Space{}, "kubelet", finding.Problem, config, "is not YAML", "the kubelet does not start"},
		{"images of another runtime", kubelet("imageServiceEndpoint: unix:///run/containerd/containerd.sock\n"), doctor.Space{}, "kubelet-images", finding.Problem, "imageServiceEndpoint", "pulls images through unix:///run/containerd/containerd.sock", "remove imageServiceEndpoint from /var/lib/kubelet/config.yaml"},
		{
			"another pod CIDR than berth's", both(kubelet("podCIDR: 10.1.0.0/24\n"), builtin("10.2.0.0/24")),
			doctor.Space{},
			"kubelet-pod-cidr", finding.Problem, "podCIDR", "podCIDR is 10.1.0.0/24", "remove network.subnets",
		},
		{
			"more pods than addresses", both(kubelet("maxPods: 250\n"), builtin("10.2.0.0/25")),
			doctor.Space{},
			"kubelet-pod-cidr", finding.Warning, "10.2.0.0/25", "has addresses for 125 pods, and the kubelet starts up to 250", "maxPods: 125",
		},
		{"more pods than processes", both(kubelet("maxPods: 500\n"), sysctl("kernel.pid_max", "32768")), doctor.Space{}, "kubelet-max-pods", finding.Warning, "kernel.pid_max", "up to 500 pods (maxPods), and kernel.pid_max is 32768", "sysctl -w kernel.pid_max=4194304"},
		{"a pod that may use all processes", both(kubelet("podPidsLimit: 65536\n"), sysctl("kernel.pid_max", "32768")), doctor.Space{}, "kubelet-max-pods", finding.Warning, "podPidsLimit", "one pod can use all processes", "a lower podPidsLimit"},
		{
			"more pods than inotify instances", both(kubelet("maxPods: 500\n"), sysctl("fs.inotify.max_user_instances", "1024")),
			doctor.Space{},
			"kubelet-max-pods", finding.Warning, "fs.inotify.max_user_instances", "is 1024", "sysctl -w fs.inotify.max_user_instances=8192",
		},
		{
			"no eviction for the image store's disk", both(kubelet("evictionHard: {nodefs.available: 10%}\n"), mount(provision.Mount{Path: "/var/lib/berth", Type: "xfs"})),
			doctor.Space{},
			"kubelet-eviction", finding.Warning, "imagefs.available", "/var/lib/berth is on a file system of its own", `imagefs.available: "15%"`,
		},
		{"no eviction for the kubelet's disk", kubelet("evictionHard: {memory.available: 100Mi, nodefs.available: 0%}\n"), doctor.Space{}, "kubelet-eviction", finding.Warning, "nodefs.available", "has no limit for nodefs.available", `nodefs.available: "10%"`},
		{"no eviction at all", kubelet("evictionHard: {}\n"), doctor.Space{}, "kubelet-eviction", finding.Warning, "nodefs.available", "has no limit for nodefs.available", `nodefs.available: "10%"`},
		{"an eviction at 0 bytes", kubelet("evictionHard: {nodefs.available: 0Mi}\n"), doctor.Space{}, "kubelet-eviction", finding.Warning, "nodefs.available", "has no limit", `nodefs.available: "10%"`},
		{
			"no eviction for the disk of a kubelet with another runtime", file(config, "containerRuntimeEndpoint: unix:///run/containerd/containerd.sock\nevictionHard: {memory.available: 100Mi}\n"),
			doctor.Space{},
			"kubelet-eviction", finding.Warning, "nodefs.available", "(/var/lib/kubelet/config.yaml) has no limit for nodefs.available: pods fill up the disk of /var/lib/kubelet", `nodefs.available: "10%"`,
		},
		{"seccompDefault without seccomp", both(kubelet("seccompDefault: true\n"), func(t *testing.T, h *provisiontest.Host, _ *doctor.Berth) {
			if err := h.Files().Remove("/proc/sys/kernel/seccomp/actions_avail"); err != nil {
				t.Fatal(err)
			}
		}), doctor.Space{}, "kubelet-seccomp", finding.Problem, "seccompDefault", "the kernel has no seccomp", "CONFIG_SECCOMP_FILTER"},
		{
			"seccompDefault without its profile", both(kubelet("seccompDefault: true\n"), settings(func(b *doctor.Berth) { b.SeccompProfile = "/etc/berth/seccomp.json" })),
			doctor.Space{},
			"kubelet-seccomp", finding.Problem, "/etc/berth/seccomp.json", "which is not there: no container without a profile", "remove the key",
		},
		{"different ranges of ids", both(kubelet(""), file("/etc/subuid", "kubelet:65536:7208960\n"), file("/etc/subgid", "kubelet:131072:7208960\n")), doctor.Space{}, "kubelet-userns", finding.Problem, "/etc/subuid", "the same one range", "kubelet:65536:7208960 in both files"},
		{
			"a range of ids for fewer pods", both(kubelet("maxPods: 110\n"), file("/etc/subuid", "kubelet:65536:655360\n"), file("/etc/subgid", "kubelet:65536:655360\n")),
			doctor.Space{},
			"kubelet-userns", finding.Problem, "/etc/subuid", "has 655360 ids; for 110 pods", "kubelet:65536:7208960",
		},
		{
			"ranges of ids that overlap", both(kubelet(""), file("/etc/subuid", "alice:100000:65536\nkubelet:65536:7208960\n"), file("/etc/subgid", "kubelet:65536:7208960\n")),
			doctor.Space{},
			"kubelet-userns", finding.Warning, "/etc/subuid", "the users kubelet and alice in /etc/subuid overlap", "move one of the ranges",
		},
		{"no user namespaces", both(kubelet(""), sysctl("user.max_user_namespaces", "0")), doctor.Space{}, "kubelet-userns", finding.Warning, "user.max_user_namespaces", "pods with hostUsers: false do not start", "sysctl -w user.max_user_namespaces=65536"},
		{"kernel defaults that the kubelet demands", both(kubelet("protectKernelDefaults: true\n"), sysctl("vm.overcommit_memory", "0")), doctor.Space{}, "kubelet-sysctls", finding.Problem, "vm.overcommit_memory", "protectKernelDefaults (/var/lib/kubelet/config.yaml) demands 1", "sysctl -w vm.overcommit_memory=1"},
		{"swap", both(kubelet(""), func(t *testing.T, h *provisiontest.Host, _ *doctor.Berth) {
			if err := h.Kernel().SwapOn(t.Context(), "/swapfile"); err != nil {
				t.Fatal(err)
			}
		}), doctor.Space{}, "swap", finding.Problem, "/swapfile", "swap is on (/swapfile)", "failSwapOn"},
		{"a resolvConf that is missing", file(config, "resolvConf: /nope/resolv.conf\n"), doctor.Space{}, "name-resolution", finding.Problem, "/nope/resolv.conf", "names /nope/resolv.conf, which is not there", "correct resolvConf in /var/lib/kubelet/config.yaml"},
		{"no resolv.conf", both(kubelet(""), removed("/etc/resolv.conf")), doctor.Space{}, "name-resolution", finding.Problem, "/etc/resolv.conf", "/etc/resolv.conf is not there: the kubelet starts no pod", "systemctl start systemd-resolved"},
		{"a resolv.conf that leads nowhere", both(removed("/etc/resolv.conf"), func(t *testing.T, h *provisiontest.Host, _ *doctor.Berth) {
			if err := h.Files().Link("../run/systemd/resolve/stub-resolv.conf", "/etc/resolv.conf", provision.Attr{}); err != nil {
				t.Fatal(err)
			}
		}), doctor.Space{}, "name-resolution", finding.Warning, "/etc/resolv.conf", "is a link to ../run/systemd/resolve/stub-resolv.conf, which is not there", "systemctl start systemd-resolved"},
		{"a resolv.conf without a server", file("/etc/resolv.conf", "search example.org\n"), doctor.Space{}, "name-resolution", finding.Warning, "/etc/resolv.conf", "names no name server", "nameserver ADDRESS"},
		{"name servers that are the pod itself", both(kubelet(""), file("/etc/resolv.conf", "nameserver 127.0.0.53\n")), doctor.Space{}, "name-resolution", finding.Warning, "/etc/resolv.conf", "CoreDNS", "resolvConf"},
		{"name servers that are the pod itself, without a kubelet", file("/etc/resolv.conf", "nameserver 127.0.0.1\n"), doctor.Space{}, "name-resolution", finding.Warning, "/etc/resolv.conf", "which is themselves", "dnsConfig"},
	}
}

func faultsOfKernel() []planted {
	return []planted{
		{"no overlay", absent("overlay"), doctor.Space{}, "kernel", finding.Problem, "overlay", "the kernel has no overlay file system", "modules of the running kernel"},
		{"no forwarding", sysctl("net.ipv4.ip_forward", "0"), doctor.Space{}, "kernel", finding.Problem, "net.ipv4.ip_forward", "net.ipv4.ip_forward is 0", "sysctl -w net.ipv4.ip_forward=1"},
		{"bridged traffic without rules", sysctl("net.bridge.bridge-nf-call-iptables", "0"), doctor.Space{}, "kernel", finding.Warning, "net.bridge.bridge-nf-call-iptables", "is 0", "sysctl -w net.bridge.bridge-nf-call-iptables=1"},
		{"a low limit of inotify instances", sysctl("fs.inotify.max_user_instances", "128"), doctor.Space{}, "inotify", finding.Warning, "fs.inotify.max_user_instances", "is 128", "=512"},
		{"a low limit of watched files", sysctl("fs.inotify.max_user_watches", "8192"), doctor.Space{}, "inotify", finding.Warning, "fs.inotify.max_user_watches", "is 8192", "=65536"},
		{"few inotify instances left", func(t *testing.T, h *provisiontest.Host, _ *doctor.Berth) {
			few := 3
			h.Watchers = &few
			write(t, h, "/proc/12/comm", "kubelet\n")
			write(t, h, "/proc/12/fd/0", "")
			for _, fd := range []string{"5", "6"} {
				if err := h.Files().Link("anon_inode:inotify", "/proc/12/fd/"+fd, provision.Attr{}); err != nil {
					t.Fatal(err)
				}
			}
		}, doctor.Space{}, "inotify", finding.Problem, "fs.inotify.max_user_instances", "3 more times: a containerd that starts without runs without CRI, and a kubelet does not start; most have kubelet (2)", "sysctl -w fs.inotify.max_user_instances="},
		{"a full disk", file("/var/lib/berth/x", ""), doctor.Space{Free: 1 << 20, Size: 100 << 20, FilesFree: 9, Files: 10}, "disk", finding.Warning, "/var/lib/berth", "has 1 MiB of 100 MiB left", "make room"},
		{"a disk with nothing left", file("/var/lib/berth/x", ""), doctor.Space{Free: 1 << 10, Size: 100 << 20, FilesFree: 9, Files: 10}, "disk", finding.Problem, "/var/lib/berth", "it is full, and pods do not start", "crictl rmi --prune removes images"},
		{"not one inode left", file("/var/log/x", ""), doctor.Space{Free: 9, Size: 10, FilesFree: 0, Files: 1000}, "disk", finding.Problem, "/var/log", "no file can be made", "du --inodes"},
		{"no inodes left", file("/var/log/x", ""), doctor.Space{Free: 9, Size: 10, FilesFree: 3, Files: 1000}, "disk", finding.Warning, "/var/log", "has room for 3 of 1000 files left", "crictl rmi --prune"},
		{"no cgroups", func(t *testing.T, h *provisiontest.Host, _ *doctor.Berth) {
			if err := h.Kernel().Unmount(t.Context(), "/sys/fs/cgroup"); err != nil {
				t.Fatal(err)
			}
		}, doctor.Space{}, "cgroups", finding.Problem, "/sys/fs/cgroup", "no cgroup file system is mounted", "mount -t cgroup2"},
		{"no memory controller", file("/sys/fs/cgroup/cgroup.controllers", "cpuset cpu io pids\n"), doctor.Space{}, "cgroups", finding.Problem, "memory", "the cgroup controller memory is off (/sys/fs/cgroup/cgroup.controllers)", "cgroup_enable=memory"},
		{
			"no pids controller on v1", both(mount(provision.Mount{Path: "/sys/fs/cgroup/memory", Type: "cgroup"}), file("/proc/cgroups", "cpu 1 1 1\ncpuset 1 1 1\nmemory 1 1 1\npids 1 1 0\n")),
			doctor.Space{},
			"cgroups", finding.Problem, "pids", "the cgroup controller pids is off (/proc/cgroups)", "cgroup_enable=pids",
		},
		{"the systemd driver without systemd", settings(func(b *doctor.Berth) { b.CgroupDriver = "systemd" }), doctor.Space{}, "cgroups", finding.Problem, "cgroup driver", "systemd is not pid 1", `cgroup_driver = "auto"`},
		{"AppArmor without its parser", file("/sys/module/apparmor/parameters/enabled", "Y\n"), doctor.Space{}, "security-modules", finding.Warning, "apparmor_parser", "is not installed", "the package apparmor"},
		{
			"a profile that is not loaded", both(file("/sys/module/apparmor/parameters/enabled", "Y\n"), file("/sys/kernel/security/apparmor/profiles", "other (enforce)\n"), settings(func(b *doctor.Berth) { b.AppArmorProfile = "mine" })),
			doctor.Space{},
			"security-modules", finding.Problem, "mine", "runtime.apparmor_profile is mine", "apparmor_parser -r",
		},
		{
			"SELinux that berth does not use", both(file("/sys/fs/selinux/enforce", "1"), settings(func(b *doctor.Berth) { b.SELinux = "off" })),
			doctor.Space{},
			"security-modules", finding.Warning, "SELinux", "SELinux enforces, and runtime.selinux is off", `selinux = "auto"`,
		},
		{"no veth", absent("veth"), doctor.Space{}, "modules", finding.Problem, "veth", "the kernel has no module veth", "modules of the running kernel"},
		{"no nf_tables", both(builtin(), absent("nf_tables")), doctor.Space{}, "modules", finding.Problem, "nf_tables", "the kernel has no module nf_tables", "modules of the running kernel"},
		{"few mounts", sysctl("fs.mount-max", "1000"), doctor.Space{}, "kernel-limits", finding.Warning, "fs.mount-max", "fs.mount-max is 1000: no space left", "sysctl -w fs.mount-max=100000"},
		{"few keys", sysctl("kernel.keys.root_maxkeys", "200"), doctor.Space{}, "kernel-limits", finding.Warning, "kernel.keys.root_maxkeys", "disk quota exceeded", "sysctl -w kernel.keys.root_maxkeys=1000000"},
		{"few network namespaces", sysctl("user.max_net_namespaces", "64"), doctor.Space{}, "kernel-limits", finding.Warning, "user.max_net_namespaces", "when a pod starts", "sysctl -w user.max_net_namespaces=65536"},
		{"no IPv6 forwarding", both(builtin("10.2.0.0/16", "fd00:1::/64"), sysctl("net.ipv6.conf.all.forwarding", "0")), doctor.Space{}, "kernel-limits", finding.Warning, "net.ipv6.conf.all.forwarding", "net.ipv6.conf.all.forwarding is 0", "sysctl -w net.ipv6.conf.all.forwarding=1"},
	}
}

func faultsOfBerth() []planted {
	const hosts = "/etc/berth/certs.d/registry.example/hosts.toml"
	return []planted{
		{"a configuration with a fault", settings(func(b *doctor.Berth) { b.Fault = errors.New("line 3: unknown key") }), doctor.Space{}, "berth-config", finding.Problem, "/etc/berth/berth.toml", "berth does not start with /etc/berth/berth.toml: line 3: unknown key", "berth config check"},
		{
			"a configuration that names files that are missing", settings(func(b *doctor.Berth) {
				b.FileFaults = []error{errors.New("metrics: stat /c: no such file"), errors.New("page: no PEM")}
			}),
			doctor.Space{},
			"berth-config", finding.Problem, "/etc/berth/berth.toml", "names a file that berth cannot use: page: no PEM", "restart berth",
		},
		{"flags with a fault", settings(func(b *doctor.Berth) { b.File, b.Fault = "", errors.New("root: want an absolute path") }), doctor.Space{}, "berth-config", finding.Problem, "flags", "berth does not start with these flags: root", "berth serve"},
		{"keys without effect", settings(func(b *doctor.Berth) { b.Unused = "these keys have no effect" }), doctor.Space{}, "berth-config", finding.Warning, "/etc/berth/berth.toml", "these keys have no effect", "remove these keys from /etc/berth/berth.toml"},
		{"no supervisor", settings(func(b *doctor.Berth) { b.Supervisor = "" }), doctor.Space{}, "berth-programs", finding.Problem, "berth-supervisor", "neither beside berth nor in PATH", "runtime.supervisor"},
		{"a supervisor that is elsewhere", settings(func(b *doctor.Berth) { b.Supervisor = "/opt/s" }), doctor.Space{}, "berth-programs", finding.Problem, "/opt/s", "which is not there", "correct runtime.supervisor in /etc/berth/berth.toml"},
		{"a supervisor that cannot be executed", file("/usr/bin/berth-supervisor", ""), doctor.Space{}, "berth-programs", finding.Problem, "/usr/bin/berth-supervisor", "is not executable", "chmod 755 /usr/bin/berth-supervisor"},
		{"a socket for everybody", func(t *testing.T, h *provisiontest.Host, _ *doctor.Berth) {
			write(t, h, "/run/berth/berth.sock", "")
			if err := h.Files().SetAttr("/run/berth/berth.sock", provision.Attr{Mode: 0o666}); err != nil {
				t.Fatal(err)
			}
		}, doctor.Space{}, "sockets", finding.Problem, "/run/berth/berth.sock", "has mode 0666: a user of the machine can run containers as root", "chmod 660 /run/berth/berth.sock"},
		{
			"a path that no socket can have", settings(func(b *doctor.Berth) { b.Socket = "/run/" + strings.Repeat("x", 120) }),
			doctor.Space{},
			"sockets", finding.Problem, "/run/" + strings.Repeat("x", 120), "has 125 bytes, 18 more than a socket can have", "a shorter path",
		},
		{"images on NFS", mount(provision.Mount{Path: "/var/lib/berth", Type: "nfs4"}), doctor.Space{}, "image-store", finding.Warning, "/var/lib/berth", "/var/lib/berth is on nfs4 (/var/lib/berth), which cannot hold overlays: each container takes time and space", "a local disk"},
		{"overlays on NFS", both(mount(provision.Mount{Path: "/var/lib/berth", Type: "nfs4"}), settings(func(b *doctor.Berth) { b.Snapshotter = "overlay" })), doctor.Space{}, "image-store", finding.Problem, "/var/lib/berth", "and image.snapshotter is overlay: berth does not start", "image.snapshotter = \"auto\""},
		{"images on tmpfs", mount(provision.Mount{Path: "/var/lib", Type: "tmpfs"}), doctor.Space{}, "image-store", finding.Warning, "/var/lib/berth", "are gone after a reboot", "a local disk"},
		{"images on a disk without execution", mount(provision.Mount{Path: "/var", Type: "ext4", Options: []string{"rw", "noexec"}}), doctor.Space{}, "image-store", finding.Problem, "/var/lib/berth", "noexec: no program of a container starts", "mount -o remount,exec /var"},
		{"a limit of what containers write, without project quotas", both(file("/var/lib/berth/images/closed", ""), settings(func(b *doctor.Berth) {
			b.WritableLimits = []string{"defaults.writable_limit is 1073741824"}
		})), doctor.Space{}, "image-store", finding.Problem, "/var/lib/berth", "defaults.writable_limit is 1073741824, and no pod with such a limit starts: the file system of /var/lib/berth has no project quotas", "or no such limit"},
		{"a registry's file that is not TOML", file(hosts, "server = \n"), doctor.Space{}, "registries", finding.Problem, hosts, hosts + ":1: is not TOML", "remove /etc/berth/certs.d/registry.example"},
		{"a registry's file with a value that is not valid", file(hosts, "[host.\"https://m\"]\ncapabilities = [\"fly\"]\n"), doctor.Space{}, "registries", finding.Problem, hosts, hosts + ":2: capabilities: want a list of pull, resolve, push and referrers, not \"fly\": images of registry.example are not pulled", "correct it"},
		{"a registry's file with an unknown key", file(hosts, "[host.\"https://m\"]\nskip_verfy = true\n"), doctor.Space{}, "registries", finding.Warning, hosts, hosts + ":2: skip_verfy: is not a key of hosts.toml", "remove it from " + hosts},
		{"a mirror that is down", file(hosts, "[host.\"http://up.example\"]\n[host.\"https://localhost:5001\"]\n"), doctor.Space{}, "registry-hosts", finding.Warning, hosts, "names https://localhost:5001, and no connection can be made to localhost:5001: connection refused", "berth image explain --try"},
		{"a mirror without a scheme that is down", file(hosts, "[host.\"localhost:5001\"]\n"), doctor.Space{}, "registry-hosts", finding.Warning, hosts, "names localhost:5001, and no connection can be made to localhost:5001: connection refused", "berth image explain --try"},
		{"a directory in the place of a registry's file", file(hosts+"/a", ""), doctor.Space{}, "registries", finding.Problem, hosts, hosts + " is not a regular file: images of registry.example are not pulled", "remove /etc/berth/certs.d/registry.example"},
		{"a file in the place of a registry's directory", both(file("/etc/berth/certs.d/README.md", ""), file("/etc/berth/certs.d/registry.example", "")), doctor.Space{}, "registries", finding.Problem, "/etc/berth/certs.d/registry.example", "is a file, and not a directory", "remove it"},
		{"credentials with a fault", settings(func(b *doctor.Berth) { b.CredentialFaults = []string{"no image can be pulled"} }), doctor.Space{}, "berth-config", finding.Problem, "/etc/berth/berth.toml", "no image can be pulled", "image.credential_files in /etc/berth/berth.toml"},
		{"a registry's certificate that is missing", file(hosts, "[host.\"https://m\"]\nca = \"ca.crt\"\n"), doctor.Space{}, "registries", finding.Problem, hosts, "names /etc/berth/certs.d/registry.example/ca.crt, which is not there", "put the file there"},
	}
}
