package attack

import (
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Hunter is the path of the program that waits for a helper of the runtime in its PID namespace,
// and attaches to it. Its argument is the number of seconds.
const Hunter = "/hunt"

// Hunt is the result.
type Hunt struct {
	// Seen is how many helpers there were, Attached how many of them were traced before
	// they executed the command.
	Seen, Attached int
	// Users is the helper's map of users, Refused why one could not be traced.
	Users, Refused string
}

// helper is the name of libcontainer's helper process.
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
	// If this container cannot inspect a process, the process has another label than this
	// container. It is the helper.
	if comm, err := os.ReadFile(filepath.Join("/proc", name, "comm")); !errors.Is(err, fs.ErrPermission) && (err != nil || strings.TrimSpace(string(comm)) != helper) {
		return
	}
	if !known[name] {
		known[name] = true
		h.Seen++
	}
	caught, err := seize(pid)
	if err != nil {
		if !errors.Is(err, unix.ESRCH) {
			h.Refused = err.Error()
		}
		return
	}
	if !caught {
		return
	}
	h.Attached++
	users, _ := os.ReadFile(filepath.Join("/proc", name, "uid_map"))
	h.Users = strings.Join(strings.Fields(string(users)), " ")
}

// seize traces a process, and reports whether it stopped as the helper. A process that stops at or
// after its execve has the rights of the command: an attach that comes during an execve waits for
// its end.
func seize(pid int) (caught bool, err error) {
	if _, _, errno := unix.Syscall6(unix.SYS_PTRACE, unix.PTRACE_SEIZE, uintptr(pid), 0, unix.PTRACE_O_TRACEEXEC, 0, 0); errno != 0 {
		return false, errno
	}
	if err := unix.PtraceInterrupt(pid); err != nil {
		return false, err
	}
	var status unix.WaitStatus
	if _, err := unix.Wait4(pid, &status, unix.WALL, nil); err != nil || !status.Stopped() {
		return false, err
	}
	comm, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "comm"))
	if err == nil && strings.TrimSpace(string(comm)) == helper && status.TrapCause() != unix.PTRACE_EVENT_EXEC {
		return true, nil
	}
	return false, unix.PtraceDetach(pid)
}
