package criuimage

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"fmt"
	"io"
	"os"
	"path"
	"slices"
	"strings"

	"github.com/checkpoint-restore/go-criu/v8/crit/images/mnt"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/proto"

	"github.com/berthrun/berth/internal/engine/native/checkpoint/mountplan"
)

// The numbers of mounts and of devices in the images that Fit writes.
const (
	firstMount  = 100
	firstDevice = 1000
	// outside is the parent of the root: no mount of the container.
	outside = 1
	// maxMounts bounds the mounts of an archive.
	maxMounts = 1000
)

// readMounts refuses an archive with a mount that the request does not have, and numbers those of the request. Nothing
// else is taken from the archive's.
func (f *fitting) readMounts() error {
	planned, err := mountplan.Of(f.Spec, f.Rootfs)
	if err != nil {
		return err
	}
	f.planned = planned
	var images []string
	for name := range f.names {
		if strings.HasPrefix(name, "mountpoints-") {
			images = append(images, name)
		}
	}
	slices.Sort(images)
	if len(images) != 1 {
		return bad(prefix+"mountpoints", "there are %d mount namespaces, not one", len(images))
	}
	in, err := f.openKept(images[0], "MNTS")
	if err != nil {
		return err
	}
	for n := 0; in.more(); n++ {
		m := &mnt.MntEntry{}
		if err := in.next(m); err != nil {
			return err
		}
		if n > maxMounts {
			return bad(in.name, "it has more than %d mounts", maxMounts)
		}
		if !f.gives(m.GetMountpoint()) {
			return bad(in.name, "a mount at %.200q: the request does not have it", m.GetMountpoint())
		}
		f.archived = append(f.archived, m)
	}
	return nil
}

// gives reports whether the request has a mount at a path. What is hidden and made read-only, and the hierarchies of
// cgroups, depend on the host, too.
func (f *fitting) gives(at string) bool {
	if slices.ContainsFunc(f.planned, func(m mountplan.Mount) bool { return m.At == at }) {
		return true
	}
	return path.Clean(at) == at && slices.ContainsFunc([]string{"/proc/", "/sys/"}, func(top string) bool { return strings.HasPrefix(at, top) })
}

// mountOf returns the number of the mount that a path is on, in the request and in the archive.
func (f *fitting) mountOf(at string) (m *mountplan.Mount, number, archived uint32) {
	m = mountplan.Below(f.planned, at)
	number = firstMount + uint32(slices.IndexFunc(f.planned, func(other mountplan.Mount) bool { return other.At == m.At })) //nolint:gosec // it is there
	length := -1
	for _, other := range f.archived {
		p := other.GetMountpoint()
		if (at == p || p == "/" || strings.HasPrefix(at, p+"/")) && len(p) > length {
			length, archived = len(p), other.GetMntId()
		}
	}
	return m, number, archived
}

// writeMounts writes the mounts of the request, and the content of its new file systems.
func (f *fitting) writeMounts() error {
	w := newWritten("MNTS")
	for i, m := range slices.Backward(f.planned) {
		e := f.entryOf(uint32(i), &m) //nolint:gosec // short
		if err := w.add(e); err != nil {
			return err
		}
		if m.Type != "tmpfs" {
			continue
		}
		content, err := f.contentOf(m.At)
		if err == nil {
			err = save(f.at("tmpfs-dev-%d.tar.gz.img", e.GetRootDev()), content)
		}
		if err != nil {
			return err
		}
	}
	return save(f.at("mountpoints-%d.img", mntNS), w.data)
}

// entryOf describes a mount for CRIU.
func (f *fitting) entryOf(i uint32, m *mountplan.Mount) *mnt.MntEntry {
	e := &mnt.MntEntry{
		MntId: proto.Uint32(firstMount + i), RootDev: proto.Uint32(firstDevice + i), ParentMntId: proto.Uint32(outside),
		Root: proto.String("/"), Mountpoint: proto.String(m.At), Source: proto.String("none"), Options: proto.String(strings.Join(m.Data, ",")),
		SharedId: proto.Uint32(0), MasterId: proto.Uint32(0),
	}
	if m.At != "/" {
		var above []mountplan.Mount
		for _, other := range f.planned {
			if other.At != m.At {
				above = append(above, other)
			}
		}
		parent := mountplan.Below(above, m.At)
		e.ParentMntId = proto.Uint32(firstMount + uint32(slices.IndexFunc(f.planned, func(o mountplan.Mount) bool { return o.At == parent.At }))) //nolint:gosec // it is there
	}
	kind := mnt.Fstype_UNSUPPORTED
	switch m.Kind {
	case mountplan.Root:
		kind, e.Source = mnt.Fstype_OVERLAYFS, proto.String("overlay")
	case mountplan.Bind:
		e.ExtKey = proto.String(m.At)
	case mountplan.MaskedFile:
		e.ExtKey = proto.String("/dev/null")
	case mountplan.ReadOnly:
		// It is a part of a file system that is mounted above it.
		whole := slices.IndexFunc(f.planned, func(o mountplan.Mount) bool {
			return o.Kind == mountplan.New && o.Type == m.Type && strings.HasPrefix(m.At, o.At+"/")
		})
		e.RootDev = proto.Uint32(firstDevice + uint32(whole)) //nolint:gosec // it is there: package mountplan has looked it up
		e.Root = proto.String(strings.TrimPrefix(m.At, f.planned[whole].At))
		fallthrough
	case mountplan.New, mountplan.MaskedDir, mountplan.Hierarchy:
		kind = map[string]mnt.Fstype{
			"proc": mnt.Fstype_PROC, "sysfs": mnt.Fstype_SYSFS, "tmpfs": mnt.Fstype_TMPFS, "devpts": mnt.Fstype_DEVPTS,
			"mqueue": mnt.Fstype_MQUEUE, "cgroup": mnt.Fstype_CGROUP, "cgroup2": mnt.Fstype_CGROUP2,
		}[m.Type]
		e.Source = proto.String(m.Type)
	}
	e.Fstype = proto.Uint32(uint32(kind)) //nolint:gosec // one of the constants
	flags, super := flagsOf(m)
	e.Flags, e.SbFlags = proto.Uint32(flags), proto.Uint32(super)
	return e
}

