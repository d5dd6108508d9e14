package cgroup

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/berthrun/berth/internal/errs"
)

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

// controllerMounts returns the mount points of the hierarchies that have controllers, each once.
func (t *Tree) controllerMounts() []string {
	mounts := maps.Clone(t.mounts)
	maps.DeleteFunc(mounts, func(controller, _ string) bool {
		return !t.V2 && controller == "" || strings.HasPrefix(controller, "name=")
	})
	return slices.Compact(slices.Sorted(maps.Values(mounts)))
}
