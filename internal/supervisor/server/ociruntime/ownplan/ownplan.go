// Package ownplan turns libcontainer's configuration of a container into the order for berth's own init.
// It is pure: the two starters get the same configuration, and differ in who carries it out.
package ownplan

import (
	"fmt"
	"maps"
	"path"
	"path/filepath"
	"slices"
	"strings"

	devices "github.com/opencontainers/cgroups/devices/config"
	"github.com/opencontainers/runc/libcontainer/configs"
	"golang.org/x/sys/unix"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/supervisor/ownstart/order"
)

// Hierarchy is a hierarchy of cgroup v1 that a container sees.
type Hierarchy struct {
	// Name is the last element of its mount point on the host.
	Name string
	// Dir is the container's cgroup in it, on the host.
	Dir string
}

// Host is what an order needs to know of the host.
type Host struct {
	// Hierarchies are those of cgroup v1 in the order of their mounts; nil on v2.
	Hierarchies []Hierarchy
	// Core is true when the kernel has /proc/kcore.
	Core bool
}

// Build returns the order for a container, without descriptors and process. Kind Unsupported for what
// berth's init cannot do.
func Build(config *configs.Config, host *Host) (*order.Create, error) {
	out := &order.Create{
		HostMounts: -1,
		Fifo:       -1,
		Console:    -1,
		NewCgroup:  config.Namespaces.IsPrivate(configs.NEWCGROUP),
		Hostname:   config.Hostname,
		Domainname: config.Domainname,
		ReadOnly:   config.ReadonlyPaths,
		Masked:     config.MaskPaths,
		Core:       host.Core,
		// No process in a user namespace may make a device node.
		BindDevices: config.Namespaces.Contains(configs.NEWUSER),
	}
	tree, err := setRoot(out, config)
	if err != nil {
		return nil, err
	}
	out.Dev = true
	for _, m := range config.Mounts {
		if isDev(m.Destination) && m.Device == "bind" {
			out.Dev = false
		}
		made, err := mounts(m, config, host, tree)
		if err != nil {
			return nil, fmt.Errorf("mount %s: %w", m.Destination, err)
		}
		out.Mounts = append(out.Mounts, made...)
	}
	for _, node := range config.Devices {
		if node.Path == "" || path.Clean("/"+node.Path) == "/dev/ptmx" {
			continue // for the cgroup only; a link
		}
		kind, known := deviceTypes()[node.Type]
		if !known {
			return nil, fmt.Errorf("device %s of type %c: %w", node.Path, node.Type, errs.Unsupported)
		}
		out.Devices = append(out.Devices, order.Device{
			Path:  node.Path,
			Mode:  uint64(node.FileMode)&0o7777 | kind,
			Major: uint64(node.Major),
			Minor: uint64(node.Minor),
			UID:   int(node.Uid),
			GID:   int(node.Gid),
		})
	}
	for _, name := range slices.Sorted(maps.Keys(config.Sysctl)) {
		file := strings.ReplaceAll(name, ".", "/")
		out.Sysctls = append(out.Sysctls, order.Sysctl{Name: name, File: file, Value: config.Sysctl[name]})
	}
	return out, nil
}

func deviceTypes() map[devices.Type]uint64 {
	return map[devices.Type]uint64{
		devices.CharDevice:  unix.S_IFCHR,
		devices.BlockDevice: unix.S_IFBLK,
		devices.FifoDevice:  unix.S_IFIFO,
	}
}

func isDev(target string) bool { return path.Clean("/"+target) == "/dev" }

// setRoot sets the root, and returns the propagation type of all mounts of the host that the container
// gets: libcontainer gives it to its copy of them. The root itself never is in a peer group of the host.
func setRoot(out *order.Create, config *configs.Config) (tree uint64, err error) {
	out.Root.Path, out.Root.ReadOnly = config.Rootfs, config.Readonlyfs
	switch tree = uint64(config.RootPropagation); tree {
	case 0:
		tree = unix.MS_SLAVE | unix.MS_REC
		out.Root.Tree = []uint64{tree, unix.MS_PRIVATE}
	case unix.MS_SLAVE | unix.MS_REC, unix.MS_PRIVATE | unix.MS_REC:
		out.Root.Tree = []uint64{tree}
	case unix.MS_SHARED | unix.MS_REC:
		out.Root.Tree = []uint64{tree, unix.MS_PRIVATE}
		out.Root.Final = tree
	default:
		return 0, fmt.Errorf("rootfsPropagation %#x: %w", tree, errs.Unsupported)
	}
	return tree, nil
}

