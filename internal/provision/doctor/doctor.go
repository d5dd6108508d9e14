// Package doctor has the checks of a machine, as a node and for berth: each says what it saw, and
// what to do. It only reads, needs no node file, and also checks nodes that berth did not set up.
package doctor

import (
	"cmp"
	"context"
	"fmt"
	"net"
	"sync"
	"time"

	"github.com/berthrun/berth/internal/doctor"
	"github.com/berthrun/berth/internal/finding"
	"github.com/berthrun/berth/internal/hostnet"
	"github.com/berthrun/berth/internal/provision"
	"github.com/berthrun/berth/internal/provision/kubelet"
	"github.com/berthrun/berth/internal/provision/preflight"
	"github.com/berthrun/berth/internal/sys/sysfile"
)

// Check is one of a machine.
type Check = doctor.Check[*Machine]

// Machine has the facts that checks share. Each is read once, when a check needs it first. Make it
// with New. It is for one goroutine.
type Machine struct {
	Options
	host provision.Host

	kubelet  func() (kubelet.Kubelet, error)
	runtimes func() ([]answer, error)
}

// Options say what there is beside the machine.
type Options struct {
	// Berth has the settings of berth on the machine.
	Berth Berth
	// Space returns the space of a file system, by a directory on it.
	Space func(dir string) (Space, error)
	// CanLimit returns nil if what is written below a directory can be limited, and else the reason.
	CanLimit func(dir string) error
	// Dial connects to a registry ("HOST:PORT"), and closes the connection; nil for no such check.
	Dial func(ctx context.Context, address string) error
	// HostNet returns the addresses and routes of the machine; nil for no such check.
	HostNet func() (hostnet.Host, error)
	// CallTimeout bounds the calls to a runtime; 0 is 10 seconds.
	CallTimeout time.Duration
}

// Berth has the settings of `berth serve` that the checks compare a machine with.
type Berth struct {
	// File is the configuration; empty if there is none, and the defaults are in force. Fault is why
	// it cannot be used, nil for no fault; then all else is the defaults.
	File  string
	Fault error
	// FileFaults are those of the files that the configuration names. Unused is a warning of keys without effect, "" for
	// none.
	FileFaults []error
	Unused     string
	// CredentialFaults are those of image.credential_files, with the images that are not pulled for them.
	CredentialFaults []string
	// Engine is native or docker. Socket is the path of the CRI socket.
	Engine, Socket string
	// Root and State are berth's directories.
	Root, State string
	// Network is cni, builtin or kubenet. ConfDir and BinDirs are those of CNI. InProcess are the types
	// of the CNI plugins that berth runs in its process where their programs are missing.
	Network            string
	ConfDir            string
	BinDirs, InProcess []string
	// Subnets are those of pods, in modes builtin and kubenet, as CIDRs. Bridge is the name of berth's own bridge.
	Subnets []string
	Bridge  string
	// CgroupDriver is systemd, cgroupfs or auto.
	CgroupDriver string
	// SELinux and AppArmor are off, or another value. AppArmorProfile replaces berth's own profile.
	SELinux, AppArmor, AppArmorProfile string
	// SeccompProfile is the file of the profile runtime/default; empty for the built-in one.
	SeccompProfile string
	// RegistryDirs have a directory for each registry.
	RegistryDirs []string
	// WritableLimits are the limits of what containers write, each as a clause: "KEY is BYTES".
	WritableLimits []string
	// Snapshotter is image.snapshotter; empty for auto.
	Snapshotter string
	// Supervisor is the path of berth-supervisor; empty if it is not found.
	Supervisor string
}

// Space is that of a file system, in bytes and in files.
type Space struct {
	Free, Size       uint64
	FilesFree, Files uint64 // Files is 0 if the file system has no limit
}

