package cgroup

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/berthrun/berth/internal/errs"
)

// Exists reports whether the cgroup at path exists in the hierarchy that matters
// for a pod.
func (t *Tree) Exists(path string) bool {
	key := ""
	if !t.V2 {
		key = "memory"
	}
	if t.mounts[key] == "" {
		return false
	}
	_, err := os.Stat(filepath.Join(t.mounts[key], path))
	return err == nil
}

// Missing returns the topmost cgroup of path that does not exist, "" when all of
// it does.
func (t *Tree) Missing(path string) string {
	missing := ""
	for ; path != "/" && path != "." && !t.Exists(path); path = filepath.Dir(path) {
		missing = path
	}
	return missing
}

// Make makes the cgroup at path in every hierarchy.
func (t *Tree) Make(path string) error {
	if mount := t.mounts["cpuset"]; mount != "" {
		inheritCpuset(mount, filepath.Join(mount, filepath.Dir(path)))
	}
	for _, dir := range t.Paths(path).dirs() {
		// RemoveEmpty may remove a parent at this moment.
		err := os.MkdirAll(dir, 0o755)
		for range 10 {
			if !errors.Is(err, os.ErrNotExist) {
				break
			}
			err = os.MkdirAll(dir, 0o755)
		}
		if err != nil {
			return fmt.Errorf("cannot make the cgroup: %w", err)
		}
	}
	return nil
}

// MakeBelow makes a cgroup of one process below the cgroup parent, as libcontainer wants
// it: the result is each controller's directory relative to parent's. A hierarchy in
// which no process can join it is left out. Kind State when parent is gone.
func (p Paths) MakeBelow(parent Paths) (relative map[string]string, err error) {
	relative = make(map[string]string)
	for controller, dir := range p {
		if err := syscall.Mkdir(dir, 0o755); err != nil && !errors.Is(err, syscall.EEXIST) {
			if errors.Is(err, syscall.ENOENT) {
				return nil, fmt.Errorf("container's cgroup: %w", errs.State)
			}
			return nil, fmt.Errorf("cannot make cgroup %s: %w", dir, err)
		}
		if !joinable(dir) {
			if err := syscall.Rmdir(dir); err != nil {
				return nil, fmt.Errorf("cannot remove cgroup %s: %w", dir, err)
			}
			continue
		}
		rel, err := filepath.Rel(parent[controller], dir)
		if err != nil {
			return nil, err
		}
		relative[controller] = rel
	}
	return relative, nil
}

// joinable reports whether a process can join the cgroup in dir. It cannot where a
// container on cgroup v2 made its own cgroup the root of threaded ones: there are only
// threads below that. (Controllers that the container enables for cgroups below do no
// harm: a cgroup without children may have processes whatever its parent does, which the
// container's own cgroup then may not.)
func joinable(dir string) bool {
	kind, err := os.ReadFile(filepath.Join(dir, "cgroup.type"))
	return err != nil || strings.TrimSpace(string(kind)) != "domain invalid"
}

// Entrance has what a child needs to be in a cgroup before it does anything, without a wait of the
// kernel: see OpenEntrance. Close closes it.
type Entrance struct {
	// V2 is the directory of the unified hierarchy, for CLONE_INTO_CGROUP; nil without one.
	V2 *os.File
	// Tasks are the files "tasks" of the other hierarchies. A thread that writes "0" to one joins
	// the cgroup alone, without the lock that a move of other threads needs. For a child that joins
	// the unified hierarchy late, its file "cgroup.procs" is one of them.
	Tasks []*os.File
}

// littleMemory is a limit, in bytes, below which a child joins the cgroup late. A child of the supervisor
// needs about 5 MiB before it executes the container's program.
const littleMemory = 16 << 20

// LittleMemory reports whether a memory limit, in bytes, is so low that a child of the supervisor may not count for it.
// 0 and less are no limit. On cgroup v1 a child always joins late.
func LittleMemory(limit int64) bool { return limit > 0 && limit < littleMemory }

// HasLittleMemory is LittleMemory for the limit of the cgroup on the unified hierarchy, which may have none.
func (p Paths) HasLittleMemory() bool {
	dir, ok := p[""]
	if !ok {
		return false
	}
	limit, err := strconv.ParseInt(string(contentOf(filepath.Join(dir, "memory.max"))), 10, 64)
	return err == nil && LittleMemory(limit)
}

