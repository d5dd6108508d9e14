package cgroup

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/berthrun/berth/internal/errs"
)

// Remove removes the cgroup at path and what is below it, in every hierarchy. Nil
// when there is none; kind State when processes are in it.
func (t *Tree) Remove(path string) error {
	var errList []error
	for _, dir := range t.Paths(path).dirs() {
		errList = append(errList, removeTree(dir))
	}
	return errors.Join(errList...)
}

// RemoveEmpty removes the cgroup at path, and its parents up to top, as far as
// nothing is in them or below them.
func (t *Tree) RemoveEmpty(path, top string) {
	for ; strings.HasPrefix(path+"/", top+"/") && path != "/"; path = filepath.Dir(path) {
		for _, dir := range t.Paths(path).dirs() {
			// Whoever is in it, or makes one below it this moment, keeps it.
			_ = syscall.Rmdir(dir)
		}
	}
}

func removeTree(dir string) error {
	err := syscall.Rmdir(dir)
	if err == nil || errors.Is(err, syscall.ENOENT) {
		return nil
	}
	entries, readErr := os.ReadDir(dir)
	if readErr != nil {
		return fmt.Errorf("cannot remove the cgroup %s: %w", dir, readErr)
	}
	for _, entry := range entries {
		if entry.IsDir() {
			if err := removeTree(filepath.Join(dir, entry.Name())); err != nil {
				return err
			}
		}
	}
	err = syscall.Rmdir(dir)
	switch {
	case err == nil, errors.Is(err, syscall.ENOENT):
		return nil
	case errors.Is(err, syscall.EBUSY):
		return fmt.Errorf("cannot remove the cgroup %s: processes are in it: %w", dir, errs.State)
	}
	return fmt.Errorf("cannot remove the cgroup %s: %w", dir, err)
}
