package innode

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// Cgroups creates the cgroups below which the kubelet keeps pods (cgroupRoot: /kubelet), under the
// names of both cgroup drivers. The kubelet creates all but these.
func Cgroups() error {
	if err := cgroups("/sys/fs/cgroup"); err != nil {
		return fmt.Errorf("cannot make the kubelet's cgroups: %w", err)
	}
	return nil
}

func cgroups(mount string) error {
	names := []string{"kubelet", "kubelet.slice"}
	controllers, err := os.ReadFile(filepath.Join(mount, "cgroup.controllers"))
	if err == nil {
		return unified(mount, names, strings.Fields(string(controllers)))
	}
	if !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	hierarchies, err := os.ReadDir(mount)
	if err != nil {
		return err
	}
	for _, h := range hierarchies {
		dir := filepath.Join(mount, h.Name())
		if _, err := os.Stat(filepath.Join(dir, "cgroup.procs")); err != nil || h.Type()&fs.ModeSymlink != 0 {
			continue // no hierarchy, or another name of one
		}
		for _, name := range names {
			if err := classic(dir, name); err != nil {
				return err
			}
		}
	}
	return nil
}

// classic creates a cgroup of version 1. One of cpuset begins without any CPU, so no process can be
// put into it or below.
func classic(dir, name string) error {
	group := filepath.Join(dir, name)
	if err := os.MkdirAll(group, 0o755); err != nil {
		return err
	}
	for _, file := range []string{"cpuset.cpus", "cpuset.mems"} {
		text, err := os.ReadFile(filepath.Join(dir, file))
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(group, file), text, 0o644); err != nil {
			return err
		}
	}
	return nil
}

// unified creates cgroups of version 2 that delegate all controllers.
func unified(mount string, names, controllers []string) error {
	for _, dir := range append([]string{""}, names...) {
		group := filepath.Join(mount, dir)
		if err := os.MkdirAll(group, 0o755); err != nil {
			return err
		}
		for _, c := range controllers {
			// One by one: some controllers can be delegated only by a root cgroup.
			err := os.WriteFile(filepath.Join(group, "cgroup.subtree_control"), []byte("+"+c), 0o644)
			if err != nil && (c == "cpu" || c == "memory" || c == "pids") {
				return err
			}
		}
	}
	return nil
}
