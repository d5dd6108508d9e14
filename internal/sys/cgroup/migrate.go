package cgroup

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/sys/sysproc"
	"golang.org/x/sys/unix"
)

// Warmer prepares the kernel for the migration of a process into a cgroup. The first
// migration after a pause of some ten milliseconds waits for an RCU grace period
// (cgroup_threadgroup_rwsem, 5 to 14 ms); those that follow do not. libcontainer migrates a process
// for every container and every exec, so a Warmer takes that wait while the container or the
// exec is still being prepared. The kernel holds cgroup_mutex during the wait: nothing else can make a
// cgroup, or start a process in one.
type Warmer struct {
	tree *Tree
	// warming is true while a migration for the kernel's sake is under way.
	warming atomic.Bool
	// own finds the cgroup.procs of this process's own cgroup, "" for none.
	own func() string
}

// NewWarmer returns a Warmer for the host.
func (t *Tree) NewWarmer() *Warmer {
	w := &Warmer{tree: t}
	w.own = w.find
	return w
}

// Warm is called before a process migrates. It returns at once: in the background this
// process migrates to the cgroup that it is in, which changes nothing. Where that fails,
// the next migration waits as it would have.
func (w *Warmer) Warm() {
	if !w.warming.CompareAndSwap(false, true) {
		return
	}
	go func() {
		defer w.warming.Store(false)
		if procs := w.own(); procs != "" {
			_ = os.WriteFile(procs, []byte("0"), 0)
		}
	}()
}

// find looks each time, since an administrator may have moved this process.
func (w *Warmer) find() string {
	f, err := os.Open("/proc/self/cgroup")
	if err != nil {
		return ""
	}
	defer f.Close()
	return w.tree.procsOf(f)
}

// procsOf reads a /proc/PID/cgroup and returns the cgroup.procs of a cgroup that the
// process is in, "" when none is mounted here. The lock is one for all hierarchies; cpuset's, which would do
// more on a migration, is not taken.
func (t *Tree) procsOf(r io.Reader) string {
	found := ""
	for lines := bufio.NewScanner(r); lines.Scan(); {
		fields := strings.SplitN(lines.Text(), ":", 3) // number, controllers, path
		if len(fields) < 3 {
			continue
		}
		for controller := range strings.SplitSeq(fields[1], ",") {
			if mount := t.mounts[controller]; mount != "" && controller != "cpuset" {
				found = filepath.Join(mount, fields[2], procsFile)
			}
		}
	}
	return found
}

// Admit moves a process into the cgroup at path, which it makes where it is missing. Hierarchies
// without controllers are left alone: systemd finds the processes of a unit by its own. Each
// hierarchy is tried. Kind NotFound: the process has ended.
func (t *Tree) Admit(path string, pid int) error {
	if err := t.Make(path); err != nil {
		return err
	}
	var failed []error
	for _, mount := range t.controllerMounts() {
		failed = append(failed, admit(mount, path, pid))
	}
	return errors.Join(failed...)
}

func admit(mount, path string, pid int) error {
	// cpuset on cgroup v1 admits no process before it, and each cgroup above it, has processors
	// and memory.
	at := mount
	for name := range strings.SplitSeq(strings.Trim(path, "/"), "/") {
		below := filepath.Join(at, name)
		for _, file := range []string{"cpuset.cpus", "cpuset.mems"} {
			if err := copyIfEmpty(filepath.Join(at, file), filepath.Join(below, file)); err != nil {
				return err
			}
		}
		at = below
	}
	err := os.WriteFile(filepath.Join(at, procsFile), []byte(strconv.Itoa(pid)), 0)
	switch {
	case errors.Is(err, unix.ESRCH):
		return fmt.Errorf("process %d: %w", pid, errs.NotFound)
	case errors.Is(err, unix.EBUSY):
		return fmt.Errorf("cannot move process %d into cgroup %s: controllers are on for the cgroups below it, "+
			"so that it admits no process; name one without cgroups below: %w", pid, at, errs.State)
	case err != nil:
		return fmt.Errorf("cannot move process %d into cgroup %s: %w", pid, at, err)
	}
	return nil
}

