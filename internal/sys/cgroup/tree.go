// Package cgroup knows where the cgroups of pods are, makes the parents that
// nobody else makes, limits them, and reads figures. The containers' own cgroups and
// their limits are the supervisor's.
package cgroup

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/moby/sys/mountinfo"

	"github.com/berthrun/berth/internal/errs"
)

// Paths maps controller to a cgroup's directory; on v2 the only key is "", on a
// hybrid host "" is the v2 hierarchy beside the controllers' own.
type Paths map[string]string

// Tree is the host's cgroup file system.
type Tree struct {
	// V2 is true on a unified hierarchy.
	V2 bool
	// mounts maps controller to mount point; on v2 the only key is "". On v1 a
	// named hierarchy has its name ("name=systemd"), and "" is the v2 hierarchy
	// without controllers of a hybrid host: the OCI runtime makes cgroups there too.
	mounts map[string]string
}

// Find looks at what is mounted. Kind Unsupported when there are no cgroups.
func Find() (*Tree, error) {
	f, err := os.Open("/proc/self/mountinfo")
	if err != nil {
		return nil, fmt.Errorf("cannot find the cgroups: %w", err)
	}
	defer f.Close()
	return parse(f)
}

func parse(r io.Reader) (*Tree, error) {
	infos, err := mountinfo.GetMountsFromReader(r, mountinfo.FSTypeFilter("cgroup", "cgroup2"))
	if err != nil {
		return nil, fmt.Errorf("cannot find the cgroups: %w", err)
	}
	tree := &Tree{mounts: map[string]string{}}
	unified := ""
	for _, info := range infos {
		if info.FSType == "cgroup2" {
			if unified == "" || info.Mountpoint == "/sys/fs/cgroup" {
				unified = info.Mountpoint
			}
			continue
		}
		for option := range strings.SplitSeq(info.VFSOptions, ",") {
			if _, ok := tree.mounts[option]; !ok && isController(option) {
				tree.mounts[option] = info.Mountpoint
			}
		}
	}
	if len(tree.mounts) == 0 {
		if unified == "" {
			return nil, fmt.Errorf("no cgroup file system is mounted: %w", errs.Unsupported)
		}
		tree.V2 = true
	}
	if unified != "" {
		tree.mounts[""] = unified
	}
	return tree, nil
}

// Options are those of the mount of a unified hierarchy that the kernel keeps for the
// whole of it: whoever mounts it in the first cgroup namespace sets all of them. None on v1.
func (t *Tree) Options() ([]string, error) {
	if !t.V2 {
		return nil, nil
	}
	f, err := os.Open("/proc/self/mountinfo")
	if err != nil {
		return nil, fmt.Errorf("cannot read how cgroups are mounted: %w", err)
	}
	defer f.Close()
	return optionsOf(f)
}

func optionsOf(r io.Reader) ([]string, error) {
	infos, err := mountinfo.GetMountsFromReader(r, mountinfo.FSTypeFilter("cgroup2"))
	if err != nil {
		return nil, fmt.Errorf("cannot read how cgroups are mounted: %w", err)
	}
	var options []string
	for _, info := range infos { // all have the same
		for option := range strings.SplitSeq(info.VFSOptions, ",") {
			switch option {
			case "nsdelegate", "favordynmods", "memory_localevents", "memory_recursiveprot", "memory_hugetlb_accounting", "pids_localevents":
				if !slices.Contains(options, option) {
					options = append(options, option)
				}
			}
		}
	}
	return options, nil
}

// isController tells controllers and named hierarchies from a mount's options.
func isController(option string) bool {
	switch option {
	case "rw", "ro", "xattr", "noprefix", "clone_children", "cpuset_v2_mode", "favordynmods":
		return false
	}
	return !strings.Contains(option, "=") || strings.HasPrefix(option, "name=")
}

// Has reports whether a controller can be used.
func (t *Tree) Has(controller string) bool {
	if !t.V2 {
		return t.mounts[controller] != ""
	}
	data, err := os.ReadFile(filepath.Join(t.mounts[""], "cgroup.controllers"))
	return err == nil && slices.Contains(strings.Fields(string(data)), controller)
}

// CanLimitSwap reports whether swap can be limited.
func (t *Tree) CanLimitSwap() bool {
	if !t.V2 {
		_, err := os.Stat(filepath.Join(t.mounts["memory"], "memory.memsw.limit_in_bytes"))
		return t.mounts["memory"] != "" && err == nil
	}
	// The root cgroup has no such file; any other tells.
	entries, err := filepath.Glob(filepath.Join(t.mounts[""], "*", "memory.swap.max"))
	return err == nil && len(entries) > 0
}

// Paths returns where the cgroup at path ("/kubepods/podX") is in each hierarchy.
func (t *Tree) Paths(path string) Paths {
	paths := Paths{}
	for controller, mount := range t.mounts {
		paths[controller] = filepath.Join(mount, path)
	}
	return paths
}

// SlicePath returns the cgroup of a systemd slice: "a-b.slice" is below "a.slice".
func SlicePath(slice string) (string, error) {
	name, ok := strings.CutSuffix(slice, ".slice")
	if !ok || strings.Contains(name, "/") || name == "" {
		return "", fmt.Errorf("%q is no slice: %w", slice, errs.Invalid)
	}
	if name == "-" {
		return "/", nil
	}
	path, prefix := "/", ""
	for part := range strings.SplitSeq(name, "-") {
		if part == "" {
			return "", fmt.Errorf("%q is no slice: %w", slice, errs.Invalid)
		}
		path = filepath.Join(path, prefix+part+".slice")
		prefix += part + "-"
	}
	return path, nil
}

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

// Missing returns the topmost cgroup of path that does not exist, "" when all of
// it does.
func (t *Tree) Missing(path string) string {
	missing := ""
	for ; path != "/" && path != "." && !t.Exists(path); path = filepath.Dir(path) {
		missing = path
	}
	return missing
}

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

// dirs returns each directory once: controllers may be mounted together.
func (p Paths) dirs() []string {
	var dirs []string
	for _, dir := range p {
		if !slices.Contains(dirs, dir) {
			dirs = append(dirs, dir)
		}
	}
	slices.Sort(dirs)
	return dirs
}
