package ociruntime

import (
	"log/slog"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/berthrun/berth/internal/sys/sysproc"
)

// The processes that lead to an exec's are this process's own children, and when one
// of the first fails (the container ends meanwhile) libcontainer waits for that one
// alone. The zombies of the others would stay, and one in the container's PID namespace
// keeps the container's init from ending.

const (
	// settled is when all that a failed start began has ended, and unwanted is how long
	// a child must have been dead for libcontainer not to be about to wait for it.
	settled  = 500 * time.Millisecond
	unwanted = 2 * time.Second
)

// forgotten reaps what failed starts have left, a moment later.
type forgotten struct {
	// spare tells of zombies that are somebody's.
	spare func(pid int) bool

	mu sync.Mutex
	// running: run is under way. again: since its last look another start has failed.
	running, again bool
}

// reapSoon sees to it that what a start that has just failed left is reaped.
func (f *forgotten) reapSoon() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.again = true
	if !f.running {
		f.running = true
		go f.run()
	}
}

// run looks until nothing is left.
func (f *forgotten) run() {
	dead := make(map[int]zombie)
	for f.more(len(dead) > 0) {
		time.Sleep(settled)
		found := stages()
		for pid, start := range found {
			if dead[pid].start != start {
				dead[pid] = zombie{start, time.Now()}
			}
		}
		for pid, z := range dead {
			if found[pid] != z.start || f.spare(pid) {
				delete(dead, pid)
			} else if time.Since(z.since) >= unwanted {
				if err := sysproc.ReapPid(pid); err != nil {
					slog.Warn("a stage of a failed start is not reaped", "pid", pid, "error", err)
				}
				delete(dead, pid)
			}
		}
	}
}

// zombie is a child by its start time, and when it was first seen to be dead.
type zombie struct {
	start uint64
	since time.Time
}

// more tells run whether to look once more.
func (f *forgotten) more(left bool) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.running = left || f.again
	f.again = false
	return f.running
}

// stages returns the start times of this process's children that are zombies of
// libcontainer's stages, by pid. A stage bears the name of the one before until it has
// given itself its own, so that the first one's name may be any one's.
func stages() map[int]uint64 {
	found := make(map[int]uint64)
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil
	}
	for _, entry := range entries {
		pid, err := strconv.Atoi(entry.Name())
		if err != nil {
			continue
		}
		proc, err := sysproc.ReadProc(pid)
		if err != nil || proc.PPid != os.Getpid() || !proc.Zombie() {
			continue
		}
		name, err := os.ReadFile("/proc/" + entry.Name() + "/comm")
		if err != nil {
			continue
		}
		switch strings.TrimSpace(string(name)) {
		case "runc:[0:PARENT]", "runc:[1:CHILD]", initName:
			found[pid] = proc.Start
		}
	}
	return found
}
