package unpack

import (
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

// removeTimeout is how long Remove waits for the kernel to see a child's end.
const removeTimeout = 2 * time.Second

// Cgroups makes memory-limited cgroups for children, on v1, hybrid and v2.
type Cgroups struct {
	// dir is the directory in the hierarchy that has the memory controller;
	// names begin with prefix.
	dir, prefix string
	unified     bool
}

// NewCgroups prepares parent, a path from the root of the hierarchy, and removes
// what a killed predecessor with the same prefix left there.
func NewCgroups(parent, prefix string) (*Cgroups, error) {
	c := &Cgroups{prefix: prefix + "-", unified: cgroups.IsCgroup2UnifiedMode()}
	root := "/sys/fs/cgroup"
	if !c.unified {
		var err error
		if root, err = cgroups.FindCgroupMountpoint("/", "memory"); err != nil {
			return nil, fmt.Errorf("cannot find the memory controller for the unpack helper: %w", err)
		}
	}
	c.dir = filepath.Join(root, parent)
	if err := c.makeParent(root); err != nil {
		return nil, fmt.Errorf("cannot make the parent cgroup of the unpack helper: %w", err)
	}
	return c, c.sweep()
}

// makeParent makes every directory down to c.dir, on v2 with the memory
// controller handed down.
func (c *Cgroups) makeParent(root string) error {
	rel, err := filepath.Rel(root, c.dir)
	if err != nil {
		return err
	}
	dir := root
	for _, name := range append([]string{"."}, strings.Split(rel, "/")...) {
		dir = filepath.Join(dir, name)
		if err := os.Mkdir(dir, 0o755); err != nil && !errors.Is(err, os.ErrExist) {
			return err
		}
		if !c.unified {
			continue
		}
		if err := os.WriteFile(filepath.Join(dir, "cgroup.subtree_control"), []byte("+memory"), 0); err != nil {
			return err
		}
	}
	return nil
}

func (c *Cgroups) sweep() error {
	entries, err := os.ReadDir(c.dir)
	if err != nil {
		return err
	}
	for _, entry := range entries {
		if entry.IsDir() && strings.HasPrefix(entry.Name(), c.prefix) {
			(&Cgroup{dir: filepath.Join(c.dir, entry.Name())}).Remove()
		}
	}
	return nil
}

// Close removes the parent, unless somebody else still uses it.
func (c *Cgroups) Close() { _ = syscall.Rmdir(c.dir) }

// Cgroup of one child.
type Cgroup struct{ dir string }

// New makes a cgroup that may use limit bytes of memory and no swap.
func (c *Cgroups) New(limit int64) (*Cgroup, error) {
	dir, err := os.MkdirTemp(c.dir, c.prefix)
	if errors.Is(err, os.ErrNotExist) {
		// Another instance that shares the parent removed it as its own.
		if err = os.Mkdir(c.dir, 0o755); err == nil || errors.Is(err, os.ErrExist) {
			dir, err = os.MkdirTemp(c.dir, c.prefix)
		}
	}
	if err != nil {
		return nil, fmt.Errorf("cannot make a cgroup for the unpack helper: %w", err)
	}
	cgroup := &Cgroup{dir: dir}
	value := strconv.FormatInt(limit, 10)
	settings := [][2]string{{"memory.limit_in_bytes", value}, {"memory.memsw.limit_in_bytes", value}}
	if c.unified {
		settings = [][2]string{{"memory.max", value}, {"memory.swap.max", "0"}}
	}
	for i, setting := range settings {
		err := os.WriteFile(filepath.Join(dir, setting[0]), []byte(setting[1]), 0)
		// Swap accounting is an option of the kernel.
		if err != nil && (i == 0 || !errors.Is(err, os.ErrNotExist) && !errors.Is(err, os.ErrPermission)) {
			cgroup.Remove()
			return nil, fmt.Errorf("cannot limit the memory of the unpack helper: %w", err)
		}
	}
	return cgroup, nil
}

// Procs is the file that takes a process into the cgroup.
func (c *Cgroup) Procs() string { return filepath.Join(c.dir, "cgroup.procs") }

// Remove removes the cgroup. Its child has been waited for, or dies with us; the
// kernel may need a moment more.
func (c *Cgroup) Remove() {
	deadline := time.Now().Add(removeTimeout)
	for {
		err := syscall.Rmdir(c.dir)
		if err == nil || !errors.Is(err, syscall.EBUSY) || time.Now().After(deadline) {
			return
		}
		time.Sleep(time.Millisecond)
	}
}
