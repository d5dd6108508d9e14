package cgroup

import (
	"bytes"
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

// Enter moves this process into the cgroup name below the root of every hierarchy, and
// makes it where it is missing. A hierarchy that refuses is left out; the error names all
// of them.
func Enter(name string) error {
	roots, err := Roots()
	if err != nil {
		return err
	}
	var failed []error
	for _, root := range roots {
		if err := enter(root, filepath.Join(root, name)); err != nil {
			failed = append(failed, err)
		}
	}
	return errors.Join(failed...)
}

func enter(root, dir string) error {
	if err := os.Mkdir(dir, 0o755); err != nil && !errors.Is(err, os.ErrExist) {
		return fmt.Errorf("cannot make cgroup: %w", err)
	}
	// cpuset on cgroup v1 admits no process before it has processors and memory.
	for _, file := range []string{"cpuset.cpus", "cpuset.mems"} {
		if err := copyIfEmpty(filepath.Join(root, file), filepath.Join(dir, file)); err != nil {
			return err
		}
	}
	return join(dir)
}

// Leave moves this process to the roots and removes what Enter made.
func Leave(name string) error {
	roots, err := Roots()
	if err != nil {
		return err
	}
	var failed []error
	for _, root := range roots {
		dir := filepath.Join(root, name)
		if _, err := os.Stat(dir); errors.Is(err, os.ErrNotExist) {
			continue
		}
		err := join(root)
		if err == nil {
			err = os.Remove(dir)
		}
		if err != nil {
			failed = append(failed, fmt.Errorf("cannot leave cgroup: %w", err))
		}
	}
	return errors.Join(failed...)
}

func join(dir string) error {
	if err := os.WriteFile(filepath.Join(dir, procsFile), []byte("0"), 0); err != nil {
		return fmt.Errorf("cannot join cgroup: %w", err)
	}
	return nil
}

func copyIfEmpty(from, to string) error {
	have, err := os.ReadFile(to)
	if errors.Is(err, os.ErrNotExist) || err == nil && len(bytes.TrimSpace(have)) > 0 {
		return nil
	}
	if err != nil {
		return fmt.Errorf("cannot read cgroup: %w", err)
	}
	value, err := os.ReadFile(from)
	if errors.Is(err, os.ErrNotExist) || len(bytes.TrimSpace(value)) == 0 {
		return nil // cgroup v2: an empty set means the parent's
	}
	if err == nil {
		err = os.WriteFile(to, value, 0)
	}
	if err != nil {
		return fmt.Errorf("cannot fill cgroup: %w", err)
	}
	return nil
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

// controllerMounts returns the mount points of the hierarchies that have controllers, each once.
func (t *Tree) controllerMounts() []string {
	mounts := maps.Clone(t.mounts)
	maps.DeleteFunc(mounts, func(controller, _ string) bool {
		return !t.V2 && controller == "" || strings.HasPrefix(controller, "name=")
	})
	return slices.Compact(slices.Sorted(maps.Values(mounts)))
}
