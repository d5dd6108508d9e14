// Package cgroup manages cgroups on v1, hybrid and v2 hosts: it finds, makes and removes
// them, limits them, reads their figures, and kills their processes. Tree is the layout of
// the host, and Paths are the directories of one cgroup in it.
//
// The cgroups of containers and their limits are made by libcontainer, in the
// supervisor. The package knows no pods and no containers.
package cgroup

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"

	"github.com/berthrun/berth/internal/errs"
)

// Tree is the host's cgroup file system.
type Tree struct {
	// V2 is true on a unified hierarchy.
	V2 bool
	// mounts maps controller to mount point; on v2 the only key is "". On v1 a
	// named hierarchy has its name ("name=systemd"), and "" is the v2 hierarchy
	// without controllers of a hybrid host: the OCI runtime makes cgroups there too.
	mounts map[string]string
}

// Find reads the mounted hierarchies. Kind Unsupported when there are no cgroups.
func Find() (*Tree, error) {
	f, err := os.Open("/proc/self/mountinfo")
	if err != nil {
		return nil, fmt.Errorf("cannot find the cgroups: %w", err)
	}
	defer f.Close()
	return parse(f)
}

func parse(r io.Reader) (*Tree, error) {
	infos, err := mountsOf(r)
	if err != nil {
		return nil, fmt.Errorf("cannot find the cgroups: %w", err)
	}
	tree := &Tree{mounts: map[string]string{}}
	unified := ""
	for _, info := range infos {
		if info.FSType == "cgroup2" {
			if unified == "" || info.Mountpoint == "/sys/fs/cgroup" {
				unified = info.Mountpoint
			}
			continue
		}
		for option := range strings.SplitSeq(info.VFSOptions, ",") {
			if _, ok := tree.mounts[option]; !ok && isController(option) {
				tree.mounts[option] = info.Mountpoint
			}
		}
	}
	if len(tree.mounts) == 0 {
		if unified == "" {
			return nil, fmt.Errorf("no cgroup file system is mounted: %w", errs.Unsupported)
		}
		tree.V2 = true
	}
	if unified != "" {
		tree.mounts[""] = unified
	}
	return tree, nil
}

// Roots returns where the hierarchies are mounted, each once. One that is mounted from
// below its root, as in a container, is left out: its cgroups are not the host's.
func Roots() ([]string, error) {
	f, err := os.Open("/proc/self/mountinfo")
	if err != nil {
		return nil, fmt.Errorf("cannot find the cgroup mounts: %w", err)
	}
	defer f.Close()
	infos, err := mountsOf(f)
	if err != nil {
		return nil, fmt.Errorf("cannot find the cgroup mounts: %w", err)
	}
	return rootsOf(infos), nil
}

// mountsOf returns the mounts of cgroups in a mount table. A full node has thousands of others, which are not
// taken apart.
func mountsOf(table io.Reader) ([]*mountinfo.Info, error) {
	const longest = 1 << 20
	var lines bytes.Buffer
	scanner := bufio.NewScanner(table)
	scanner.Buffer(make([]byte, 64<<10), longest)
	for scanner.Scan() {
		// " - " ends the optional fields; what follows is the type of the file system.
		if bytes.Contains(scanner.Bytes(), []byte(" - cgroup")) {
			lines.Write(scanner.Bytes())
			lines.WriteByte('\n')
		}
	}
	if err := scanner.Err(); err != nil {
		return nil, err
	}
	return mountinfo.GetMountsFromReader(&lines, mountinfo.FSTypeFilter("cgroup", "cgroup2"))
}

func rootsOf(infos []*mountinfo.Info) []string {
	var roots []string
	seen := map[[2]int]bool{}
	for _, info := range infos {
		device := [2]int{info.Major, info.Minor}
		if info.Root == "/" && !seen[device] {
			seen[device] = true
			roots = append(roots, info.Mountpoint)
		}
	}
	return roots
}

// Options are those of the mount of a unified hierarchy that the kernel keeps for the
// whole of it: a mount of it in the first cgroup namespace sets all of them. None on v1.
func (t *Tree) Options() ([]string, error) {
	if !t.V2 {
		return nil, nil
	}
	f, err := os.Open("/proc/self/mountinfo")
	if err != nil {
		return nil, fmt.Errorf("cannot read how cgroups are mounted: %w", err)
	}
	defer f.Close()
	return optionsOf(f)
}

