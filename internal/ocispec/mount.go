package ocispec

import (
	"path"
	"slices"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berthrun/berth/internal/ocispec/fielderror"
	"github.com/berthrun/berth/internal/ocispec/request"
)

// mountsOf lists the mounts in the order in which they are made, and the
// propagation that the container's root needs for them ("" for the runtime's
// default).
func mountsOf(in Input) (mounts []specs.Mount, rootPropagation string, err error) {
	binds := deviceMounts(in)
	for i, m := range in.Config.GetMounts() {
		if m.GetImage() != nil {
			volume, err := in.imageMount(i, m)
			if err != nil {
				return nil, "", err
			}
			binds = append(binds, volume)
			continue
		}
		requested, propagation, err := in.hostMount(i, m)
		if err != nil {
			return nil, "", err
		}
		if propagation == "rshared" || propagation == "rslave" && rootPropagation == "" {
			rootPropagation = propagation
		}
		binds = append(binds, requested)
	}
	binds = append(binds, sandboxFiles(in, binds)...)
	inMemory, err := in.tmpfsMounts()
	if err != nil {
		return nil, "", err
	}
	binds = append(binds, inMemory...)
	// A mount comes after those that it lies below.
	slices.SortStableFunc(binds, func(a, b specs.Mount) int {
		return strings.Count(a.Destination, "/") - strings.Count(b.Destination, "/")
	})
	for _, m := range in.systemMounts() {
		if !covered(m.Destination, binds) {
			mounts = append(mounts, m)
		}
	}
	return slices.Concat(mounts, in.imageVolumeMounts(), binds), rootPropagation, nil
}

// hostMount is the i-th mount that the request asks for, and its propagation.
func (in Input) hostMount(i int, m *runtimeapi.Mount) (specs.Mount, string, error) {
	source, ok := in.Sources[m.GetHostPath()]
	if !ok {
		return specs.Mount{}, "", fielderror.Invalid(fielderror.Index("config.mounts", i, "host_path"), "%q was not looked up", m.GetHostPath())
	}
	propagation, err := Propagation(fielderror.Index("config.mounts", i, "propagation"), m, source)
	if err != nil {
		return specs.Mount{}, "", err
	}
	mount := bind(source.Path, path.Clean(m.GetContainerPath()), propagation, withSourceFlags(asked(m), source.Flags)...)
	if m.GetRecursiveReadOnly() {
		if !in.Host.RecursiveReadOnly {
			return specs.Mount{}, "", fielderror.Unsupported(fielderror.Index("config.mounts", i, "recursive_read_only"), "RROUnsupported: the kernel cannot make mounts read-only with all below them")
		}
		mount.Options = append(mount.Options, "rro")
	}
	idmap, uids, gids := volumeMappings(in.UserNamespace, m)
	if idmap != "" {
		mount.Options = append(mount.Options, idmap)
		mount.UIDMappings, mount.GIDMappings = uids, gids
	}
	return mount, propagation, nil
}

// asked are the flags that a request wants its mount to have.
func asked(m *runtimeapi.Mount) []string {
	if m.GetReadonly() {
		return append([]string{"ro"}, m.GetMountOptions()...)
	}
	return m.GetMountOptions()
}

// HasFlags reports whether a mount has flags of its own, so that Source.Flags counts.
func HasFlags(m *runtimeapi.Mount) bool { return len(asked(m)) > 0 }

// withSourceFlags are the flags of a bind mount. Without any of its own it keeps those of
// the mount that its source is on; with some it has exactly the ones that are listed, so
// the source's must be among them.
func withSourceFlags(own, source []string) []string {
	if len(own) == 0 {
		return nil
	}
	flags := slices.Concat(own, source)
	slices.Sort(flags)
	return slices.Compact(flags)
}

// imageMount is the i-th mount, which is of an image: its mapping, if any, is done.
func (in Input) imageMount(i int, m *runtimeapi.Mount) (specs.Mount, error) {
	source, ok := in.Volumes[i]
	if !ok {
		return specs.Mount{}, fielderror.Invalid(fielderror.Index("config.mounts", i, "image"), "%q was not looked up", m.GetImage().GetImage())
	}
	return bind(source, path.Clean(m.GetContainerPath()), "rprivate", asked(m)...), nil
}

// deviceMounts are the nodes that the container sees at another place than the
// host, in a user namespace, where none can be made: the runtime binds those that
// have the same place.
func deviceMounts(in Input) []specs.Mount {
	var mounts []specs.Mount
	for _, d := range in.Devices {
		if in.UserNamespace != nil && d.moved() {
			mounts = append(mounts, specs.Mount{
				Destination: d.Path, Type: "bind", Source: d.Source, Options: []string{"bind", "rprivate"},
			})
		}
	}
	return mounts
}

