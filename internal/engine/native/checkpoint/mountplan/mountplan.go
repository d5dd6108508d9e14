// Package mountplan computes which mounts a request gives a container that is restored.
package mountplan

import (
	"bufio"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	securejoin "github.com/cyphar/filepath-securejoin"
	"github.com/moby/sys/mountinfo"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/berthrun/berth/internal/errs"
)

// Kind says what a mount is.
type Kind int

// The kinds.
const (
	// Root is the root filesystem.
	Root Kind = iota
	// New is a new file system: Type has its type, Data its options.
	New
	// Bind is a file or directory of the host.
	Bind
	// MaskedFile and MaskedDir hide a path.
	MaskedFile
	MaskedDir
	// ReadOnly is a part of procfs or sysfs that cannot be written.
	ReadOnly
	// Hierarchy is one of cgroup v1.
	Hierarchy
)

// Mount is one mount of a container.
type Mount struct {
	Kind Kind
	// At is where it is in the container. No link is in it.
	At string
	// Type is the type of file system, Source what Kind Bind shows.
	Type, Source string
	// Data are the options of the file system.
	Data []string
	// The flags of the mount, of Kind Bind with those of the mount that the source is on. Atime is noatime, relatime or strictatime, "" for relatime.
	ReadOnly, NoSuid, NoDev, NoExec bool
	Atime                           string
}

// Of returns the mounts of a request, the root first, and each after those that it is below. rootfs is the root
// filesystem on the host, which does not change. Kind Unsupported for mounts that are not restored.
func Of(spec *specs.Spec, rootfs string) ([]Mount, error) {
	p := &plan{rootfs: rootfs, mounts: []Mount{{Kind: Root, At: "/", ReadOnly: spec.Root.Readonly}}}
	hasCgroupNS := slices.ContainsFunc(spec.Linux.Namespaces, func(ns specs.LinuxNamespace) bool { return ns.Type == specs.CgroupNamespace })
	for i := range spec.Mounts {
		if err := p.add(&spec.Mounts[i], hasCgroupNS); err != nil {
			return nil, fmt.Errorf("mount %s: %w", spec.Mounts[i].Destination, err)
		}
	}
	for _, at := range spec.Linux.MaskedPaths {
		if err := p.mask(at); err != nil {
			return nil, fmt.Errorf("masked path %s: %w", at, err)
		}
	}
	for _, at := range spec.Linux.ReadonlyPaths {
		if err := p.protect(at); err != nil {
			return nil, fmt.Errorf("read-only path %s: %w", at, err)
		}
	}
	return p.mounts, nil
}

type plan struct {
	rootfs string
	mounts []Mount
}

func unsupported(why string) error {
	return fmt.Errorf("%s is not restored from a checkpoint: %w", why, errs.Unsupported)
}

// add adds a mount of the spec.
func (p *plan) add(m *specs.Mount, hasCgroupNS bool) error {
	at, err := p.resolve(m.Destination)
	if err != nil {
		return err
	}
	if slices.ContainsFunc(p.mounts, func(other Mount) bool { return other.At == at }) {
		return unsupported("a mount over another")
	}
	if len(m.UIDMappings)+len(m.GIDMappings) > 0 {
		return unsupported("a mount with mapped ids")
	}
	planned := Mount{Kind: New, At: at, Type: m.Type}
	bind := m.Type == "bind"
	for _, option := range m.Options {
		switch option {
		case "bind", "rbind":
			bind = true
		case "ro", "rro":
			planned.ReadOnly = true
		case "nosuid":
			planned.NoSuid = true
		case "nodev":
			planned.NoDev = true
		case "noexec":
			planned.NoExec = true
		case "noatime", "relatime", "strictatime":
			planned.Atime = option
		case "rw", "suid", "dev", "exec", "private", "rprivate":
		default:
			planned.Data = append(planned.Data, option)
		}
	}
	if bind {
		if len(planned.Data) > 0 {
			return unsupported("a bind mount with the option " + planned.Data[0])
		}
		planned.Kind, planned.Type, planned.Source = Bind, "", m.Source
		if err := planned.inherit(slices.Contains(m.Options, "rbind")); err != nil {
			return err
		}
		p.mounts = append(p.mounts, planned)
		return nil
	}
	switch m.Type {
	case "proc", "sysfs", "mqueue", "devpts":
	case "tmpfs":
		if slices.Contains(planned.Data, "tmpcopyup") {
			return unsupported("a tmpfs that begins as a copy")
		}
	case "cgroup":
		if !hasCgroupNS {
			return unsupported("a container without a cgroup namespace of its own")
		}
		return p.cgroups(planned)
	default:
		return unsupported("a file system of type " + m.Type)
	}
	p.mounts = append(p.mounts, planned)
	return nil
}

