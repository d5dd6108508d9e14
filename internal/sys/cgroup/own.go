package cgroup

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
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
