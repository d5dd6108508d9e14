package checkpoint

import (
	"errors"
	"fmt"
	"os"
	"path"
	"slices"
	"strings"

	"github.com/moby/sys/mountinfo"
	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/berthrun/berth/internal/errs"
)

// inside returns the kinds of file system that CRIU writes into its images, with what is in them. Mounts of all others,
// such as those of volumes, are outside of a dump: a restore gets them from its own request.
func inside(spec *specs.Spec) []string {
	kinds := []string{"proc", "sysfs", "tmpfs", "mqueue", "devpts"}
	// In a cgroup namespace of its own CRIU, and runc, make the mounts again; otherwise they are bind mounts of the host's.
	if slices.ContainsFunc(spec.Linux.Namespaces, func(ns specs.LinuxNamespace) bool { return ns.Type == specs.CgroupNamespace }) {
		kinds = append(kinds, "cgroup", "cgroup2")
	}
	return kinds
}

// external returns the mount points of a container whose content is not written.
func external(pid int, spec *specs.Spec) ([]string, error) {
	f, err := os.Open(fmt.Sprintf("/proc/%d/mountinfo", pid))
	if errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("its init has ended: %w", errs.State)
	}
	if err != nil {
		return nil, fmt.Errorf("cannot read its mounts: %w", err)
	}
	defer f.Close()
	mounts, err := mountinfo.GetMountsFromReader(f, nil)
	if err != nil {
		return nil, fmt.Errorf("cannot read its mounts: %w", err)
	}
	kinds := inside(spec)
	var points []string
	for _, m := range mounts {
		if m.Mountpoint != "/" && !slices.Contains(points, m.Mountpoint) && isExternal(m, spec.Mounts, kinds) {
			points = append(points, m.Mountpoint)
		}
	}
	return points, nil
}

// isExternal reports whether a mount is outside: it is a bind mount of the request, or below one, or of a file system
// that is none of the kinds that CRIU makes again.
func isExternal(m *mountinfo.Info, requested []specs.Mount, kinds []string) bool {
	if !slices.Contains(kinds, m.FSType) {
		return true
	}
	var nearest *specs.Mount
	for i, r := range requested {
		at := path.Clean(r.Destination)
		if (m.Mountpoint == at || strings.HasPrefix(m.Mountpoint, at+"/")) && (nearest == nil || len(at) >= len(path.Clean(nearest.Destination))) {
			nearest = &requested[i]
		}
	}
	return nearest != nil && (nearest.Type == "bind" || slices.Contains(nearest.Options, "bind") || slices.Contains(nearest.Options, "rbind"))
}

// upperOf returns the directory with the changes of a root filesystem, by the host's own mounts: those that the
// container sees are under its control. Kind State when it is no overlay.
func upperOf(rootfs string) (string, error) {
	mounts, err := mountinfo.GetMounts(mountinfo.SingleEntryFilter(rootfs))
	if err != nil {
		return "", fmt.Errorf("cannot read the mounts of the host: %w", err)
	}
	if len(mounts) > 0 {
		// A copy on an overlay is a mount of a directory in that, whose upper directory is the host's.
		if m := mounts[len(mounts)-1]; m.FSType == "overlay" && m.Root == "/" {
			for option := range strings.SplitSeq(m.VFSOptions, ",") {
				if upper, is := strings.CutPrefix(option, "upperdir="); is && path.IsAbs(upper) {
					return upper, nil
				}
			}
		}
	}
	return "", fmt.Errorf("its root filesystem %s is no overlay whose changes can be found: %w", rootfs, errs.State)
}
