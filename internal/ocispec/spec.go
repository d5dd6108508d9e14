// Package ocispec computes the OCI runtime spec of a container from what the
// kubelet asked for, what the image says, and what the host was found to be.
//
// It is pure: it opens no file, asks no kernel and reads no clock, so the same
// Input always gives the same spec. What must be looked up (users, mount sources,
// device nodes, seccomp profiles) is looked up by package engine/native and comes
// in as data.
package ocispec

import (
	imagespec "github.com/opencontainers/image-spec/specs-go/v1"
	"github.com/opencontainers/runtime-spec/specs-go"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berthrun/berth/internal/ocispec/request"
)

// Input is everything that a container's spec depends on.
type Input struct {
	// ID and SandboxID are the container's and its sandbox's.
	ID, SandboxID string
	// Config and SandboxConfig are the requests; check.Container has passed them.
	Config        *runtimeapi.ContainerConfig
	SandboxConfig *runtimeapi.PodSandboxConfig
	// Image is the image's configuration.
	Image imagespec.ImageConfig
	// Restored is true for a container that continues a checkpoint: its program runs already, and need not be named.
	Restored bool
	// Rootfs is where the container's root filesystem is mounted.
	Rootfs string
	// Hostname is what the container sees as its host's name.
	Hostname string
	// CgroupsPath is linux.cgroupsPath, as the cgroup driver takes it.
	CgroupsPath string
	// Namespaces are the sandbox's.
	Namespaces Namespaces
	// UserNamespace is how Namespaces.User maps ids, nil for the host's.
	UserNamespace *request.UserNamespace
	// Files are the sandbox's files that are mounted where the request mounts
	// nothing.
	Files Files
	// User is the request's user, resolved in the image (ResolveUser).
	User User
	// Sources are the mount sources in Config, by host path.
	Sources map[string]Source
	// Volumes are the directories of the images in Config's mounts, by the mount's
	// index.
	Volumes map[int]string
	// ImageVolumes are mounted at the paths of the function of that name.
	ImageVolumes []ImageVolume
	// Devices are the nodes that Config asks for, directories already walked, or
	// every node of the host for a privileged container.
	Devices []Device
	// AllDevices lets the container use every device, not only those that it has
	// nodes of.
	AllDevices bool
	// CgroupWritable lets an unprivileged container write its cgroups.
	CgroupWritable bool
	// Seccomp is the filter that request.SeccompOf asks for, nil for none.
	Seccomp *specs.LinuxSeccomp
	// AppArmor is the profile that request.AppArmorOf asks for, loaded, "" for none.
	AppArmor string
	// ProcessLabel and MountLabel are the SELinux labels of the process and of the
	// files that it may use, "" for none.
	ProcessLabel, MountLabel string
	// Annotations are passed on to hooks; berth's own hide them.
	Annotations map[string]string
	// Defaults hold where Config says nothing.
	Defaults Defaults
	// Host is what the host can do.
	Host Host
}

// Defaults are what containers get that their requests do not set.
type Defaults struct {
	// Capabilities are what requests add to and drop from, as CAP_ names; nil for
	// request.DefaultCapabilities.
	Capabilities []string
	// Inheritable puts a container's capabilities into its inheritable set, too, from which
	// programs with capabilities of their file's take them.
	Inheritable bool
	// MinGOMAXPROCS is the least GOMAXPROCS of containers without a limit of CPU in pods of
	// a kubelet's that are not guaranteed their CPUs; 0 sets none. See the function GOMAXPROCS.
	MinGOMAXPROCS int
	// Env are NAME=VALUE; the image's and the request's hide them.
	Env []string
	// Rlimits are the limits of the container's processes.
	Rlimits []specs.POSIXRlimit
	// Seccomp is the filter of a container whose request has none and that is not
	// privileged.
	Seccomp request.SeccompProfile
}

// Namespaces are paths of pinned namespaces, "" where the host's is used (or, for
// PID, where the sandbox shares none).
type Namespaces struct {
	User, Net, IPC, UTS, PID string
	// Target is the PID namespace of the target container (NamespaceMode
	// TARGET), "" for none.
	Target string
}

// Files are paths on the host.
type Files struct {
	Hosts, Hostname, ResolvConf string
	// Shm is the sandbox's directory for /dev/shm, and ShmFlags those of the mount that it
	// is on.
	Shm      string
	ShmFlags []string
}

