package cgroup

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/opencontainers/cgroups"
)

// helperTimeout bounds the wait for the kernel to see the end of a helper.
const helperTimeout = 2 * time.Second

// HelperGroups makes cgroups for helper processes, each with a limit on its memory.
type HelperGroups struct {
	// dir is the directory in the hierarchy that has the memory controller;
	// names begin with prefix.
	dir, prefix string
	unified     bool
}

// NewHelperGroups prepares parent, a path from the root of the hierarchy, and removes
// what a killed predecessor with the same prefix left there.
func NewHelperGroups(parent, prefix string) (*HelperGroups, error) {
	h := &HelperGroups{prefix: prefix + "-", unified: cgroups.IsCgroup2UnifiedMode()}
	root := "/sys/fs/cgroup"
	if !h.unified {
		var err error
		if root, err = cgroups.FindCgroupMountpoint("/", "memory"); err != nil {
			return nil, fmt.Errorf("cannot find the memory controller: %w", err)
		}
	}
	h.dir = filepath.Join(root, parent)
	if err := h.makeParent(root); err != nil {
		return nil, fmt.Errorf("cannot make the parent cgroup of helpers: %w", err)
	}
	return h, h.sweep()
}

// makeParent makes every directory down to dir, on v2 with the memory
// controller handed down.
func (h *HelperGroups) makeParent(root string) error {
	rel, err := filepath.Rel(root, h.dir)
	if err != nil {
		return err
	}
	dir := root
	for _, name := range append([]string{"."}, strings.Split(rel, "/")...) {
		dir = filepath.Join(dir, name)
		if err := os.Mkdir(dir, 0o755); err != nil && !errors.Is(err, os.ErrExist) {
			return err
		}
		if !h.unified {
			continue
		}
		if err := os.WriteFile(filepath.Join(dir, "cgroup.subtree_control"), []byte("+memory"), 0); err != nil {
			return err
		}
	}
	return nil
}

func (h *HelperGroups) sweep() error {
	entries, err := os.ReadDir(h.dir)
	if err != nil {
		return err
	}
	for _, entry := range entries {
		if entry.IsDir() && strings.HasPrefix(entry.Name(), h.prefix) {
			(&HelperGroup{dir: filepath.Join(h.dir, entry.Name())}).Remove()
		}
	}
	return nil
}

// Dir is the parent's directory.
func (h *HelperGroups) Dir() string { return h.dir }

// Close removes the parent, unless another process still uses it. A slice is systemd's.
func (h *HelperGroups) Close() {
	if !strings.HasSuffix(h.dir, ".slice") {
		_ = syscall.Rmdir(h.dir)
	}
}

// HelperGroup is a cgroup for one helper at a time.
type HelperGroup struct {
	dir     string
	unified bool
}

// New makes a cgroup that may use limit bytes of memory and no swap.
func (h *HelperGroups) New(limit int64) (*HelperGroup, error) {
	dir, err := os.MkdirTemp(h.dir, h.prefix)
	if errors.Is(err, os.ErrNotExist) {
		// Another instance that shares the parent removed it as its own.
		if err = os.Mkdir(h.dir, 0o755); err == nil || errors.Is(err, os.ErrExist) {
			dir, err = os.MkdirTemp(h.dir, h.prefix)
		}
	}
	if err != nil {
		return nil, fmt.Errorf("cannot make a cgroup: %w", err)
	}
	group := &HelperGroup{dir: dir, unified: h.unified}
	value := strconv.FormatInt(limit, 10)
	settings := [][2]string{{"memory.limit_in_bytes", value}, {"memory.memsw.limit_in_bytes", value}}
	if h.unified {
		settings = [][2]string{{"memory.max", value}, {"memory.swap.max", "0"}}
	}
	for i, setting := range settings {
		err := os.WriteFile(filepath.Join(dir, setting[0]), []byte(setting[1]), 0)
		// Swap accounting is an option of the kernel.
		if err != nil && (i == 0 || !errors.Is(err, os.ErrNotExist) && !errors.Is(err, os.ErrPermission)) {
			group.Remove()
			return nil, fmt.Errorf("cannot limit the memory of a cgroup: %w", err)
		}
	}
	return group, nil
}

// Procs is the file that takes a process into the cgroup.
func (g *HelperGroup) Procs() string { return filepath.Join(g.dir, procsFile) }

// Used is how many bytes of memory the cgroup has. When its process has ended, that is page cache, and memory of the kernel for
// files. They count against the limit of the next process.
func (g *HelperGroup) Used() (int64, error) {
	name := "memory.usage_in_bytes"
	if g.unified {
		name = "memory.current"
	}
	data, err := os.ReadFile(filepath.Join(g.dir, name))
	if err != nil {
		return 0, fmt.Errorf("cannot read the memory of a cgroup: %w", err)
	}
	used, err := strconv.ParseInt(strings.TrimSpace(string(data)), 10, 64)
	if err != nil {
		return 0, fmt.Errorf("cannot read the memory of a cgroup: %w", err)
	}
	return used, nil
}

// Remove removes the cgroup. Its process has been waited for, or ends with this one; the
// kernel may need a moment more. The next NewHelperGroups removes leftovers.
func (g *HelperGroup) Remove() {
	ctx, stop := context.WithTimeout(context.Background(), helperTimeout)
	defer stop()
	_ = Paths{"": g.dir}.Remove(ctx)
}