// OpenEntrance opens the cgroups. With late the child joins the unified hierarchy once it runs, too: the kernel
// makes it wait, and the memory that it had before does not count for the cgroup. Kind State when one is gone.
func (p Paths) OpenEntrance(late bool) (*Entrance, error) {
	e := &Entrance{}
	for _, dir := range p.dirs() {
		var err error
		if dir == p[""] && !late {
			e.V2, err = os.OpenFile(dir, unix.O_PATH|unix.O_DIRECTORY, 0)
		} else {
			name := "tasks"
			if dir == p[""] {
				name = "cgroup.procs"
			}
			var tasks *os.File
			if tasks, err = os.OpenFile(filepath.Join(dir, name), os.O_WRONLY, 0); err == nil {
				e.Tasks = append(e.Tasks, tasks)
			}
		}
		if err != nil {
			e.Close()
			if errors.Is(err, os.ErrNotExist) {
				err = errs.State
			}
			return nil, fmt.Errorf("cannot open cgroup %s: %w", dir, err)
		}
	}
	return e, nil
}

// Close closes the files.
func (e *Entrance) Close() {
	if e.V2 != nil {
		e.V2.Close()
	}
	for _, f := range e.Tasks {
		f.Close()
	}
}

// On cgroup v1 a cpuset has no processors and no memory nodes, and so takes no process, before somebody writes
// them. For each write the kernel looks at all cpusets of the host. With cgroup.clone_children a cpuset
// begins with those of its parent instead, and so do those below it.

// InheritCpuset has the cgroups that are made in the parent of this one inherit their cpusets, on v1. Without
// that libcontainer writes them, so an error does no harm.
func (p Paths) InheritCpuset() {
	dir, ok := p["cpuset"]
	if !ok {
		return
	}
	parent := filepath.Dir(dir)
	// The processors of the parent are there as soon as it has had a container.
	if cpus := contentOf(filepath.Join(parent, "cpuset.cpus")); len(cpus) > 0 {
		inheritCpuset(parent, parent)
	}
}

// EndInheritance has the cgroups that a container makes in its own begin as they do everywhere.
func (p Paths) EndInheritance() error {
	dir, ok := p["cpuset"]
	flag := filepath.Join(dir, "cgroup.clone_children")
	if !ok || string(contentOf(flag)) != "1" {
		return nil
	}
	if err := os.WriteFile(flag, []byte("0"), 0); err != nil {
		return fmt.Errorf("cannot set the cpuset of a container: %w", err)
	}
	return nil
}

// inheritCpuset has the cgroups that are made in dir inherit its cpuset, which it gets from those above, up to
// top, if it has none.
func inheritCpuset(top, dir string) {
	flag := filepath.Join(dir, "cgroup.clone_children")
	if string(contentOf(flag)) == "1" || isHierarchyRoot(dir) {
		return
	}
	if os.MkdirAll(dir, 0o755) != nil || !fillCpuset(top, dir) {
		return
	}
	_ = os.WriteFile(flag, []byte("1"), 0) // see InheritCpuset
}

// isHierarchyRoot reports whether a directory of v1 is the root of its hierarchy, which is the host's.
func isHierarchyRoot(dir string) bool {
	_, err := os.Lstat(filepath.Join(dir, "release_agent"))
	return err == nil
}

// fillCpuset reports whether a cpuset has processors and memory nodes in the end.
func fillCpuset(top, dir string) bool {
	for _, name := range []string{"cpuset.cpus", "cpuset.mems"} {
		if len(contentOf(filepath.Join(dir, name))) > 0 {
			continue
		}
		if dir == top || !fillCpuset(top, filepath.Dir(dir)) {
			return false
		}
		above := contentOf(filepath.Join(filepath.Dir(dir), name))
		if os.WriteFile(filepath.Join(dir, name), above, 0) != nil {
			return false
		}
	}
	return true
}

// contentOf is empty when the file cannot be read.
func contentOf(path string) []byte {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil
	}
	return bytes.TrimSpace(data)
}
