//go:build integration

package differential

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	imagespec "github.com/opencontainers/image-spec/specs-go/v1"
	"github.com/opencontainers/runtime-spec/specs-go"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berthrun/berth/internal/ocispec"
	"github.com/berthrun/berth/internal/ocispec/check"
	"github.com/berthrun/berth/internal/ocispec/request"
	"github.com/berthrun/berth/internal/ocispec/requesttest"
)

// draft is a container on its way from the CRI request to the trial.
type draft struct {
	p *pair
	// top is the directory of the host with the container's files.
	top string
	in  ocispec.Input
	// security is that of the container's request, pod that of the sandbox's.
	security *runtimeapi.LinuxContainerSecurityContext
	pod      *runtimeapi.LinuxSandboxSecurityContext
	// mapped puts the pod into a user namespace.
	mapped bool
	// mayBeRefused leaves the case out when berth refuses the request.
	mayBeRefused bool
	// seccomp is "default", "" for none, or the name of a profile in localProfiles.
	seccomp string
	// after changes the spec that package ocispec has made.
	after []func(*specs.Spec)
	trial trial
}

// draft is what a kubelet requests for a pod that asks for nothing.
func (p *pair) draft(id string) *draft {
	top := filepath.Join(dirToken, "c", id)
	d := &draft{p: p, top: top, trial: trial{id: id}}
	sandbox, config := requesttest.KubeletSandbox(), requesttest.KubeletContainer()
	config.Mounts = nil
	d.security, d.pod = config.Linux.SecurityContext, sandbox.Linux.SecurityContext
	d.security.MaskedPaths = []string{
		"/proc/asound", "/proc/acpi", "/proc/interrupts", "/proc/kcore", "/proc/keys", "/proc/latency_stats", "/proc/timer_list",
		"/proc/timer_stats", "/proc/sched_debug", "/proc/scsi", "/sys/firmware", "/sys/devices/virtual/powercap",
	}
	d.security.ReadonlyPaths = []string{"/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"}
	d.in = ocispec.Input{
		ID: id, SandboxID: "sandbox", Config: config, SandboxConfig: sandbox,
		Image:  imagespec.ImageConfig{Entrypoint: []string{"/bin/probe"}, Cmd: []string{"wait"}, Env: []string{"PATH=/usr/bin:/bin", "VERSION=1"}},
		Rootfs: filepath.Join(top, "rootfs"), Hostname: "pod", CgroupsPath: groupToken + "/" + id,
		Namespaces: ocispec.Namespaces{Net: p.pinned["net"], IPC: p.pinned["ipc"], UTS: p.pinned["uts"]},
		Files: ocispec.Files{
			Hosts: top + "/files/hosts", Hostname: top + "/files/hostname", ResolvConf: top + "/files/resolv.conf", Shm: top + "/shm",
		},
		User:    ocispec.User{Groups: []uint32{0}},
		Sources: map[string]ocispec.Source{},
		Volumes: map[int]string{},
		Host:    p.host,
	}
	return d
}

// mount adds a mount of the request. Its source is in the container's directory on the host.
func (d *draft) mount(source, at string, change func(*runtimeapi.Mount)) {
	m := &runtimeapi.Mount{HostPath: filepath.Join(d.top, source), ContainerPath: at}
	if filepath.IsAbs(source) {
		m.HostPath = source
	}
	if change != nil {
		change(m)
	}
	d.in.Config.Mounts = append(d.in.Config.Mounts, m)
	found := ocispec.Source{Path: m.HostPath}
	switch top, _, _ := cutPath(source); top {
	case "shared":
		found.Shared = true
	case "slave":
		found.Shared, found.Slave = false, true
	case "readonly":
		found.Flags = []string{"ro"}
	case "noexec":
		found.Flags = []string{"noexec", "nodev", "noatime"}
	}
	d.in.Sources[m.HostPath] = found
}

func cutPath(path string) (top, rest string, found bool) {
	for i, c := range path {
		if c == '/' {
			return path[:i], path[i+1:], true
		}
	}
	return path, "", false
}

// finish computes the spec.
func (d *draft) finish() (trial, error) {
	if d.mapped {
		requesttest.InUserNamespace(d.in.SandboxConfig, d.in.Config)
		d.in.UserNamespace = request.UserNamespaceOf(d.in.SandboxConfig)
		d.in.Namespaces.User = d.p.pinned["user"]
		for kind, path := range map[string]*string{
			"net": &d.in.Namespaces.Net, "ipc": &d.in.Namespaces.IPC, "uts": &d.in.Namespaces.UTS,
			"pid": &d.in.Namespaces.PID, "pid of a target": &d.in.Namespaces.Target,
		} {
			kind, _, _ = strings.Cut(kind, " of")
			if *path != "" {
				*path = d.p.pinned["mapped "+kind]
			}
		}
		prepare := d.trial.prepare
		d.trial.prepare = func(s *side, rootfs string) error {
			if prepare != nil {
				if err := prepare(s, rootfs); err != nil {
					return err
				}
			}
			return giveTree(rootfs, mappedRoot)
		}
	}
	if err := check.Container(d.in.Config, d.in.SandboxConfig); err != nil {
		return d.trial, err
	}
	if d.seccomp != "" {
		caps, err := ocispec.Capabilities(d.in.Config, d.in.Host, d.in.Defaults.Capabilities)
		if err != nil {
			return d.trial, err
		}
		if d.in.Seccomp, err = d.filter(caps.Permitted); err != nil {
			return d.trial, err
		}
	}
	spec, err := ocispec.Container(d.in)
	if err != nil {
		return d.trial, err
	}
	for _, change := range d.after {
		change(spec)
	}
	d.trial.spec = spec
	d.trial.stdin, d.trial.stdinOnce = d.in.Config.GetStdin(), d.in.Config.GetStdinOnce()
	return d.trial, nil
}

