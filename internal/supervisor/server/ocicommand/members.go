package ocicommand

import (
	"fmt"
	"os"
	"path"
	"strings"

	"github.com/moby/sys/mountinfo"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/sys/cgroup"
)

// member is where a container is in one hierarchy of cgroups.
type member struct {
	// controllers are those of the hierarchy, one of them "name=..." where it has no controller, "" for v2.
	controllers []string
	// path is that of the cgroup in the hierarchy. own is true for a cgroup of the container's own, false where the
	// container stays in the supervisor's.
	path string
	own  bool
}

// membersOf returns where a container is in each hierarchy.
func membersOf(paths cgroup.Paths) ([]member, error) {
	data, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		return nil, fmt.Errorf("cannot find the cgroup hierarchies: %w", err)
	}
	mounts, err := mountinfo.GetMounts(mountinfo.FSTypeFilter("cgroup", "cgroup2"))
	if err != nil {
		return nil, fmt.Errorf("cannot find the cgroup hierarchies: %w", err)
	}
	var members []member
	for line := range strings.Lines(string(data)) {
		parts := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(parts) != 3 {
			continue
		}
		m := member{controllers: strings.Split(parts[1], ","), path: parts[2]}
		for _, name := range m.controllers {
			dir, known := paths[name]
			if !known {
				continue
			}
			at, found := inHierarchy(mounts, dir)
			if !found {
				return nil, fmt.Errorf("cgroup %s is below no mount of a hierarchy: %w", dir, errs.Unsupported)
			}
			m.path, m.own = at, true
		}
		members = append(members, m)
	}
	return members, nil
}

// inHierarchy returns the path of a cgroup's directory in its hierarchy.
func inHierarchy(mounts []*mountinfo.Info, dir string) (at string, found bool) {
	length := -1
	for _, m := range mounts {
		if below, is := strings.CutPrefix(dir, m.Mountpoint+"/"); is && len(m.Mountpoint) > length {
			at, found, length = path.Join("/", m.Root, below), true, len(m.Mountpoint)
		}
	}
	return at, found
}
