package frozen

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"syscall"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"

	"github.com/berthrun/berth/internal/engine/native/checkpoint/mountplan"
	"github.com/berthrun/berth/internal/errs"
)

// checkMounts compares the mounts of the init with the plan: each is there once, on the right one, and is what the
// request says. It returns where each is, by the kernel's number.
func (r *Restored) checkMounts() (map[int]string, error) {
	f, err := os.Open(fmt.Sprintf("/proc/%d/mountinfo", r.Init))
	if err != nil {
		return nil, err
	}
	defer f.Close()
	found, err := mountinfo.GetMountsFromReader(f, nil)
	if err != nil {
		return nil, err
	}
	root, err := os.OpenFile(fmt.Sprintf("/proc/%d/root", r.Init), unix.O_PATH|unix.O_DIRECTORY, 0)
	if err != nil {
		return nil, err
	}
	defer root.Close()
	numbers, byPlace := map[int]string{}, map[string]*mountinfo.Info{}
	for _, m := range found {
		if byPlace[m.Mountpoint] != nil {
			return nil, bad(m.Mountpoint, "there are two")
		}
		byPlace[m.Mountpoint], numbers[m.ID] = m, m.Mountpoint
	}
	for i := range r.Mounts {
		planned := &r.Mounts[i]
		m := byPlace[planned.At]
		if m == nil {
			return nil, bad(planned.At, "it is missing")
		}
		delete(byPlace, planned.At)
		if planned.At != "/" {
			others := slices.DeleteFunc(slices.Clone(r.Mounts), func(o mountplan.Mount) bool { return o.At == planned.At })
			if parent := mountplan.Below(others, planned.At); numbers[m.Parent] != parent.At {
				return nil, bad(planned.At, "it is on %q and not on %s", numbers[m.Parent], parent.At)
			}
		}
		if err := checkFlags(planned, m); err != nil {
			return nil, err
		}
		if err := r.checkMount(planned, m, root); err != nil {
			return nil, err
		}
	}
	for place := range byPlace {
		return nil, bad(place, "the request does not have it")
	}
	return numbers, r.checkProc(root)
}

func bad(at, format string, args ...any) error {
	return fmt.Errorf("mount %.200q: %s: %w", at, fmt.Sprintf(format, args...), errs.Invalid)
}

func checkFlags(planned *mountplan.Mount, m *mountinfo.Info) error {
	own, super := strings.Split(m.Options, ","), strings.Split(m.VFSOptions, ",")
	for _, each := range []struct {
		wanted bool
		option string
		also   bool
	}{
		{planned.ReadOnly, "ro", slices.Contains(super, "ro")}, {planned.NoSuid, "nosuid", false}, {planned.NoDev, "nodev", false}, {planned.NoExec, "noexec", false},
	} {
		if each.wanted && !each.also && !slices.Contains(own, each.option) {
			return bad(planned.At, "it is not %s (%s)", each.option, m.Options)
		}
	}
	if m.Optional != "" {
		return bad(planned.At, "it is shared with others (%s)", m.Optional)
	}
	return nil
}

// checkMount compares what is mounted.
func (r *Restored) checkMount(planned *mountplan.Mount, m *mountinfo.Info, root *os.File) error {
	switch planned.Kind {
	case mountplan.Root:
		return same(planned.At, root, planned.At, r.Rootfs)
	case mountplan.Bind:
		return same(planned.At, root, planned.At, planned.Source)
	case mountplan.MaskedFile:
		var st unix.Stat_t
		if err := statIn(root, planned.At, &st); err != nil {
			return bad(planned.At, "%v", err)
		}
		if st.Mode&unix.S_IFMT != unix.S_IFCHR || uint64(st.Rdev) != unix.Mkdev(1, 3) { //nolint:unconvert // 32 bits on some architectures
			return bad(planned.At, "it does not hide what is below it")
		}
		return nil
	case mountplan.Hierarchy:
		return r.checkHierarchy(planned, m)
	case mountplan.New, mountplan.MaskedDir:
		if planned.Type == "cgroup2" {
			return r.checkHierarchy(planned, m)
		}
		if m.FSType != planned.Type || m.Root != "/" {
			return bad(planned.At, "it is %s of a %s, and not a %s", m.Root, m.FSType, planned.Type)
		}
		return nil
	default:
		if top := mountplan.Below(r.Mounts[:], planned.At); m.FSType != top.Type {
			return bad(planned.At, "it is a %s, and not a %s", m.FSType, planned.Type)
		}
		return nil
	}
}

