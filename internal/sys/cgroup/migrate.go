package cgroup

import (
	"bufio"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
)

// Moves makes the kernel ready for processes that are about to be moved into a
// cgroup. The first move after a pause of some ten milliseconds waits for an RCU grace
// period (cgroup_threadgroup_rwsem, 5 to 14 ms); those that follow do not. Every
// container and every exec moves a process, so that wait is best had while what leads
// to the move is worked out.
type Moves struct {
	tree *Tree
	// asking: a move for the kernel's sake is under way.
	asking atomic.Bool
	// own finds the cgroup.procs of this process's own cgroup, "" for none.
	own func() string
}

// NewMoves returns the Moves of the host.
func (t *Tree) NewMoves() *Moves {
	m := &Moves{tree: t}
	m.own = m.find
	return m
}

// Soon says that a process is to be moved in a moment. It returns at once: this process
// is meanwhile moved to where it is already, which changes nothing. Where that cannot be
// done, moves wait as they would have.
func (m *Moves) Soon() {
	if !m.asking.CompareAndSwap(false, true) {
		return
	}
	go func() {
		defer m.asking.Store(false)
		if procs := m.own(); procs != "" {
			_ = os.WriteFile(procs, []byte("0"), 0)
		}
	}()
}

// find looks each time, since an administrator may have moved this process.
func (m *Moves) find() string {
	f, err := os.Open("/proc/self/cgroup")
	if err != nil {
		return ""
	}
	defer f.Close()
	return m.tree.procsOf(f)
}

// procsOf reads a /proc/PID/cgroup and returns a file that the process is in, "" when
// none is mounted here. The lock is one for all hierarchies; cpuset's, which would do
// more on a move, is not taken.
func (t *Tree) procsOf(r io.Reader) string {
	found := ""
	for lines := bufio.NewScanner(r); lines.Scan(); {
		fields := strings.SplitN(lines.Text(), ":", 3) // number, controllers, path
		if len(fields) < 3 {
			continue
		}
		for controller := range strings.SplitSeq(fields[1], ",") {
			if mount := t.mounts[controller]; mount != "" && controller != "cpuset" {
				found = filepath.Join(mount, fields[2], "cgroup.procs")
			}
		}
	}
	return found
}
