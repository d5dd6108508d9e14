package doctor

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/berthrun/berth/internal/doctor"
)

const (
	// leastFree: the kubelet evicts pods below 10 % of its own file system and 15 % of that of images.
	leastFree = 0.15
	// noneFree is when a file system is full: records and logs cannot be written. Small ones have a hundredth of their size.
	noneFree = 16 << 20
)

// disk checks the space of each file system once, by its first directory.
func disk(_ context.Context, m *Machine, r *doctor.Report) error {
	mounts, err := m.host.Kernel().Mounts()
	if err != nil {
		return err
	}
	dirs := []string{"/var/lib/kubelet", "/var/lib/berth", "/var/lib/containerd", "/var/lib/containers", "/var/lib/docker", "/var/log", "/run"}
	for _, own := range []string{m.Berth.Root, m.Berth.State} {
		if own != "" && !slices.Contains(dirs, own) {
			dirs = append(dirs, own)
		}
	}
	on := map[string][]string{} // directories by the mount that they are on
	var order []string
	for _, dir := range dirs {
		if _, err := m.host.Files().Stat(dir); err != nil {
			continue
		}
		at := mountOf(mounts, dir).Path
		if on[at] == nil {
			order = append(order, at)
		}
		on[at] = append(on[at], dir)
	}
	for _, at := range order {
		if err := m.room(r, at, on[at]); err != nil {
			return err
		}
	}
	return nil
}

// room checks the space of the file system that directories are on. at is where it is mounted.
func (m *Machine) room(r *doctor.Report, at string, dirs []string) error {
	is, err := m.Space(dirs[0])
	if err != nil {
		return err
	}
	at = cmp.Or(at, dirs[0])
	named := dirs[0]
	if len(dirs) > 1 {
		named += " (and of " + strings.Join(dirs[1:], ", ") + ")"
	}
	if is.Size > 0 && float64(is.Free) < leastFree*float64(is.Size) {
		level, said := warning, fmt.Sprintf("the file system of %s has %d MiB of %d MiB left", named, is.Free>>20, is.Size>>20)
		if is.Free < min(noneFree, is.Size/100) {
			level, said = problem, said+": it is full, and pods do not start"
		}
		r.Add(level, dirs[0], said, "make room: "+roomFrom(dirs)+", du -xhd2 "+at+" | sort -h shows what is large; until then a kubelet removes images and evicts pods")
	}
	if is.Files > 0 && float64(is.FilesFree) < leastFree*float64(is.Files) {
		level, said := warning, fmt.Sprintf("the file system of %s has room for %d of %d files left", named, is.FilesFree, is.Files)
		if is.FilesFree == 0 {
			level, said = problem, said+": no file can be made, and pods do not start"
		}
		r.Add(level, dirs[0], said, "remove small files, images first: crictl rmi --prune; du --inodes -xd2 "+at+" | sort -n shows where they are")
	}
	return nil
}

// roomFrom says what can be removed from directories.
func roomFrom(dirs []string) string {
	var ways []string
	if slices.ContainsFunc(dirs, func(dir string) bool { return dir != "/var/log" && dir != "/run" && dir != "/var/lib/kubelet" }) {
		ways = append(ways, "crictl rmi --prune removes images without a container")
	}
	if slices.Contains(dirs, "/var/log") || len(ways) == 0 {
		ways = append(ways, "journalctl --vacuum-size=500M shortens the journal")
	}
	return strings.Join(ways, ", ")
}