// mounts returns what one mount of the configuration becomes.
func mounts(m *configs.Mount, config *configs.Config, host *Host, tree uint64) ([]order.Mount, error) {
	switch {
	case m.IsIDMapped() && m.IDMapping.UserNSPath == "":
		return nil, fmt.Errorf("id mappings that are not those of the user namespace: %w", errs.Unsupported)
	case m.Extensions&^configs.EXT_COPYUP != 0, m.Extensions != 0 && m.Device != "tmpfs", m.Flags&(unix.MS_REMOUNT|unix.MS_I_VERSION) != 0:
		return nil, fmt.Errorf("an option: %w", errs.Unsupported)
	case m.Device == "bind":
		return []order.Mount{bind(m, tree)}, checkSource(m, config.Rootfs)
	case m.Device != "cgroup":
		return []order.Mount{filesystem(m, m.Device)}, nil
	case host.Hierarchies == nil && config.Namespaces.Contains(configs.NEWUSER) && !config.Namespaces.IsPrivate(configs.NEWCGROUP):
		return nil, fmt.Errorf("a cgroup namespace that the user namespace does not own: %w", errs.Unsupported)
	case host.Hierarchies == nil:
		return []order.Mount{filesystem(m, "cgroup2")}, nil
	}
	return cgroupMounts(m, config, host, tree), nil
}

// checkSource refuses a source that another mount of the container may change.
func checkSource(m *configs.Mount, rootfs string) error {
	if rel, err := filepath.Rel(rootfs, m.Source); err != nil || filepath.IsLocal(rel) {
		return fmt.Errorf("its source is in the root filesystem: %w", errs.Unsupported)
	}
	return nil
}

// bind returns a bind mount. Only with a flag does it change the flags of its source; then it has no
// others, but keeps the source's atime flags when it has none.
func bind(m *configs.Mount, tree uint64) order.Mount {
	out := order.Mount{
		Target:      m.Destination,
		Bind:        true,
		Recursive:   m.Flags&unix.MS_REC != 0,
		Source:      m.Source,
		Tree:        []uint64{tree},
		Propagation: propagation(m),
		Request:     uint64(m.Flags),
		Refuse:      uint64(m.ClearedFlags),
	}
	if m.IsIDMapped() {
		out.MapIDs, out.MapAll = m.IDMapping.UserNSPath, m.IDMapping.Recursive
	}
	if m.Flags&^(unix.MS_BIND|unix.MS_REC) != 0 || m.ClearedFlags != 0 {
		const atime = unix.MS_NOATIME | unix.MS_NODIRATIME | unix.MS_RELATIME | unix.MS_STRICTATIME
		out.Clear = unix.MOUNT_ATTR_RDONLY | unix.MOUNT_ATTR_NOSUID | unix.MOUNT_ATTR_NODEV | unix.MOUNT_ATTR_NOEXEC |
			unix.MOUNT_ATTR_NOSYMFOLLOW
		out.Set = attributes(m.Flags)
		if m.Flags&atime == 0 {
			out.Set &^= unix.MOUNT_ATTR__ATIME | unix.MOUNT_ATTR_NODIRATIME
		} else {
			out.Clear |= unix.MOUNT_ATTR__ATIME | unix.MOUNT_ATTR_NODIRATIME
		}
	}
	if m.RecAttr != nil {
		out.SetAll, out.ClearAll = m.RecAttr.Attr_set, m.RecAttr.Attr_clr
	}
	return out
}