// SpaceOf asks the kernel.
func SpaceOf(dir string) (Space, error) {
	free, err := sysfile.DiskFree(dir)
	if err != nil {
		return Space{}, err
	}
	size, err := sysfile.SizeOf(dir)
	return Space{Free: uint64(max(free, 0)), Size: size.Bytes, FilesFree: size.InodesFree, Files: size.Inodes}, err
}

// Dial makes a connection, and closes it.
func Dial(ctx context.Context, address string) error {
	conn, err := new(net.Dialer).DialContext(ctx, "tcp", address)
	if err != nil {
		return err
	}
	return conn.Close()
}

// New returns the facts of a machine. ctx bounds what is asked later.
func New(ctx context.Context, host provision.Host, opts Options) *Machine {
	m := &Machine{Options: opts, host: host}
	m.CallTimeout = cmp.Or(opts.CallTimeout, callTimeout)
	m.kubelet = sync.OnceValues(func() (kubelet.Kubelet, error) { return kubelet.Find(host) })
	m.runtimes = sync.OnceValues(func() ([]answer, error) { return m.ask(ctx) })
	return m
}

// WithKubeadm reports whether the checks of kubeadm are of use on the machine.
func WithKubeadm(host provision.Host) bool { return preflight.Installed(host) }

func check(id, title, reads string, look func(ctx context.Context, m *Machine, r *doctor.Report) error) Check {
	return Check{Info: doctor.Info{ID: id, Title: title, Reads: reads}, Look: look}
}

// kubeletCheck is a check of what a kubelet has in its configuration.
func kubeletCheck(id, title, reads string, look func(ctx context.Context, m *Machine, r *doctor.Report) error) Check {
	return check(id, title, reads, func(ctx context.Context, m *Machine, r *doctor.Report) error {
		if why := m.withoutKubelet(); why != "" {
			r.NotNeeded(why)
			return nil
		}
		return look(ctx, m, r)
	})
}

const noKubelet = "this machine has no kubelet"

// withoutKubelet is why checks of a kubelet have nothing to examine, "" if they have.
func (m *Machine) withoutKubelet() string {
	switch k, err := m.kubelet(); {
	case err != nil:
		return "the kubelet's configuration cannot be read (see the check kubelet)"
	case !k.There():
		return noKubelet
	}
	return ""
}

// OfNode are the checks of a machine as a node, whatever its runtime is. kubeadm adds what kubeadm
// itself would check.
func OfNode(kubeadm bool) []Check {
	checks := []Check{
		check("services", "services", "the units of runtimes and of the kubelet in systemd", services),
		check("runtime", "runtime", "CRI sockets: Version, Status", findRuntimes),
		check("kubelet", "kubelet", "the kubelet's process, unit and configuration", checkKubelet),
		kubeletCheck("kubelet-runtime", "kubelet and runtime", "`containerRuntimeEndpoint` and `cgroupDriver` of the kubelet; RuntimeConfig of CRI, `runtime.cgroup_driver` of berth.toml", kubeletFits),
		kubeletCheck("kubelet-images", "kubelet and images", "`imageServiceEndpoint` of the kubelet", kubeletImages),
		kubeletCheck("kubelet-pod-cidr", "kubelet and pod addresses", "`podCIDR` and `maxPods` of the kubelet; `network.subnets` of berth.toml", kubeletAddresses),
		kubeletCheck("kubelet-max-pods", "kubelet and limits of the kernel", "`maxPods` and `podPidsLimit` of the kubelet; `kernel.pid_max`, `fs.inotify.max_user_instances`", kubeletPods),
		kubeletCheck("kubelet-eviction", "kubelet and evictions", "`evictionHard` of the kubelet; the file systems of /var/lib/kubelet and of berth's root", kubeletEviction),
		check("kubelet-seccomp", "kubelet and seccomp", "`seccompDefault` of the kubelet; /proc/sys/kernel/seccomp, `runtime.seccomp_profile` of berth.toml", kubeletSeccomp),
		kubeletCheck("kubelet-userns", "kubelet and user namespaces", "/etc/subuid and /etc/subgid (user kubelet), `userNamespaces.idsPerPod` of the kubelet; `user.max_user_namespaces`", kubeletUserNamespaces),
		kubeletCheck("kubelet-sysctls", "kubelet and sysctls", "`protectKernelDefaults` of the kubelet; the sysctls that it demands", kubeletSysctls),
		check("network", "network", "the CNI configuration in use, the programs of its plugins, and files that plugins read", network),
		check("pod-ranges", "addresses of pods and of the host", "`network.subnets` of berth.toml, or the ranges of host-local in the CNI configuration in use; the host's addresses and routes", podRanges),
		check("kernel", "kernel", "module overlay; `net.ipv4.ip_forward`, `net.bridge.bridge-nf-call-iptables`", kernel),
		check("inotify", "watchers of files", "`fs.inotify.*`; inotify instances that root can still make", watchers),
		check("swap", "swap", "/proc/swaps; `failSwapOn` of the kubelet", swap),
		check("name-resolution", "name resolution", "`resolvConf` of the kubelet, /etc/resolv.conf, /run/systemd/resolve/resolv.conf", resolver),
		check("disk", "disk", "space and inodes of the directories of runtimes, kubelet and logs", disk),
	}
	if kubeadm {
		checks = append(checks, check("kubeadm", "kubeadm", "what the preflight checks of kubeadm init and join read", kubeadmObjects))
	}
	return checks
}