func optionsOf(r io.Reader) ([]string, error) {
	infos, err := mountinfo.GetMountsFromReader(r, mountinfo.FSTypeFilter("cgroup2"))
	if err != nil {
		return nil, fmt.Errorf("cannot read how cgroups are mounted: %w", err)
	}
	var options []string
	for _, info := range infos { // all have the same
		for option := range strings.SplitSeq(info.VFSOptions, ",") {
			switch option {
			case "nsdelegate", "favordynmods", "memory_localevents", "memory_recursiveprot", "memory_hugetlb_accounting", "pids_localevents":
				if !slices.Contains(options, option) {
					options = append(options, option)
				}
			}
		}
	}
	return options, nil
}

// isController reports whether an option of a mount is a controller or a named hierarchy.
func isController(option string) bool {
	switch option {
	case "rw", "ro", "xattr", "noprefix", "clone_children", "cpuset_v2_mode", "favordynmods":
		return false
	}
	return !strings.Contains(option, "=") || strings.HasPrefix(option, "name=")
}

// Has reports whether a controller can be used.
func (t *Tree) Has(controller string) bool {
	if !t.V2 {
		return t.mounts[controller] != ""
	}
	data, err := os.ReadFile(filepath.Join(t.mounts[""], "cgroup.controllers"))
	return err == nil && slices.Contains(strings.Fields(string(data)), controller)
}

// CanLimitSwap reports whether swap can be limited.
func (t *Tree) CanLimitSwap() bool {
	if !t.V2 {
		_, err := os.Stat(filepath.Join(t.mounts["memory"], "memory.memsw.limit_in_bytes"))
		return t.mounts["memory"] != "" && err == nil
	}
	// The root cgroup has no such file; any other has it.
	entries, err := filepath.Glob(filepath.Join(t.mounts[""], "*", "memory.swap.max"))
	return err == nil && len(entries) > 0
}

// Paths returns where the cgroup ("/kubepods/podX") is in each hierarchy.
func (t *Tree) Paths(cgroup string) Paths {
	paths := Paths{}
	for controller, mount := range t.mounts {
		paths[controller] = filepath.Join(mount, cgroup)
	}
	return paths
}

// PathOf returns the cgroup that paths are of: the inverse of Paths.
func (t *Tree) PathOf(paths Paths) string {
	key := ""
	if !t.V2 {
		key = "memory"
	}
	return path.Join("/", strings.TrimPrefix(paths[key], t.mounts[key]))
}

// OfProcess returns the cgroup of a process in each hierarchy. Kind NotFound when there is no
// such process.
func (t *Tree) OfProcess(pid int) (Paths, error) {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", pid))
	if errors.Is(err, os.ErrNotExist) || errors.Is(err, unix.ESRCH) {
		return nil, fmt.Errorf("process %d: %w", pid, errs.NotFound)
	}
	if err != nil {
		return nil, fmt.Errorf("cannot find the cgroup of process %d: %w", pid, err)
	}
	return t.parseOfProcess(string(data)), nil
}

// OfContainer returns the cgroup of a container by one of its processes, which may be in a cgroup
// below it: the hierarchies in which a name in the path has the container's id, up to that name. The
// others belong to others, too: a hierarchy of v1 shows a zombie in the root, and a pid can have
// become another process's. Kind NotFound when no hierarchy has the id.
func (t *Tree) OfContainer(pid int, id string) (Paths, error) {
	paths, err := t.OfProcess(pid)
	if err != nil {
		return nil, err
	}
	if paths = paths.named(id); len(paths) == 0 {
		return nil, fmt.Errorf("process %d in a cgroup of container %s: %w", pid, id, errs.NotFound)
	}
	return paths, nil
}

// parseOfProcess reads lines "number:controllers:path" of /proc/PID/cgroup. The controllers of
// the unified hierarchy are empty.
func (t *Tree) parseOfProcess(text string) Paths {
	paths := Paths{}
	for line := range strings.Lines(text) {
		fields := strings.SplitN(strings.TrimSuffix(line, "\n"), ":", 3)
		if len(fields) != 3 || !filepath.IsAbs(fields[2]) {
			continue
		}
		for controller := range strings.SplitSeq(fields[1], ",") {
			if mount, ok := t.mounts[controller]; ok {
				paths[controller] = filepath.Join(mount, fields[2])
			}
		}
	}
	return paths
}
