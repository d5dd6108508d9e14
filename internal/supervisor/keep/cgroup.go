package keep

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// A keeper that a daemon started leaves the daemon's cgroup, and whatever pod or
// session that lies in, for one of its own below the root of each hierarchy.

// enterCgroup moves this process into the cgroup name of every hierarchy. A
// hierarchy that does not let it in is left out, and told.
func enterCgroup(name string) error {
	if name != filepath.Base(name) || strings.Contains(name, "kubepods") {
		return fmt.Errorf("cgroup %q is no name for a supervisor's own", name)
	}
	roots, err := cgroupRoots()
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
	// cpuset on cgroup v1 admits nobody before it has processors and memory.
	for _, file := range []string{"cpuset.cpus", "cpuset.mems"} {
		if err := copyIfEmpty(filepath.Join(root, file), filepath.Join(dir, file)); err != nil {
			return err
		}
	}
	return join(dir)
}

// leaveCgroup goes back to the roots and removes what enterCgroup made.
func leaveCgroup(name string) error {
	roots, err := cgroupRoots()
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
	if err := os.WriteFile(filepath.Join(dir, "cgroup.procs"), []byte("0"), 0); err != nil {
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

// cgroupRoots lists where the hierarchies are mounted, each once.
func cgroupRoots() ([]string, error) {
	f, err := os.Open("/proc/self/mountinfo")
	if err != nil {
		return nil, fmt.Errorf("cannot find the cgroup mounts: %w", err)
	}
	defer f.Close()
	var roots []string
	seen := map[string]bool{}
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		device, root, ok := cgroupMount(lines.Text())
		if ok && !seen[device] {
			seen[device] = true
			roots = append(roots, root)
		}
	}
	if err := lines.Err(); err != nil {
		return nil, fmt.Errorf("cannot find the cgroup mounts: %w", err)
	}
	return roots, nil
}

// cgroupMount reads a line of mountinfo: "id parent device root point options -
// type ...". A hierarchy that is mounted from below its root is not ours to use.
func cgroupMount(line string) (device, point string, ok bool) {
	fields := strings.Fields(line)
	dash := slices.Index(fields, "-")
	if dash < 5 || dash+1 >= len(fields) {
		return "", "", false
	}
	kind := fields[dash+1]
	if kind != "cgroup" && kind != "cgroup2" || fields[3] != "/" {
		return "", "", false
	}
	return fields[2], fields[4], true
}