// filesystem returns the mount of a new filesystem.
func filesystem(m *configs.Mount, kind string) order.Mount {
	flags := m.Flags
	out := order.Mount{Target: m.Destination, Type: kind, Source: m.Source, Propagation: propagation(m)}
	out.CopyUp = m.Extensions&configs.EXT_COPYUP != 0
	if kind == "tmpfs" || isDev(m.Destination) {
		// Things are made in it first.
		out.ReadOnlyLast = flags&unix.MS_RDONLY != 0
		flags &^= unix.MS_RDONLY
	}
	out.Set = attributes(flags)
	for _, param := range []struct {
		flag int
		name string
	}{
		{unix.MS_RDONLY, "ro"},
		{unix.MS_SYNCHRONOUS, "sync"},
		{unix.MS_DIRSYNC, "dirsync"},
		{unix.MS_LAZYTIME, "lazytime"},
		{unix.MS_MANDLOCK, "mand"},
	} {
		if flags&param.flag != 0 {
			out.Params = append(out.Params, param.name)
		}
	}
	if m.Data != "" {
		out.Params = append(out.Params, strings.Split(m.Data, ",")...)
	}
	return out
}

// cgroupMounts returns a tmpfs with a mount for each hierarchy: with a cgroup namespace the hierarchy as
// seen in it, without one the container's cgroup.
func cgroupMounts(m *configs.Mount, config *configs.Config, host *Host, tree uint64) []order.Mount {
	const flags = unix.MS_NOEXEC | unix.MS_NOSUID | unix.MS_NODEV
	top := filesystem(&configs.Mount{
		Source: "tmpfs", Device: "tmpfs", Destination: m.Destination, Flags: flags,
		Data: "mode=755", PropagationFlags: m.PropagationFlags,
	}, "tmpfs")
	out := []order.Mount{top}
	for _, h := range host.Hierarchies {
		target := path.Join(m.Destination, h.Name)
		if strings.Contains(h.Name, ",") {
			for controller := range strings.SplitSeq(h.Name, ",") {
				out[0].Links = append(out[0].Links, controller, h.Name)
			}
		}
		if !config.Namespaces.Contains(configs.NEWCGROUP) {
			own := &configs.Mount{
				Device: "bind", Source: h.Dir, Destination: target,
				Flags: unix.MS_BIND | unix.MS_REC | m.Flags, PropagationFlags: m.PropagationFlags,
			}
			out = append(out, bind(own, tree))
			continue
		}
		if config.Namespaces.IsPrivate(configs.NEWCGROUP) && !config.Namespaces.Contains(configs.NEWUSER) {
			out = append(out, cgroupBind(&h, target, flags|m.Flags&unix.MS_RDONLY))
			continue
		}
		source, data := "cgroup", h.Name
		if data == "systemd" {
			source, data = "systemd", "name=systemd"
		}
		out = append(out, filesystem(&configs.Mount{
			Source: source, Destination: target, Flags: flags | m.Flags&unix.MS_RDONLY, Data: data,
		}, "cgroup"))
	}
	return out
}

// cgroupBind returns the mount of a hierarchy as a cgroup namespace shows it, by a clone of the host's: the
// root of the namespace is the container's cgroup. For a new mount the kernel looks at all cgroups of the host.
// Only the name of the mount is another one.
func cgroupBind(h *Hierarchy, target string, flags int) order.Mount {
	return bind(&configs.Mount{Device: "bind", Source: h.Dir, Destination: target, Flags: unix.MS_BIND | flags}, unix.MS_PRIVATE)
}

func propagation(m *configs.Mount) []uint64 {
	var out []uint64
	for _, flag := range m.PropagationFlags {
		out = append(out, uint64(flag))
	}
	return out
}

// attributes turns flags of mount(2) into those of mount_setattr(2), as the kernel does.
func attributes(flags int) uint64 {
	var out uint64
	for _, pair := range []struct {
		flag int
		attr uint64
	}{
		{unix.MS_RDONLY, unix.MOUNT_ATTR_RDONLY},
		{unix.MS_NOSUID, unix.MOUNT_ATTR_NOSUID},
		{unix.MS_NODEV, unix.MOUNT_ATTR_NODEV},
		{unix.MS_NOEXEC, unix.MOUNT_ATTR_NOEXEC},
		{unix.MS_NODIRATIME, unix.MOUNT_ATTR_NODIRATIME},
		{unix.MS_NOSYMFOLLOW, unix.MOUNT_ATTR_NOSYMFOLLOW},
	} {
		if flags&pair.flag != 0 {
			out |= pair.attr
		}
	}
	switch {
	case flags&unix.MS_STRICTATIME != 0:
		out |= unix.MOUNT_ATTR_STRICTATIME
	case flags&unix.MS_NOATIME != 0:
		out |= unix.MOUNT_ATTR_NOATIME
	}
	return out
}
