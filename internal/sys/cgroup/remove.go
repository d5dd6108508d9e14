package cgroup

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/berthrun/berth/internal/errs"
)

// Remove removes the cgroup and all below it in every hierarchy; the processes must have
// ended. It waits until ctx ends for the kernel to let go of them. Nil when it is gone.
func (p Paths) Remove(ctx context.Context) error {
	for delay := time.Millisecond; ; delay = min(2*delay, 50*time.Millisecond) {
		var errList []error
		for _, dir := range p.dirs() {
			if failed, err := removeTree(dir); err != nil {
				errList = append(errList, fmt.Errorf("cannot remove cgroup %s: %w", failed, err))
			}
		}
		err := errors.Join(errList...)
		if err == nil || !errors.Is(err, syscall.EBUSY) {
			return err
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(delay):
		}
	}
}

// Remove removes the cgroup at path and what is below it, in every hierarchy, without a
// wait. Nil when there is none; kind State when processes are in it.
func (t *Tree) Remove(path string) error {
	var errList []error
	for _, dir := range t.Paths(path).dirs() {
		failed, err := removeTree(dir)
		if errors.Is(err, syscall.EBUSY) {
			errList = append(errList, fmt.Errorf("cannot remove the cgroup %s: processes are in it: %w", failed, errs.State))
		} else if err != nil {
			errList = append(errList, fmt.Errorf("cannot remove the cgroup %s: %w", failed, err))
		}
	}
	return errors.Join(errList...)
}

// RemoveEmpty removes the cgroup at path, and its parents up to top, as far as
// nothing is in them or below them.
func (t *Tree) RemoveEmpty(path, top string) {
	for ; strings.HasPrefix(path+"/", top+"/") && path != "/"; path = filepath.Dir(path) {
		for _, dir := range t.Paths(path).dirs() {
			// A process in it, or a new cgroup below it, keeps it.
			_ = syscall.Rmdir(dir)
		}
	}
}

// removeTree removes the cgroup in dir and all below it. On an error it returns the
// directory that could not be removed.
func removeTree(dir string) (failed string, err error) {
	err = syscall.Rmdir(dir)
	if err == nil || errors.Is(err, syscall.ENOENT) {
		return "", nil
	}
	entries, readErr := os.ReadDir(dir)
	if absent(readErr) {
		return "", nil
	}
	if readErr != nil {
		return dir, readErr
	}
	for _, entry := range entries {
		if !entry.IsDir() {
			continue
		}
		path, leave, err := below(dir, entry.Name())
		if absent(err) {
			break
		}
		if err != nil {
			return dir, err
		}
		failed, err := removeTree(path)
		leave()
		if err != nil && !strings.HasPrefix(failed, dir) {
			failed = dir // the path that failed begins at a descriptor that is closed now
		}
		if err != nil {
			return failed, err
		}
	}
	if err = syscall.Rmdir(dir); err != nil && !errors.Is(err, syscall.ENOENT) {
		return dir, err
	}
	return "", nil
}
