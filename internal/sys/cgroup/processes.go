package cgroup

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/sys/sysproc"
)

// procsFile lists the processes of a cgroup, and moves those that are written to it there.
const procsFile = "cgroup.procs"

// Pids returns every process in the cgroup and below it, in any hierarchy.
func (p Paths) Pids() ([]int, error) {
	found := make(map[int]bool)
	var errList []error
	for _, dir := range p.dirs() {
		errList = append(errList, walk(dir, func(dir string) error {
			data, err := os.ReadFile(filepath.Join(dir, procsFile))
			if absent(err) { // also of a threaded cgroup, which lists at its root
				return nil
			}
			if err != nil {
				return err
			}
			for _, field := range strings.Fields(string(data)) {
				pid, err := strconv.Atoi(field)
				if err != nil {
					return fmt.Errorf("cannot parse %s/%s: %w", dir, procsFile, err)
				}
				if pid > 0 { // 0 is a process of a pid namespace that is not below ours
					found[pid] = true
				}
			}
			return nil
		}))
	}
	return slices.Sorted(maps.Keys(found)), errors.Join(errList...)
}

// Processes returns the processes in the cgroup and below it, of one hierarchy: enough
// for figures. A cgroup that was removed meanwhile has none.
func (p Paths) Processes() []int {
	dir := p[""]
	if !p.unified() {
		dir = cmp.Or(p["pids"], p["memory"])
	}
	r := &reader{}
	var pids []int
	_ = walk(dir, func(dir string) error {
		r.err = nil // an error here does not affect the others
		for word := range strings.FieldsSeq(string(r.file(dir, procsFile))) {
			if pid, err := strconv.Atoi(word); err == nil {
				pids = append(pids, pid)
			}
		}
		return nil
	})
	return pids
}

// live returns the processes that have not ended.
func (p Paths) live() ([]int, error) {
	pids, err := p.Pids()
	return slices.DeleteFunc(pids, ended), err
}

// ended reports whether pid is gone or a zombie. A process whose first thread has ended
// while others run looks like a zombie and is none.
func ended(pid int) bool {
	proc, err := sysproc.ReadProc(pid)
	if errors.Is(err, errs.NotFound) {
		return true
	}
	if err != nil || !proc.Zombie() {
		return false
	}
	threads, err := os.ReadDir(fmt.Sprintf("/proc/%d/task", pid))
	return err != nil || len(threads) <= 1
}

// Signal sends sig to every process. NotFound when there is none.
func (p Paths) Signal(sig syscall.Signal) error {
	pids, err := p.live()
	if err != nil {
		return fmt.Errorf("cannot list the processes of a cgroup: %w", err)
	}
	sent, err := p.send(pids, sig)
	if err != nil {
		return err
	}
	if sent == 0 {
		return fmt.Errorf("processes of the cgroup: %w", errs.NotFound)
	}
	return nil
}

// sendAtOnce is how many processes are open at the same time while they get a signal.
const sendAtOnce = 256

// send sends a signal to processes that were listed before, and returns how many have got it.
func (p Paths) send(pids []int, sig syscall.Signal) (sent int, err error) {
	var errList []error
	for some := range slices.Chunk(pids, sendAtOnce) {
		n, err := p.sendSome(some, sig)
		sent += n
		errList = append(errList, err)
	}
	return sent, errors.Join(errList...)
}

// sendSome opens the processes, and then lists those of the cgroup again: since the first list, a pid may have become another
// process's, perhaps the host's. One that is on the second list is of the process that was opened, or that one has ended.
func (p Paths) sendSome(pids []int, sig syscall.Signal) (sent int, err error) {
	var errList []error
	opened := make(map[int]int, len(pids))
	for _, pid := range pids {
		pidfd, err := unix.PidfdOpen(pid, 0)
		if sysproc.NoPidfd(err) {
			continue // it has ended
		}
		if err != nil {
			errList = append(errList, fmt.Errorf("cannot open process %d: %w", pid, err))
			continue
		}
		defer unix.Close(pidfd)
		opened[pid] = pidfd
	}
	still, err := p.Pids()
	if err != nil {
		errList = append(errList, fmt.Errorf("cannot list the processes of a cgroup: %w", err))
	}
	for _, pid := range still {
		pidfd, ok := opened[pid]
		if !ok {
			continue
		}
		err := unix.PidfdSendSignal(pidfd, sig, nil, 0)
		if err == nil {
			sent++
		} else if !errors.Is(err, unix.ESRCH) {
			errList = append(errList, fmt.Errorf("cannot send %v to process %d: %w", sig, pid, err))
		}
	}
	return sent, errors.Join(errList...)
}

// walk calls fn for dir and every directory below it, deepest last. What vanishes
// meanwhile is passed over.
func walk(dir string, fn func(dir string) error) error {
	if err := fn(dir); err != nil {
		return err
	}
	entries, err := os.ReadDir(dir)
	if absent(err) {
		return nil
	}
	if err != nil {
		return err
	}
	for _, e := range entries {
		if !e.IsDir() {
			continue
		}
		path, leave, err := below(dir, e.Name())
		if absent(err) {
			return nil
		}
		if err == nil {
			err = walk(path, fn)
			leave()
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// longPath is the length from which on a path is not made longer: a system call takes 4095 bytes, and names in the directory follow.
const longPath = 2 << 10

// below returns a path of the directory name in dir. A container may nest cgroups deeper than a path can be long: from
// longPath on the path begins at a descriptor, which leave closes.
func below(dir, name string) (path string, leave func(), err error) {
	if len(dir)+len(name) < longPath {
		return filepath.Join(dir, name), func() {}, nil
	}
	fd, err := unix.Open(dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return "", nil, fmt.Errorf("cannot open cgroup %s: %w", dir, err)
	}
	return fmt.Sprintf("/proc/self/fd/%d/%s", fd, name), func() { unix.Close(fd) }, nil
}
