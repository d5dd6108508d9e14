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

	"github.com/berthrun/berth/internal/errs"
)

const (
	// helperTimeout bounds the wait for the kernel to see the end of a helper.
	helperTimeout = 2 * time.Second
	// helperTasks is how many processes and threads a helper may have: Go has one thread for each processor, and some more. On v1
	// the controller has a hierarchy of its own, which helpers do not enter. There the limit of memory bounds them, because it
	// counts what the kernel needs for each.
	helperTasks = "1024"
)

// HelperGroups makes cgroups for helper processes, each with a limit on its memory.
type HelperGroups struct {
	// dir is the directory in the hierarchy that has the memory controller;
	// names begin with prefix.
	dir, prefix string
	unified     bool
}

// NewHelperGroups prepares parent, a path from the root of the hierarchy. Sweep is to be called next.
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
	return h, nil
}

// makeParent makes every directory down to dir, on v2 with the controllers handed down.
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
		control := filepath.Join(dir, "cgroup.subtree_control")
		if err := os.WriteFile(control, []byte("+memory"), 0); err != nil {
			return err
		}
		_ = os.WriteFile(control, []byte("+pids"), 0) // where it is missing, limit leaves it out
	}
	return nil
}

// Sweep kills the helpers that a killed predecessor with the same prefix left, and removes their cgroups. The caller has made
// sure that no other process uses the prefix.
func (h *HelperGroups) Sweep() error {
	entries, err := os.ReadDir(h.dir)
	if errors.Is(err, os.ErrNotExist) || errors.Is(err, syscall.ENODEV) {
		return nil // another instance that shares the parent has removed it as its own
	}
	if err != nil {
		return fmt.Errorf("cannot list the cgroups of helpers: %w", err)
	}
	var errList []error
	for _, entry := range entries {
		if entry.IsDir() && strings.HasPrefix(entry.Name(), h.prefix) {
			errList = append(errList, (&HelperGroup{dir: filepath.Join(h.dir, entry.Name()), unified: h.unified}).Remove())
		}
	}
	return errors.Join(errList...)
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
	// memory is the limit in bytes.
	memory string
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
	group := &HelperGroup{dir: dir, unified: h.unified, memory: strconv.FormatInt(limit, 10)}
	if err := group.limit(); err != nil {
		return nil, errors.Join(err, group.Remove())
	}
	return group, nil
}

// limit writes the limits of the cgroup.
func (g *HelperGroup) limit() error {
	settings := [][2]string{{"memory.limit_in_bytes", g.memory}, {"memory.memsw.limit_in_bytes", g.memory}}
	if g.unified {
		settings = [][2]string{{"memory.max", g.memory}, {"memory.swap.max", "0"}, {"pids.max", helperTasks}}
	}
	for i, setting := range settings {
		err := os.WriteFile(filepath.Join(g.dir, setting[0]), []byte(setting[1]), 0)
		// Swap accounting is an option of the kernel, and not every parent has the pids controller.
		if err != nil && (i == 0 || !errors.Is(err, os.ErrNotExist) && !errors.Is(err, os.ErrPermission)) {
			return fmt.Errorf("cannot limit the cgroup of a helper by %s: %w", setting[0], err)
		}
	}
	return nil
}

// Renew prepares the cgroup for the next helper. It fails if something has changed the cgroup so that its limits may not hold.
func (g *HelperGroup) Renew() error {
	entries, err := os.ReadDir(g.dir)
	if err != nil {
		return fmt.Errorf("cannot list the cgroup of a helper: %w", err)
	}
	for _, entry := range entries {
		if entry.IsDir() {
			return fmt.Errorf("cannot use the cgroup %s of a helper again: it has a child %s: %w", g.dir, entry.Name(), errs.State)
		}
	}
	return g.limit()
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

// Remove kills what is left in the cgroup, and removes it. It waits a little for the kernel to see the end of the processes.
func (g *HelperGroup) Remove() error {
	ctx, stop := context.WithTimeout(context.Background(), helperTimeout)
	defer stop()
	paths := Paths{"memory": g.dir}
	if g.unified {
		paths = Paths{"": g.dir}
	}
	return errors.Join(paths.Kill(ctx), paths.Remove(ctx))
}