// systemMounts are what every container has. /dev/shm is not among them: it is the
// sandbox's.
func (in Input) systemMounts() []specs.Mount {
	access := "ro"
	if request.Security(in.Config).GetPrivileged() {
		access = "rw"
	}
	sys := specs.Mount{Destination: "/sys", Type: "sysfs", Source: "sysfs", Options: []string{"nosuid", "noexec", "nodev", access}}
	if in.UserNamespace != nil && in.Namespaces.Net == "" {
		// A sysfs shows a network, which must be the user namespace's own.
		sys = specs.Mount{Destination: "/sys", Type: "bind", Source: "/sys", Options: []string{"rbind", "rprivate", "nosuid", "noexec", "nodev", "ro"}}
		if in.Host.RecursiveReadOnly {
			sys.Options = append(sys.Options, "rro")
		}
	}
	cgroupAccess := access
	if in.CgroupWritable {
		cgroupAccess = "rw"
	}
	groups := []string{"nosuid", "noexec", "nodev", "relatime", cgroupAccess}
	if request.SharesCgroupns(in.Config, in.SandboxConfig) {
		// There is one file system of cgroups in the host's cgroup namespace, which each
		// mount gives its own options, also by leaving them out.
		groups = append(groups, in.Host.CgroupOptions...)
	}
	return []specs.Mount{
		{Destination: "/proc", Type: "proc", Source: "proc", Options: []string{"nosuid", "noexec", "nodev"}},
		{Destination: "/dev", Type: "tmpfs", Source: "tmpfs", Options: []string{"nosuid", "strictatime", "mode=755", "size=65536k"}},
		{Destination: "/dev/pts", Type: "devpts", Source: "devpts", Options: []string{"nosuid", "noexec", "newinstance", "ptmxmode=0666", "mode=0620", "gid=5"}},
		{Destination: "/dev/mqueue", Type: "mqueue", Source: "mqueue", Options: []string{"nosuid", "noexec", "nodev"}},
		sys,
		{Destination: "/sys/fs/cgroup", Type: "cgroup", Source: "cgroup", Options: groups},
	}
}

// covered reports whether one of binds is mounted at destination or above it.
func covered(destination string, binds []specs.Mount) bool {
	return slices.ContainsFunc(binds, func(b specs.Mount) bool {
		return request.IsBelow(destination, b.Destination)
	})
}

// sandboxFiles are the mounts that the sandbox gives where the request gives none.
func sandboxFiles(in Input, requested []specs.Mount) []specs.Mount {
	access := "rw"
	if request.Security(in.Config).GetReadonlyRootfs() {
		access = "ro"
	}
	var mounts []specs.Mount
	for _, file := range []struct {
		source, destination string
		flags               []string
	}{
		{in.Files.Hostname, "/etc/hostname", []string{access}},
		{in.Files.Hosts, "/etc/hosts", []string{access}},
		{in.Files.ResolvConf, "/etc/resolv.conf", []string{access}},
		{in.Files.Shm, "/dev/shm", in.Files.ShmFlags},
	} {
		if file.source == "" || covered(file.destination, requested) {
			continue
		}
		flags := withSourceFlags([]string{"nosuid", "nodev", "noexec"}, file.flags)
		mounts = append(mounts, bind(file.source, file.destination, "rprivate", flags...))
	}
	return mounts
}

// bind mounts source with all below it. Without flags the mount has those of the mount
// that its source is on.
func bind(source, destination, propagation string, flags ...string) specs.Mount {
	return specs.Mount{
		Destination: destination, Type: "bind", Source: source,
		Options: append([]string{"rbind", propagation}, flags...),
	}
}

// Propagation returns the option of a mount's propagation. Kind Invalid names the field if the source
// is on a mount that cannot propagate.
func Propagation(field string, m *runtimeapi.Mount, source Source) (string, error) {
	switch m.GetPropagation() {
	case runtimeapi.MountPropagation_PROPAGATION_PRIVATE:
		return "rprivate", nil
	case runtimeapi.MountPropagation_PROPAGATION_BIDIRECTIONAL:
		if !source.Shared {
			return "", fielderror.Invalid(field, "path %q is mounted on the host but it is not a shared mount", m.GetHostPath())
		}
		return "rshared", nil
	case runtimeapi.MountPropagation_PROPAGATION_HOST_TO_CONTAINER:
		if !source.Shared && !source.Slave {
			return "", fielderror.Invalid(field, "path %q is mounted on the host but it is not a shared or slave mount", m.GetHostPath())
		}
		return "rslave", nil
	default:
		return "", fielderror.Invalid(field, "unknown propagation %d", m.GetPropagation())
	}
}

// tmpfsMounts are those of request.AnnotationTmpfs, which check.Container has passed. Without a mode
// they have that of the directory below.
func (in Input) tmpfsMounts() ([]specs.Mount, error) {
	paths, err := request.TmpfsOf(in.Config)
	mounts := make([]specs.Mount, 0, len(paths))
	for _, at := range paths {
		mounts = append(mounts, specs.Mount{Destination: at, Type: "tmpfs", Source: "tmpfs", Options: []string{"nosuid", "nodev"}})
	}
	return mounts, err
}