// Admitted reports whether a process is in the cgroup at path, in each hierarchy that Admit uses.
// Kind NotFound: the process has ended.
func (t *Tree) Admitted(path string, pid int) (bool, error) {
	now, err := t.OfProcess(pid)
	if err != nil {
		return false, err
	}
	dirs := now.dirs()
	for _, mount := range t.controllerMounts() {
		if !slices.Contains(dirs, filepath.Join(mount, path)) {
			return false, nil
		}
	}
	return true, nil
}

// Rejoin moves the processes of a container into its cgroup in those hierarchies of v1 in which they are
// in a cgroup above it. pid is one of them, id is in the name of the cgroup. systemd moves them there:
// when a slice gets another controller, such as devices for the first scope below it, systemd moves all
// processes below the slice into the slice's own cgroup of that hierarchy. Then the rules of the
// container's cgroup do not hold for it, and a runtime that counts the processes there finds none.
// Rejoin returns whether it moved processes. Kind NotFound as OfContainer has it.
func (t *Tree) Rejoin(pid int, id string) (moved bool, err error) {
	now, err := t.OfProcess(pid)
	if err != nil || t.V2 {
		return false, err
	}
	own, err := t.OfContainer(pid, id)
	if err != nil {
		return false, err
	}
	var at string // from the root of a hierarchy
	var pids []int
	for controller, dir := range own {
		at = strings.TrimPrefix(dir, t.mounts[controller])
		if pids, err = (Paths{controller: dir}).Pids(); err != nil {
			return false, err
		}
		break // it is the same in each
	}
	var failed []error
	for controller, dir := range now {
		mount := t.mounts[controller]
		in := strings.TrimPrefix(dir, mount)
		if own[controller] != "" || in == "" || !strings.HasPrefix(at, in+"/") {
			continue // it is where it belongs, or in the root
		}
		target := filepath.Join(mount, at, procsFile)
		if _, err := os.Stat(target); err != nil {
			continue // the container has no cgroup there
		}
		moved = true
		for _, pid := range pids {
			err := os.WriteFile(target, []byte(strconv.Itoa(pid)), 0)
			if err != nil && !errors.Is(err, unix.ESRCH) {
				failed = append(failed, fmt.Errorf("cannot move process %d of container %s back into its cgroup: %w", pid, id, err))
			}
		}
	}
	return moved, errors.Join(failed...)
}

// controllerMounts returns the mount points of the hierarchies that have controllers, each once.
func (t *Tree) controllerMounts() []string {
	mounts := maps.Clone(t.mounts)
	maps.DeleteFunc(mounts, func(controller, _ string) bool {
		return !t.V2 && controller == "" || strings.HasPrefix(controller, "name=")
	})
	return slices.Compact(slices.Sorted(maps.Values(mounts)))
}

// Gather moves a process, and what it has started, into the cgroup from the cgroup above it. It does not
// find a process whose parent has ended. Processes that end meanwhile are no error.
func (p Paths) Gather(pid int) error {
	for _, dir := range p.dirs() {
		// A process may start another one before it is moved.
		for moved := map[int]bool{}; ; {
			before := len(moved)
			for _, each := range descendants(filepath.Dir(dir), pid) {
				if moved[each] {
					continue
				}
				moved[each] = true
				err := os.WriteFile(filepath.Join(dir, procsFile), []byte(strconv.Itoa(each)), 0)
				if err != nil && !errors.Is(err, unix.ESRCH) {
					return fmt.Errorf("cannot move process %d into cgroup %s: %w", each, dir, err)
				}
			}
			if len(moved) == before {
				break
			}
		}
	}
	return nil
}

// descendants returns a process, and those of a cgroup that descend from it.
func descendants(dir string, pid int) []int {
	data, err := os.ReadFile(filepath.Join(dir, procsFile))
	if err != nil {
		return []int{pid}
	}
	children := map[int][]int{}
	for _, field := range strings.Fields(string(data)) {
		each, err := strconv.Atoi(field)
		if err != nil {
			continue
		}
		if proc, err := sysproc.ReadProc(each); err == nil {
			children[proc.PPid] = append(children[proc.PPid], each)
		}
	}
	all := []int{pid}
	for i := 0; i < len(all); i++ {
		all = append(all, children[all[i]]...)
	}
	return all
}
