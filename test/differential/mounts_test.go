//go:build integration

package differential

import (
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/moby/sys/mountinfo"
)

// mountTree prints a mount table as a tree, without the kernel's numbers. Mounts below one another are
// in the order of their paths, and mounts on one another in the order in which they cover each other.
// The table's own order is that of the numbers, which say when a mount was made, also when it was not
// yet in the tree: it is not compared.
type mountTree struct {
	s *side
	// host has the mount table of the host, to name what a container shares with it.
	host []*mountinfo.Info
	// seen numbers devices and peer groups that are the container's own, in the order of the tree.
	seen     map[string]int
	children map[int][]*mountinfo.Info
	lines    []string
}

// mountsOf is the mount table of a process.
func (s *side) mountsOf(path string) []string {
	table, err := readMounts(path)
	if err != nil {
		return []string{err.Error()}
	}
	host, err := readMounts("/proc/self/mountinfo")
	if err != nil {
		return []string{err.Error()}
	}
	t := &mountTree{s: s, host: host, seen: map[string]int{}, children: map[int][]*mountinfo.Info{}}
	known := map[int]bool{}
	for _, m := range table {
		known[m.ID] = true
	}
	for _, m := range table {
		parent := m.Parent
		if !known[parent] || parent == m.ID {
			parent = 0
		}
		t.children[parent] = append(t.children[parent], m)
	}
	t.walk(nil, 0, false)
	return t.lines
}

func readMounts(path string) ([]*mountinfo.Info, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return mountinfo.GetMountsFromReader(f, nil)
}

// walk prints the mounts on a parent, nil for those without one. covered: nobody sees them, as another mount covers them.
func (t *mountTree) walk(parent *mountinfo.Info, depth int, covered bool) {
	at, cover := 0, -1
	if parent != nil {
		at = parent.ID
		cover = t.coverOf(parent)
	}
	below := t.children[at]
	slices.SortStableFunc(below, func(a, b *mountinfo.Info) int {
		return cmp.Or(cmp.Compare(a.Mountpoint, b.Mountpoint), cmp.Compare(a.ID, b.ID))
	})
	for _, m := range below {
		hidden := covered || cover >= 0 && m.ID != cover
		var propagation []string
		for _, field := range strings.Fields(m.Optional) {
			kind, group, _ := strings.Cut(field, ":")
			propagation = append(propagation, kind+":"+t.group(m, group, hidden || t.coverOf(m) >= 0))
		}
		source := m.Source
		if m.FSType == "cgroup" {
			source = "any" // berth's init clones the host's mount, and so has its name
		}
		line := fmt.Sprintf("%s%s root %s options %s propagation %v type %s source %s device %s super %s", strings.Repeat("  ", depth),
			m.Mountpoint, m.Root, m.Options, propagation, m.FSType, source, t.device(m), m.VFSOptions)
		t.lines = append(t.lines, t.s.normal(line))
		t.walk(m, depth+1, hidden)
	}
}

// coverOf returns the number of the mount that covers another one and all that is on it, -1 for none.
func (t *mountTree) coverOf(m *mountinfo.Info) int {
	for _, on := range t.children[m.ID] {
		if on.Mountpoint == m.Mountpoint {
			return on.ID
		}
	}
	return -1
}

// device names the device of a mount: by the host's mounts of it, or else by a number of ours.
func (t *mountTree) device(m *mountinfo.Info) string {
	var places []string
	for _, h := range t.host {
		if h.Major == m.Major && h.Minor == m.Minor {
			places = append(places, t.s.normal(h.Mountpoint))
		}
	}
	if len(places) > 0 {
		return "of the host's " + slices.Min(places)
	}
	return t.number("device", fmt.Sprint(m.Major, ":", m.Minor))
}

// group names a peer group likewise. The device nodes of the host, which a user namespace gets as mounts, are
// in one group with libcontainer, and each in its own with berth's init. That makes no difference: what is
// mounted on one node is at no other. The group of a mount that another one covers has no name: with libcontainer, a
// volume of a user namespace that is covered by the same volume, shared, gets what is mounted there, and with berth's
// init it does not. Nobody sees that.
func (t *mountTree) group(m *mountinfo.Info, id string, covered bool) string {
	if covered {
		return "of a covered mount"
	}
	var places []string
	for _, h := range t.host {
		for _, field := range strings.Fields(h.Optional) {
			if strings.HasSuffix(field, ":"+id) {
				places = append(places, t.s.normal(h.Mountpoint))
			}
		}
	}
	if len(places) > 0 {
		return "of the host's " + slices.Min(places)
	}
	if m.FSType == "devtmpfs" && m.Root != "/" {
		return "group of node " + m.Root
	}
	return t.number("group", id)
}

func (t *mountTree) number(kind, id string) string {
	key := kind + " " + id
	if _, ok := t.seen[key]; !ok {
		t.seen[key] = len(t.seen) + 1
	}
	return fmt.Sprint(kind, " ", t.seen[key])
}

// hostMounts are the host's mounts in the directory of a container.
func (s *side) hostMounts(id string) []string {
	host, err := readMounts("/proc/self/mountinfo")
	if err != nil {
		return []string{err.Error()}
	}
	var lines []string
	for _, m := range host {
		if strings.HasPrefix(m.Mountpoint, filepath.Join(s.dir, "c", id)+"/") {
			lines = append(lines, s.normal(fmt.Sprintf("%s %s %s %s", m.Mountpoint, m.Options, m.FSType, m.VFSOptions)))
		}
	}
	slices.Sort(lines)
	return lines
}

// mountedIn are the mount points in a directory of the host, the last mount first.
func (s *side) mountedIn(top string) []string {
	host, err := readMounts("/proc/self/mountinfo")
	if err != nil {
		return nil
	}
	var points []string
	for _, m := range slices.Backward(host) {
		if strings.HasPrefix(m.Mountpoint, top+"/") {
			points = append(points, m.Mountpoint)
		}
	}
	return points
}
