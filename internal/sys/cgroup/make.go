package cgroup

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
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
	for _, dir := range t.Paths(path).dirs() {
		// A parent may go at this moment: RemoveEmpty of the last one in it.
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
