package ocispec

import (
	"github.com/opencontainers/runtime-spec/specs-go"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berthrun/berth/internal/ocispec/request"
)

// PodInit is what the spec of a pod's init depends on: the process that is pid 1
// of a PID namespace which containers share.
type PodInit struct {
	SandboxID     string
	SandboxConfig *runtimeapi.PodSandboxConfig
	// UserNamespace is the sandbox's, nil for the host's.
	UserNamespace *request.UserNamespace
	// IDs says how many users and groups there are where the engine runs.
	IDs request.UserNamespace
	// Rootfs is a file system that nobody can write to, with the static program
	// PodInitProgram and the empty directories "dev" and "procfs".
	Rootfs      string
	CgroupsPath string
	Namespaces  Namespaces
	// ProcessLabel and MountLabel are as in Input.
	ProcessLabel, MountLabel string
	// AppArmor is the profile, "" for none.
	AppArmor string
	// Seccomp is the filter, nil for none.
	Seccomp *specs.LinuxSeccomp
}

// PodInitProgram is the program's name below PodInit.Rootfs.
const PodInitProgram = "pod-init"

// podInitProcfs is the directory below PodInit.Rootfs for libcontainer's procfs.
const podInitProcfs = "/procfs"

// podInitID is the user and group of pods' inits: one that no image has, that user
// namespaces are not given, and that systemd's list of ids leaves unused.
const podInitID = 2_147_000_000

// What the init's cgroup holds. libcontainer's init lives in it before, and needs most
// of it; afterwards it is one thread without memory of its own.
const (
	podInitMemory = 32 << 20
	podInitPIDs   = 32
)

// Spec computes the spec: a process that can do nothing but reap. That is less than
// any request for the sandbox's process allows, so that user, groups and root file
// system of the request are not looked at. Each container of the pod sees the process,
// and one with CAP_SYS_PTRACE reaches whatever the process reaches: so there is no
// procfs, no device and no file of the host.
func (in PodInit) Spec() *specs.Spec {
	pod := in.SandboxConfig.GetMetadata()
	oomScoreAdj := -998
	memory, pids := int64(podInitMemory), int64(podInitPIDs)
	namespaces := []specs.LinuxNamespace{
		{Type: specs.MountNamespace}, {Type: specs.CgroupNamespace}, {Type: specs.PIDNamespace},
	}
	for _, ns := range []specs.LinuxNamespace{
		{Type: specs.UserNamespace, Path: in.Namespaces.User},
		{Type: specs.NetworkNamespace, Path: in.Namespaces.Net},
		{Type: specs.IPCNamespace, Path: in.Namespaces.IPC},
		{Type: specs.UTSNamespace, Path: in.Namespaces.UTS},
	} {
		if ns.Path != "" {
			namespaces = append(namespaces, ns)
		}
	}
	spec := &specs.Spec{
		Version: specs.Version,
		Root:    &specs.Root{Path: in.Rootfs, Readonly: true},
		Process: &specs.Process{
			Args: []string{"/" + PodInitProgram, "pod-init"},
			// It makes the program an init before it is anything else.
			Env:             []string{"BERTH_POD_INIT=1", "HOME=/"},
			Cwd:             "/",
			User:            in.user(),
			Capabilities:    &specs.LinuxCapabilities{},
			NoNewPrivileges: true,
			SelinuxLabel:    in.ProcessLabel,
			ApparmorProfile: in.AppArmor,
			OOMScoreAdj:     &oomScoreAdj,
		},
		// Where /dev is a bind mount, libcontainer makes no devices in it.
		Mounts: []specs.Mount{in.empty("/dev")},
		Annotations: map[string]string{
			"io.kubernetes.cri.container-type":        "sandbox",
			"io.kubernetes.cri.sandbox-id":            in.SandboxID,
			"io.kubernetes.cri.sandbox-name":          pod.GetName(),
			"io.kubernetes.cri.sandbox-namespace":     pod.GetNamespace(),
			"io.kubernetes.cri.sandbox-uid":           pod.GetUid(),
			"io.kubernetes.cri.sandbox-log-directory": in.SandboxConfig.GetLogDirectory(),
		},
		Linux: &specs.Linux{
			CgroupsPath: in.CgroupsPath,
			Namespaces:  namespaces,
			MountLabel:  in.MountLabel,
			Seccomp:     in.Seccomp,
			Resources: &specs.LinuxResources{
				Devices: []specs.LinuxDeviceCgroup{{Allow: false, Access: "rwm"}},
				Memory:  &specs.LinuxMemory{Limit: &memory},
				Pids:    &specs.LinuxPids{Limit: &pids},
			},
		},
	}
	if in.UserNamespace != nil {
		// libcontainer needs a procfs of its own to confine the process, which the kernel
		// gives to a user namespace only where one is mounted; it is covered before the
		// process begins.
		spec.Mounts = append(spec.Mounts, specs.Mount{
			Destination: podInitProcfs, Type: "proc", Source: "proc", Options: []string{"nosuid", "noexec", "nodev", "subset=pid"},
		}, in.empty(podInitProcfs))
	}
	return spec
}

// empty mounts the empty directory of the root on a path.
func (in PodInit) empty(path string) specs.Mount {
	return specs.Mount{Destination: path, Type: "bind", Source: in.Rootfs + "/dev", Options: []string{"bind", "rprivate", "ro", "nosuid", "noexec", "nodev"}}
}

// user is podInitID, or the last one that there is.
func (in PodInit) user() specs.User {
	ids := in.IDs
	if in.UserNamespace != nil {
		ids = *in.UserNamespace
	}
	last := func(m request.IDMapping) uint32 { return min(podInitID, max(m.Length, 1)-1) }
	return specs.User{UID: last(ids.UIDs), GID: last(ids.GIDs)}
}
