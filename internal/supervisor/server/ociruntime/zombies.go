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

// libcontainer starts an exec in stages, which are children of this process. When an early stage
// fails (the container ends meanwhile), libcontainer waits only for that one. The zombies of the
// others would stay, and one in the container's PID namespace keeps the container's init from ending.

const (
	// scanPause is the time between two scans for zombies.
	scanPause = 500 * time.Millisecond
	// zombieAge is how long a child must have been a zombie: libcontainer waits for its
	// children sooner.
	zombieAge = 2 * time.Second
)

// zombieReaper reaps the zombies that failed starts have left.
type zombieReaper struct {
	// isInit reports whether a process is the init of a container, which is not reaped here.
	isInit func(pid int) bool

	mu sync.Mutex
	// running is true while run is under way, again when another start has failed since the
	// last scan.
	running, again bool
}

// reapSoon begins to reap, in the background, the zombies of a start that has just failed.
func (r *zombieReaper) reapSoon() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.again = true
	if !r.running {
		r.running = true
		go r.run()
	}
}

// run scans until no zombie is left.
func (r *zombieReaper) run() {
	dead := make(map[int]zombie)
	for r.scanAgain(len(dead) > 0) {
		time.Sleep(scanPause)
		found := stages()
		for pid, start := range found {
			if dead[pid].start != start {
				dead[pid] = zombie{start, time.Now()}
			}
		}
		for pid, z := range dead {
			if found[pid] != z.start || r.isInit(pid) {
				delete(dead, pid)
			} else if time.Since(z.since) >= zombieAge {
				if err := sysproc.ReapPid(pid); err != nil {
					slog.Warn("cannot reap a stage of a failed start", "pid", pid, "error", err)
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

// scanAgain reports whether run should scan once more. left: the last scan has left zombies.
func (r *zombieReaper) scanAgain(left bool) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.running = left || r.again
	r.again = false
	return r.running
}

// stages returns the start times of this process's children that are zombies of libcontainer's stages,
// by pid. A stage has the name of the one before until it has set its own: each of the three names
// may be that of a later stage.
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
