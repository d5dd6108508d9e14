package cgroup

import (
	"bufio"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
)

// Warmer prepares the kernel for the migration of a process into a cgroup. The first
// migration after a pause of some ten milliseconds waits for an RCU grace period
// (cgroup_threadgroup_rwsem, 5 to 14 ms); those that follow do not. Every container and
// every exec migrates a process, so a Warmer takes that wait while the container or the
// exec is still being prepared.
type Warmer struct {
	tree *Tree
	// warming is true while a migration for the kernel's sake is under way.
	warming atomic.Bool
	// own finds the cgroup.procs of this process's own cgroup, "" for none.
	own func() string
}

// NewWarmer returns a Warmer for the host.
func (t *Tree) NewWarmer() *Warmer {
	w := &Warmer{tree: t}
	w.own = w.find
	return w
}

// Warm is called before a process migrates. It returns at once: in the background this
// process migrates to the cgroup that it is in, which changes nothing. Where that fails,
// the next migration waits as it would have.
func (w *Warmer) Warm() {
	if !w.warming.CompareAndSwap(false, true) {
		return
	}
	go func() {
		defer w.warming.Store(false)
		if procs := w.own(); procs != "" {
			_ = os.WriteFile(procs, []byte("0"), 0)
		}
	}()
}

// find looks each time, since an administrator may have moved this process.
func (w *Warmer) find() string {
	f, err := os.Open("/proc/self/cgroup")
	if err != nil {
		return ""
	}
	defer f.Close()
	return w.tree.procsOf(f)
}

// procsOf reads a /proc/PID/cgroup and returns the cgroup.procs of a cgroup that the
// process is in, "" when none is mounted here. The lock is one for all hierarchies; cpuset's, which would do
// more on a migration, is not taken.
func (t *Tree) procsOf(r io.Reader) string {
	found := ""
	for lines := bufio.NewScanner(r); lines.Scan(); {
		fields := strings.SplitN(lines.Text(), ":", 3) // number, controllers, path
		if len(fields) < 3 {
			continue
		}
		for controller := range strings.SplitSeq(fields[1], ",") {
			if mount := t.mounts[controller]; mount != "" && controller != "cpuset" {
				found = filepath.Join(mount, fields[2], procsFile)
			}
		}
	}
	return found
}