// inherit adds the flags of the mount that the source is on: CRIU sets those of the plan, and would clear what the host
// has. It refuses a source with mounts below it that are asked for: CRIU binds one mount. A source that is missing has
// neither; the OCI runtime reports it.
func (m *Mount) inherit(all bool) error {
	source, err := filepath.EvalSymlinks(m.Source)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	var st unix.Statfs_t
	if err == nil {
		err = unix.Statfs(source, &st)
	}
	if err != nil {
		return fmt.Errorf("cannot read the flags of its source %s: %w", m.Source, err)
	}
	has := func(flag int64) bool { return int64(st.Flags)&flag != 0 } //nolint:unconvert // 32 bits on some architectures
	m.ReadOnly, m.NoSuid = m.ReadOnly || has(unix.ST_RDONLY), m.NoSuid || has(unix.ST_NOSUID)
	m.NoDev, m.NoExec = m.NoDev || has(unix.ST_NODEV), m.NoExec || has(unix.ST_NOEXEC)
	if m.Atime == "" && has(unix.ST_NOATIME) {
		m.Atime = "noatime"
	}
	if !all {
		return nil
	}
	below, err := mountinfo.GetMounts(func(info *mountinfo.Info) (skip, stop bool) {
		return !strings.HasPrefix(info.Mountpoint, strings.TrimSuffix(source, "/")+"/") || info.Mountpoint == "/", false
	})
	if err != nil {
		return fmt.Errorf("cannot find the mounts below its source: %w", err)
	}
	if len(below) > 0 {
		return unsupported("a volume with a mount below it (" + below[0].Mountpoint + ")")
	}
	return nil
}

// resolve returns where a path of the container leads, as OCI runtimes do.
func (p *plan) resolve(at string) (string, error) {
	joined, err := securejoin.SecureJoin(p.rootfs, at)
	if err != nil {
		return "", err
	}
	return path.Clean("/" + strings.TrimPrefix(joined, filepath.Clean(p.rootfs))), nil
}

// cgroups adds the mounts of cgroups: one of v2, or a tmpfs with one of each hierarchy of v1.
func (p *plan) cgroups(planned Mount) error {
	names, err := hierarchies()
	if err != nil {
		return err
	}
	planned.Data = nil
	if len(names) == 0 {
		planned.Type = "cgroup2"
		p.mounts = append(p.mounts, planned)
		return nil
	}
	top := planned
	// Its mount points are made in it.
	top.Type, top.ReadOnly, top.Data = "tmpfs", false, []string{"mode=755"}
	p.mounts = append(p.mounts, top)
	for _, name := range names {
		one := planned
		one.Kind, one.Type, one.At, one.Data = Hierarchy, "cgroup", path.Join(planned.At, strings.TrimPrefix(name, "name=")), []string{name}
		p.mounts = append(p.mounts, one)
	}
	return nil
}

// hierarchies returns the controllers of each hierarchy of cgroup v1 that the host has mounted.
func hierarchies() ([]string, error) {
	f, err := os.Open("/proc/self/cgroup")
	if err != nil {
		return nil, err
	}
	defer f.Close()
	mounted, err := mountinfo.GetMounts(mountinfo.FSTypeFilter("cgroup"))
	if err != nil {
		return nil, err
	}
	var names []string
	for lines := bufio.NewScanner(f); lines.Scan(); {
		parts := strings.SplitN(lines.Text(), ":", 3)
		if len(parts) != 3 || parts[1] == "" {
			continue
		}
		at := filepath.Join("/sys/fs/cgroup", strings.TrimPrefix(parts[1], "name="))
		if slices.ContainsFunc(mounted, func(m *mountinfo.Info) bool { return m.Mountpoint == at }) {
			names = append(names, parts[1])
		}
	}
	slices.Sort(names)
	return names, nil
}

// on reports which kind of file a path of the container is: below procfs and sysfs those of the host's, which are the same.
func (p *plan) on(at string) (info fs.FileInfo, err error) {
	if at == "/proc" || at == "/sys" || strings.HasPrefix(at, "/proc/") || strings.HasPrefix(at, "/sys/") {
		info, err = os.Lstat(at)
	} else {
		info, err = os.Lstat(filepath.Join(p.rootfs, at))
	}
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil //nolint:nilnil // nothing is there
	}
	return info, err
}

func (p *plan) mask(at string) error {
	at, err := p.resolve(at)
	if err != nil {
		return err
	}
	info, err := p.on(at)
	switch {
	case info == nil || err != nil:
		return err
	case info.IsDir():
		p.mounts = append(p.mounts, Mount{Kind: MaskedDir, At: at, Type: "tmpfs", ReadOnly: true})
	default:
		p.mounts = append(p.mounts, Mount{Kind: MaskedFile, At: at})
	}
	return nil
}

// protect adds a read-only part of a file system that is mounted: of procfs and sysfs only.
func (p *plan) protect(at string) error {
	at, err := p.resolve(at)
	if err != nil {
		return err
	}
	info, err := p.on(at)
	if info == nil || err != nil {
		return err
	}
	below := Below(p.mounts, at)
	if below == nil || below.Type != "proc" && below.Type != "sysfs" {
		return unsupported("a read-only path outside of /proc and /sys")
	}
	one := *below
	one.Kind, one.At, one.ReadOnly = ReadOnly, at, true
	p.mounts = append(p.mounts, one)
	return nil
}

// Below returns the mount that a path is on, nil when the root is not in the list.
func Below(mounts []Mount, at string) *Mount {
	var nearest *Mount
	for i := range mounts {
		m := &mounts[i]
		if (at == m.At || m.At == "/" || strings.HasPrefix(at, m.At+"/")) && (nearest == nil || len(m.At) >= len(nearest.At)) {
			nearest = m
		}
	}
	return nearest
}
