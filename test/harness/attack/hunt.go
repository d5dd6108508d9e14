package attack

import (
	"encoding/json"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Hunter is where a container finds the program that waits for a helper of the runtime
// in its PID namespace, and attaches to it. Its argument is for how many seconds.
const Hunter = "/hunt"

// Hunt is what came of it.
type Hunt struct {
	// Seen is how many helpers there were, Attached how many of them were traced.
	Seen, Attached int
	// Users is the helper's map of users, Refused why one could not be traced.
	Users, Refused string
}

// helper is what libcontainer's helper calls itself.
const helper = "runc:[2:INIT]"

// hunt prints a report when its time is over, or when it has caught a helper.
func hunt(seconds string) error {
	runtime.LockOSThread() // the thread is the tracer
	n, err := strconv.Atoi(seconds)
	if err != nil {
		return err
	}
	h, known := &Hunt{}, map[string]bool{}
	for end := time.Now().Add(time.Duration(n) * time.Second); h.Attached == 0 && time.Now().Before(end); {
		entries, err := os.ReadDir("/proc")
		if err != nil {
			return err
		}
		for _, entry := range entries {
			h.try(entry.Name(), known)
		}
	}
	return json.NewEncoder(os.Stdout).Encode(h)
}

func (h *Hunt) try(name string, known map[string]bool) {
	pid, err := strconv.Atoi(name)
	if err != nil {
		return
	}
	proc := filepath.Join("/proc", name)
	if comm, err := os.ReadFile(filepath.Join(proc, "comm")); err != nil || strings.TrimSpace(string(comm)) != helper {
		return
	}
	if !known[name] {
		known[name] = true
		h.Seen++
	}
	if err := unix.PtraceSeize(pid); err != nil {
		if err != unix.ESRCH {
			h.Refused = err.Error()
		}
		return
	}
	h.Attached++
	users, _ := os.ReadFile(filepath.Join(proc, "uid_map"))
	h.Users = strings.Join(strings.Fields(string(users)), " ")
}
