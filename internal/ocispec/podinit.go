package ocispec

import (
	"github.com/opencontainers/runtime-spec/specs-go"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// PodInit is what the spec of a pod's init depends on: the process that is pid 1
// of a PID namespace which containers share.
type PodInit struct {
	SandboxID     string
	SandboxConfig *runtimeapi.PodSandboxConfig
	// UserNamespace is the sandbox's, nil for the host's.
	UserNamespace *UserNamespace
	// Rootfs is an empty directory but for the file Program.
	Rootfs string
	// Program on the host is mounted as /pod-init; it is static.
	Program     string
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

// Spec computes the spec: a process that can do nothing but reap. That is less than
// any request for the sandbox's process allows, so that user, groups and root file
// system of the request are not looked at.
func (in PodInit) Spec() *specs.Spec {
	pod := in.SandboxConfig.GetMetadata()
	oomScoreAdj := -998
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
	return &specs.Spec{
		Version: specs.Version,
		Root:    &specs.Root{Path: in.Rootfs, Readonly: true},
		Process: &specs.Process{
			Args: []string{"/" + PodInitProgram, "pod-init"},
			// One thread less to wake, and no memory for a heap that stays empty.
			Env:             []string{"GOMAXPROCS=1", "HOME=/"},
			Cwd:             "/",
			User:            in.user(),
			Capabilities:    &specs.LinuxCapabilities{},
			NoNewPrivileges: true,
			SelinuxLabel:    in.ProcessLabel,
			ApparmorProfile: in.AppArmor,
			OOMScoreAdj:     &oomScoreAdj,
		},
		Mounts: []specs.Mount{
			{Destination: "/proc", Type: "proc", Source: "proc", Options: []string{"nosuid", "noexec", "nodev"}},
			{Destination: "/dev", Type: "tmpfs", Source: "tmpfs", Options: []string{"nosuid", "noexec", "mode=755", "size=64k"}},
			{Destination: "/" + PodInitProgram, Type: "bind", Source: in.Program, Options: []string{"bind", "rprivate", "ro", "nosuid", "nodev"}},
		},
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
			Resources:   &specs.LinuxResources{Devices: []specs.LinuxDeviceCgroup{{Allow: false, Access: "rwm"}}},
		},
	}
}

// user is nobody, or the only one that a small user namespace surely has.
func (in PodInit) user() specs.User {
	const nobody = 65534
	if n := in.UserNamespace; n != nil && (n.UIDs.Length <= nobody || n.GIDs.Length <= nobody) {
		return specs.User{}
	}
	return specs.User{UID: nobody, GID: nobody}
}