// checkHierarchy refuses a hierarchy of cgroups that shows more than the container's own. The kernel shows its root as
// this process sees it.
func (r *Restored) checkHierarchy(planned *mountplan.Mount, m *mountinfo.Info) error {
	names := []string{""}
	if planned.Kind == mountplan.Hierarchy {
		names = strings.Split(strings.Join(planned.Data, ","), ",")
	}
	own := ""
	for _, name := range names {
		own = cmp.Or(own, r.Cgroups[name])
	}
	if m.FSType != planned.Type || own != "" && (m.Root == "/" || !strings.HasSuffix(own, m.Root)) {
		return bad(planned.At, "it is %s of a %s, and not the container's own part", m.Root, m.FSType)
	}
	return nil
}

// statIn reads what is at a path below the root of the container, which leads nowhere else.
func statIn(root *os.File, at string, st *unix.Stat_t) error {
	fd, err := unix.Openat2(int(root.Fd()), at, &unix.OpenHow{Flags: unix.O_PATH | unix.O_CLOEXEC | unix.O_NOFOLLOW, Resolve: unix.RESOLVE_IN_ROOT | unix.RESOLVE_NO_SYMLINKS})
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	return unix.Fstat(fd, st)
}

// same compares a file of the container with one of the host.
func same(at string, root *os.File, path, source string) error {
	var own unix.Stat_t
	if err := statIn(root, path, &own); err != nil {
		return bad(at, "%v", err)
	}
	info, err := os.Stat(source)
	if err != nil {
		return bad(at, "%v", err)
	}
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok || uint64(st.Dev) != uint64(own.Dev) || st.Ino != own.Ino { //nolint:unconvert // 32 bits on some architectures
		return bad(at, "it is not %s", source)
	}
	return nil
}

// checkProc refuses a procfs of another PID namespace.
func (r *Restored) checkProc(root *os.File) error {
	for _, m := range r.Mounts {
		if m.Kind != mountplan.New || m.Type != "proc" {
			continue
		}
		shown, err := namespaceAt(fmt.Sprintf("/proc/self/fd/%d%s/1/ns/pid", root.Fd(), m.At))
		if err != nil {
			return bad(m.At, "%v", err)
		}
		own, err := namespaceAt(fmt.Sprintf("/proc/%d/ns/pid", r.Init))
		if err != nil || own != shown {
			return errors.Join(err, bad(m.At, "it shows the processes of another PID namespace"))
		}
	}
	return nil
}

// checkFiles refuses open files that are not of the kinds that are restored.
func (r *Restored) checkFiles(pid int, mounts map[int]string) error {
	for _, link := range []string{"root", "cwd", "exe"} {
		target, err := os.Readlink(fmt.Sprintf("/proc/%d/%s", pid, link))
		if err != nil {
			return differs(pid, "%v", err)
		}
		if link == "root" && target != "/" {
			return differs(pid, "its root directory is %s", target)
		}
	}
	dir := fmt.Sprintf("/proc/%d/fd", pid)
	entries, err := os.ReadDir(dir)
	if err != nil {
		return differs(pid, "%v", err)
	}
	for _, entry := range entries {
		var st unix.Stat_t
		if err := unix.Stat(dir+"/"+entry.Name(), &st); err != nil {
			return differs(pid, "%v", err)
		}
		switch kind := st.Mode & unix.S_IFMT; kind {
		case unix.S_IFREG, unix.S_IFDIR:
			at, err := mountOf(pid, entry.Name())
			if err != nil {
				return differs(pid, "%v", err)
			}
			if place, known := mounts[at]; !known || place != "/" && (place != "/dev" || kind != unix.S_IFDIR) {
				return differs(pid, "descriptor %s is of a file on the mount %q", entry.Name(), place)
			}
		case unix.S_IFCHR:
			if rdev := uint64(st.Rdev); unix.Major(rdev) != 1 || !slices.Contains([]uint32{3, 5, 7, 8, 9}, unix.Minor(rdev)) { //nolint:unconvert // 32 bits on some architectures
				return differs(pid, "descriptor %s is of device %d:%d", entry.Name(), unix.Major(rdev), unix.Minor(rdev))
			}
		case unix.S_IFIFO:
		case 0: // an anonymous inode
			target, err := os.Readlink(dir + "/" + entry.Name())
			if err != nil || !slices.Contains([]string{"anon_inode:[eventfd]", "anon_inode:[eventpoll]", "anon_inode:[signalfd]", "anon_inode:[timerfd]"}, target) {
				return differs(pid, "descriptor %s is of %q", entry.Name(), target)
			}
		default:
			return differs(pid, "descriptor %s is of a file with mode %#o", entry.Name(), st.Mode)
		}
	}
	return nil
}

// mountOf returns the number of the mount that a descriptor is on.
func mountOf(pid int, fd string) (id int, err error) {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/fdinfo/%s", pid, fd))
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(data)) {
		if _, err := fmt.Sscanf(line, "mnt_id: %d", &id); err == nil {
			return id, nil
		}
	}
	return 0, errors.New("a descriptor is on no mount")
}