func (d *draft) filter(capabilities []string) (*specs.LinuxSeccomp, error) {
	if d.seccomp == "default" {
		return d.p.profiles.Default(capabilities)
	}
	profile, ok := localProfiles()[d.seccomp]
	if !ok {
		return nil, fmt.Errorf("no profile %q", d.seccomp)
	}
	return profile, nil
}

// giveTree gives a tree to a user namespace.
func giveTree(root string, first int) error {
	return filepath.WalkDir(root, func(path string, entry os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if entry.Name() == "probe" {
			return nil // a link to a file of all containers
		}
		return os.Lchown(path, first, first)
	})
}

// localProfiles are filters that are not the default one.
func localProfiles() map[string]*specs.LinuxSeccomp {
	errno := uint(1)
	return map[string]*specs.LinuxSeccomp{
		"few": {
			DefaultAction: specs.ActAllow,
			Syscalls:      []specs.LinuxSyscall{{Names: []string{"swapon", "reboot", "kexec_load"}, Action: specs.ActErrno}},
		},
		"errno": {
			DefaultAction: specs.ActAllow, Architectures: []specs.Arch{specs.ArchX86_64},
			Syscalls: []specs.LinuxSyscall{{Names: []string{"mknod", "mknodat"}, Action: specs.ActErrno, ErrnoRet: &errno}},
		},
		"arguments": {
			DefaultAction: specs.ActErrno, DefaultErrnoRet: &errno,
			Architectures: []specs.Arch{specs.ArchX86_64, specs.ArchX86, specs.ArchX32},
			Syscalls: []specs.LinuxSyscall{
				{Names: []string{"personality"}, Action: specs.ActAllow, Args: []specs.LinuxSeccompArg{{Index: 0, Value: 0xffffffff, Op: specs.OpEqualTo}}},
				{Names: []string{"clone"}, Action: specs.ActAllow, Args: []specs.LinuxSeccompArg{{Index: 0, Value: 0x7e020000, Op: specs.OpMaskedEqual}}},
				{Names: []string{
					"read", "write", "open", "openat", "close", "exit", "exit_group", "execve", "mmap", "munmap", "brk", "fstat", "newfstatat", "stat", "lstat", "fcntl",
					"readlink", "readlinkat", "getdents64", "rt_sigaction", "rt_sigprocmask", "pause", "getpid", "getppid", "getuid", "getresuid", "getresgid",
					"getgroups", "umask", "uname", "getcwd", "prctl", "arch_prctl", "set_tid_address", "set_robust_list", "rseq", "prlimit64", "getrandom", "mprotect",
					"capget", "capset", "setuid", "setgid", "setgroups", "setresuid", "setresgid", "close_range", "futex", "nanosleep", "chdir", "fchdir", "fsopen", "fsconfig", "fsmount", "fstatfs", "openat2", "statx", "keyctl", "ioctl", "statfs", "access", "faccessat", "faccessat2", "tgkill", "rt_sigreturn",
				}, Action: specs.ActAllow},
			},
		},
		"logged": {
			DefaultAction: specs.ActAllow, Flags: []specs.LinuxSeccompFlag{specs.LinuxSeccompFlagLog},
			Syscalls: []specs.LinuxSyscall{{Names: []string{"reboot"}, Action: specs.ActLog}},
		},
		"kills": {
			DefaultAction: specs.ActAllow, Syscalls: []specs.LinuxSyscall{{Names: []string{"reboot"}, Action: specs.ActKillProcess}, {Names: []string{"swapoff"}, Action: specs.ActTrap}},
		},
		"speculation": {
			DefaultAction: specs.ActAllow, Flags: []specs.LinuxSeccompFlag{specs.LinuxSeccompFlagSpecAllow},
			Syscalls: []specs.LinuxSyscall{{Names: []string{"reboot"}, Action: specs.ActErrno}},
		},
	}
}

// corpus is each feature in each of its forms, alone.
func corpus() map[string]func(*draft) {
	all := map[string]func(*draft){"nothing": func(*draft) {}}
	for name, forms := range features() {
		for form, apply := range forms {
			all[name+": "+form] = apply
		}
	}
	return all
}

// mappedCorpus is the corpus in pods with a user namespace.
func mappedCorpus() map[string]func(*draft) {
	all := map[string]func(*draft){}
	for name, apply := range corpus() {
		all["mapped, "+name] = func(d *draft) {
			apply(d)
			d.mapped, d.mayBeRefused = true, true
		}
	}
	return all
}

// stepInCI is how many cases of a corpus CI leaves out for each one that it takes: `make e2e` takes all.
const stepInCI = 10

// TestSameContainers starts a part of the corpus in both supervisors, also in a user namespace.
func TestSameContainers(t *testing.T) {
	p := newPair(t)
	p.cases(t, "c", corpus(), stepInCI)
	p.cases(t, "m", mappedCorpus(), stepInCI)
}

// cases compares every step-th case, in the order of their names.
func (p *pair) cases(t *testing.T, prefix string, cases map[string]func(*draft), step int) {
	t.Helper()
	names := slices.Sorted(maps.Keys(cases))
	counts := p.inParallel(t, len(names), func(i int) (trial, error) {
		if i%step != 0 {
			return trial{}, errLeftOut
		}
		d := p.draft(fmt.Sprint(prefix, i))
		d.trial.what = names[i]
		cases[names[i]](d)
		tr, err := d.finish()
		if err != nil && d.mayBeRefused {
			return trial{}, errLeftOut
		}
		return tr, err
	})
	t.Log(counts)
}
