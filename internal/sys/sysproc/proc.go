package sysproc

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berthrun/berth/internal/errs"
)

// Proc is what /proc/PID/stat has of a process.
type Proc struct {
	Pid int
	// State is the kernel's letter; see Zombie.
	State byte
	PPid  int
	// Session is the pid of the process that began the session.
	Session int
	// Exiting is true once the process has begun to end. The init of a PID namespace stays so until the
	// other processes of its namespace have ended.
	Exiting bool
	// Start is the start time in clock ticks since boot: with Pid and the boot id
	// it names one process. A zombie still has it.
	Start uint64
	// Status is the wait status; it means something for a zombie only.
	Status syscall.WaitStatus
}

// Zombie is true when the process has ended and is not reaped.
func (p Proc) Zombie() bool { return p.State == 'Z' || p.State == 'X' }

// StartedAt returns the start as a time of the clock, to one tick.
func (p Proc) StartedAt() (time.Time, error) {
	var boot unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &boot); err != nil {
		return time.Time{}, fmt.Errorf("cannot read the time since boot: %w", err)
	}
	age := time.Duration(boot.Nano()) - time.Duration(p.Start)*(time.Second/ticksPerSecond) //nolint:gosec // years
	return time.Now().Add(-age), nil
}

// ReadProc reads /proc/PID/stat. Kind NotFound when there is no such process.
func ReadProc(pid int) (Proc, error) {
	data, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if errors.Is(err, os.ErrNotExist) || errors.Is(err, unix.ESRCH) {
		return Proc{}, fmt.Errorf("process %d: %w", pid, errs.NotFound)
	}
	if err != nil {
		return Proc{}, fmt.Errorf("cannot read the state of process %d: %w", pid, err)
	}
	p, err := parseStat(data)
	if err != nil {
		return Proc{}, fmt.Errorf("cannot read the state of process %d: %w", pid, err)
	}
	p.Pid = pid
	return p, nil
}

// parseStat reads one stat line. The name of the program (field 2) may hold
// blanks and brackets: the fields are counted from the last bracket.
func parseStat(data []byte) (Proc, error) {
	const state, ppid, session, flags, start, exitCode = 3, 4, 6, 9, 22, 52 // field numbers of proc(5)
	const exiting = 4                                                       // PF_EXITING of the kernel
	end := bytes.LastIndexByte(data, ')')
	if end < 0 {
		return Proc{}, errors.New("no program name in the stat line")
	}
	fields := strings.Fields(string(data[end+1:]))
	if len(fields) <= start-state {
		return Proc{}, fmt.Errorf("%d fields in the stat line", len(fields)+2)
	}
	letter := fields[0]
	if len(letter) != 1 || !('A' <= letter[0] && letter[0] <= 'Z' || 'a' <= letter[0] && letter[0] <= 'z') {
		return Proc{}, fmt.Errorf("%q in the stat line is no state", letter)
	}
	p := Proc{State: letter[0]}
	var err error
	if p.PPid, err = strconv.Atoi(fields[ppid-state]); err != nil {
		return Proc{}, err
	}
	if p.Session, err = strconv.Atoi(fields[session-state]); err != nil {
		return Proc{}, err
	}
	bits, err := strconv.ParseUint(fields[flags-state], 10, 32)
	if err != nil {
		return Proc{}, err
	}
	p.Exiting = bits&exiting != 0
	if p.Start, err = strconv.ParseUint(fields[start-state], 10, 64); err != nil {
		return Proc{}, err
	}
	if len(fields) > exitCode-state {
		code, err := strconv.ParseUint(fields[exitCode-state], 10, 32)
		if err != nil {
			return Proc{}, err
		}
		p.Status = syscall.WaitStatus(code)
	}
	return p, nil
}

// BootID returns the identifier that the kernel drew at this boot.
func BootID() (string, error) {
	data, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return "", fmt.Errorf("cannot read the boot id: %w", err)
	}
	return strings.TrimSpace(string(data)), nil
}

// SetSubreaper makes orphaned descendants of this process its children instead
// of pid 1's. It survives execve.
func SetSubreaper() error {
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("cannot become a subreaper: %w", err)
	}
	return nil
}

// SetOOMScoreAdj sets this process's oom_score_adj. Lowering it takes
// CAP_SYS_RESOURCE: kind Unsupported when the host does not allow it.
func SetOOMScoreAdj(value int) error { return SetOOMScoreAdjOf(os.Getpid(), value) }

// SetOOMScoreAdjOf is SetOOMScoreAdj for another process. A process that already has the value is
// left alone. Kind NotFound: it has ended.
func SetOOMScoreAdjOf(pid, value int) error {
	file := "/proc/" + strconv.Itoa(pid) + "/oom_score_adj"
	want := strconv.Itoa(value)
	now, err := os.ReadFile(file)
	if err == nil && strings.TrimSpace(string(now)) == want {
		return nil
	}
	if err == nil {
		err = os.WriteFile(file, []byte(want), 0)
	}
	switch {
	case errors.Is(err, os.ErrNotExist) || errors.Is(err, unix.ESRCH):
		return fmt.Errorf("process %d: %w", pid, errs.NotFound)
	case errors.Is(err, os.ErrPermission):
		return fmt.Errorf("oom_score_adj %d of process %d: %w", value, pid, errs.Unsupported)
	case err != nil:
		return fmt.Errorf("cannot set oom_score_adj %d of process %d: %w", value, pid, err)
	}
	return nil
}

// readKeyed reads the number that follows key at the start of a line of path.
func readKeyed(path, key string, value *int) error {
	data, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	for line := range strings.Lines(string(data)) {
		if rest, found := strings.CutPrefix(line, key); found {
			*value, err = strconv.Atoi(strings.TrimSpace(rest))
			return err
		}
	}
	return fmt.Errorf("no line %q in %s", key, path)
}