// OfHost are the checks of what berth needs of a machine, beside those of a node.
func OfHost() []Check {
	return []Check{
		check("berth-config", "berth's configuration", "berth.toml, as `berth serve` reads it, and the files that it names: certificates, hooks, specs, I/O classes", berthConfig),
		check("berth-programs", "berth's programs", "berth-supervisor: `runtime.supervisor`, beside berth, in PATH", berthPrograms),
		check("sockets", "sockets", "the CRI socket: its path and mode", berthSocket),
		check("image-store", "image store", "the file system of berth's root: type, options, project quotas; `image.snapshotter`, `defaults.writable_limit` and that of handlers", imageStore),
		check("registries", "registries", "hosts.toml and the files that it names, in `image.registry_config_dirs`", registries),
		check("registry-hosts", "hosts of registries", "hosts.toml; whether a connection can be made to each host that it names, unless the environment has a proxy for it", registryHosts),
		check("cgroups", "cgroups", "mounts of cgroups; cgroup.controllers (v2), /proc/cgroups (v1)", cgroups),
		check("security-modules", "AppArmor and SELinux", "the kernel's security modules, apparmor_parser; `runtime.apparmor`, `runtime.selinux`", securityModules),
		check("modules", "kernel modules", "modules bridge, veth, nf_tables (built-in network) and br_netfilter (kubelet)", modules),
		check("kernel-limits", "limits of the kernel", "`fs.mount-max`, `fs.nr_open`, `user.max_*_namespaces`, `net.ipv6.conf.all.forwarding`", kernelLimits),
		check("other-runtimes", "other runtimes", "CRI sockets of other runtimes; the CNI configuration that they share with berth", otherRuntimes),
	}
}

// kubeadmObjects finds what kubeadm init and join object to, each by kubeadm's own name.
func kubeadmObjects(ctx context.Context, m *Machine, r *doctor.Report) error {
	for _, o := range preflight.Look(ctx, m.host) {
		f := o.Finding
		f.Object, f.Check, f.Evidence = f.Check, "kubeadm "+f.Check, fmt.Sprintf("%s: %s", f.Evidence, o.Who)
		r.AddFinding(f)
	}
	return nil
}

// sysctl reads a number; ok is false if the kernel has no such key, or it is no number.
func (m *Machine) sysctl(key string) (now int64, ok bool) {
	text, err := m.host.Kernel().Sysctl(key)
	if err != nil {
		return 0, false
	}
	_, err = fmt.Sscan(text, &now)
	return now, err == nil
}

// levels of findings, for short.
const (
	warning = finding.Warning
	problem = finding.Problem
)