// flagsOf returns the flags of a mount, and those of its file system.
func flagsOf(m *mountplan.Mount) (flags, super uint32) {
	for _, each := range []struct {
		set  bool
		flag uint32
	}{{m.ReadOnly, unix.MS_RDONLY}, {m.NoSuid, unix.MS_NOSUID}, {m.NoDev, unix.MS_NODEV}, {m.NoExec, unix.MS_NOEXEC}} {
		if each.set {
			flags |= each.flag
		}
	}
	flags |= map[string]uint32{"noatime": unix.MS_NOATIME, "strictatime": unix.MS_STRICTATIME, "relatime": unix.MS_RELATIME, "": unix.MS_RELATIME}[m.Atime]
	if m.ReadOnly && (m.Kind == mountplan.New && m.Type == "sysfs" || m.Kind == mountplan.MaskedDir) {
		super = unix.MS_RDONLY
	}
	return flags, super
}

// contentOf returns what is in a new tmpfs, as the request has it: mount points, and devices and links in /dev. What
// the container had in it is not restored.
func (f *fitting) contentOf(at string) ([]byte, error) {
	var out bytes.Buffer
	zip := gzip.NewWriter(&out)
	w := tar.NewWriter(zip)
	headers := []*tar.Header{{Typeflag: tar.TypeDir, Name: "./", Mode: 0o755}}
	if at == "/dev" {
		more, err := f.devicesOf()
		if err != nil {
			return nil, err
		}
		headers = append(headers, more...)
	}
	for _, m := range f.planned {
		below, is := strings.CutPrefix(m.At, at+"/")
		if !is || strings.Contains(below, "/") && mountplan.Below(f.planned, path.Dir(m.At)).At != at {
			continue
		}
		for dir := path.Dir(below); dir != "."; dir = path.Dir(dir) {
			headers = append(headers, &tar.Header{Typeflag: tar.TypeDir, Name: "./" + dir + "/", Mode: 0o755})
		}
		header := &tar.Header{Typeflag: tar.TypeDir, Name: "./" + below + "/", Mode: 0o755}
		if m.Kind == mountplan.Bind {
			info, err := os.Stat(m.Source)
			if err != nil {
				return nil, fmt.Errorf("mount %s: %w", m.At, err)
			}
			if !info.IsDir() {
				header = &tar.Header{Typeflag: tar.TypeReg, Name: "./" + below, Mode: 0o644}
			}
		}
		headers = append(headers, header)
	}
	for _, h := range headers {
		if err := w.WriteHeader(h); err != nil {
			return nil, err
		}
	}
	for _, c := range []io.Closer{w, zip} {
		if err := c.Close(); err != nil {
			return nil, err
		}
	}
	return out.Bytes(), nil
}

// devicesOf returns the links and devices in /dev: those of each container, and those of the request.
func (f *fitting) devicesOf() ([]*tar.Header, error) {
	var headers []*tar.Header
	for _, link := range [][2]string{
		{"fd", "/proc/self/fd"}, {"stdin", "/proc/self/fd/0"}, {"stdout", "/proc/self/fd/1"}, {"stderr", "/proc/self/fd/2"}, {"ptmx", "pts/ptmx"},
	} {
		headers = append(headers, &tar.Header{Typeflag: tar.TypeSymlink, Name: "./" + link[0], Linkname: link[1], Mode: 0o777})
	}
	all := slices.Clone(f.Spec.Linux.Devices)
	for i, name := range []string{"null", "zero", "full", "random", "urandom", "tty"} {
		at := "/dev/" + name
		if slices.ContainsFunc(all, func(d specs.LinuxDevice) bool { return path.Clean(d.Path) == at }) {
			continue
		}
		major, minor := int64(1), []int64{3, 5, 7, 8, 9, 0}[i]
		if name == "tty" {
			major = 5
		}
		all = append(all, specs.LinuxDevice{Path: at, Type: "c", Major: major, Minor: minor})
	}
	for _, d := range all {
		name, is := strings.CutPrefix(path.Clean(d.Path), "/dev/")
		kind, known := map[string]byte{"c": tar.TypeChar, "u": tar.TypeChar, "b": tar.TypeBlock, "p": tar.TypeFifo}[d.Type]
		if !is || !known {
			return nil, unsupported("device "+d.Path, "a device outside of /dev, or of the type %q", d.Type)
		}
		for dir := path.Dir(name); dir != "."; dir = path.Dir(dir) {
			headers = append(headers, &tar.Header{Typeflag: tar.TypeDir, Name: "./" + dir + "/", Mode: 0o755})
		}
		h := &tar.Header{Typeflag: kind, Name: "./" + name, Mode: 0o666, Devmajor: d.Major, Devminor: d.Minor}
		if d.FileMode != nil {
			h.Mode = int64(*d.FileMode & 0o777)
		}
		if d.UID != nil {
			h.Uid = int(*d.UID)
		}
		if d.GID != nil {
			h.Gid = int(*d.GID)
		}
		headers = append(headers, h)
	}
	return headers, nil
}