// Source is what a mount source was found to be.
type Source struct {
	// Path is the source with its symbolic links resolved.
	Path string
	// Shared and Slave are the propagation of the mount that the source is on.
	Shared, Slave bool
	// Flags are those of that mount ("ro", "nosuid" ...), as the spec has them. They are
	// needed for mounts that have flags of their own (HasFlags).
	Flags []string
}

// Device is one device node.
type Device struct {
	// Path is where it appears in the container, Source where it is on the host.
	Path, Source string
	// Type is "c" or "b".
	Type         string
	Major, Minor int64
	// Mode is the node's permission bits.
	Mode     uint32
	UID, GID uint32
	// Access is made of the letters r, w and m.
	Access string
}

// Host is what the host can do.
type Host struct {
	// CgroupV2 is true on a unified hierarchy.
	CgroupV2 bool
	// CgroupOptions are those of the host's unified hierarchy that belong to the whole of
	// it (nsdelegate, memory_recursiveprot). Needed where request.SharesCgroupns.
	CgroupOptions []string
	// Hugetlb is true when the hugetlb controller can be used.
	Hugetlb bool
	// SwapLimit is true when swap can be limited.
	SwapLimit bool
	// Seccomp is true when the kernel can filter system calls.
	Seccomp bool
	// RecursiveReadOnly is true when a mount can be made read-only with all below.
	RecursiveReadOnly bool
	// Capabilities are those that a container can get at most, as CAP_ names.
	Capabilities []string
}

// Container computes the spec. Its errors have kind Invalid or Unsupported and
// name the field.
func Container(in Input) (*specs.Spec, error) {
	if err := checkMapped(in.UserNamespace, in.User); err != nil {
		return nil, err
	}
	process, err := processOf(in)
	if err != nil {
		return nil, err
	}
	mounts, rootPropagation, err := mountsOf(in)
	if err != nil {
		return nil, err
	}
	linux, err := linuxOf(in)
	if err != nil {
		return nil, err
	}
	linux.RootfsPropagation = rootPropagation
	return &specs.Spec{
		Version:     specs.Version,
		Process:     process,
		Root:        &specs.Root{Path: in.Rootfs, Readonly: request.Security(in.Config).GetReadonlyRootfs()},
		Mounts:      mounts,
		Annotations: annotationsOf(in),
		Linux:       linux,
	}, nil
}

func linuxOf(in Input) (*specs.Linux, error) {
	security := request.Security(in.Config)
	namespaces, err := namespacesOf(in)
	if err != nil {
		return nil, err
	}
	resources, err := Resources(request.FieldCreate, in.Config.GetLinux().GetResources(), in.Host)
	if err != nil {
		return nil, err
	}
	linux := &specs.Linux{
		CgroupsPath: in.CgroupsPath,
		Namespaces:  namespaces,
		Resources:   resources,
		Seccomp:     in.Seccomp,
		MountLabel:  in.MountLabel,
	}
	linux.Devices, linux.Resources.Devices = devicesOf(in)
	if !security.GetPrivileged() {
		linux.MaskedPaths = security.GetMaskedPaths()
		linux.ReadonlyPaths = security.GetReadonlyPaths()
	}
	return linux, nil
}

func (d Device) moved() bool { return d.Source != "" && d.Source != d.Path }

// devicesOf returns the nodes to make and the device cgroup's rules. The runtime
// adds the nodes that every container has (null, zero, tty, ...) by itself.
func devicesOf(in Input) ([]specs.LinuxDevice, []specs.LinuxDeviceCgroup) {
	rules := []specs.LinuxDeviceCgroup{{Allow: false, Access: "rwm"}}
	if in.AllDevices {
		rules[0].Allow = true
	}
	var nodes []specs.LinuxDevice
	for _, d := range in.Devices {
		mode := fileMode(d.Mode)
		if in.UserNamespace == nil || !d.moved() { // else it is mounted
			nodes = append(nodes, specs.LinuxDevice{
				Path: d.Path, Type: d.Type, Major: d.Major, Minor: d.Minor,
				FileMode: &mode, UID: &d.UID, GID: &d.GID,
			})
		}
		if !in.AllDevices {
			rules = append(rules, specs.LinuxDeviceCgroup{
				Allow: true, Type: d.Type, Major: &d.Major, Minor: &d.Minor, Access: d.Access,
			})
		}
	}
	return nodes, rules
}
