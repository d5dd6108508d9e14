package cgroup

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"github.com/berthrun/berth/internal/sys/sysproc"
)

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
				if err != nil && !errors.Is(err, syscall.ESRCH) {
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
