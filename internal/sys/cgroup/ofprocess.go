package cgroup

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/berthrun/berth/internal/errs"
)

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
