package sysproc

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// ticksPerSecond is the unit of Proc.Start, the same on all machines.
const ticksPerSecond = 100

// OOMKilled reports whether the kernel's log says that the OOM killer ended the process pid that
// began at start (Proc.Start), or later another process of the cgroup with that name. It is for
// a cgroup that is gone with its counters. The log is bounded: false may mean that the record is
// gone. Kernels before 5.0 do not log the cgroup.
func OOMKilled(pid int, start uint64, cgroup string) (bool, error) {
	if kills, err := oomKills(); err == nil && kills == 0 {
		return false, nil
	}
	fd, err := unix.Open("/dev/kmsg", unix.O_RDONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return false, fmt.Errorf("cannot read the kernel's log: %w", err)
	}
	defer unix.Close(fd)
	since := awakeAt(start)
	buf := make([]byte, 8<<10) // the kernel's own bound of a record
	for {
		n, err := unix.Read(fd, buf)
		switch {
		case errors.Is(err, unix.EAGAIN):
			return false, nil // the end of it
		case errors.Is(err, unix.EPIPE), errors.Is(err, unix.EINTR):
			continue // the oldest went while we read
		case err != nil:
			return false, fmt.Errorf("cannot read the kernel's log: %w", err)
		}
		kill, ok := parseOOMKill(string(buf[:n]))
		if ok && kill.at >= since && (kill.pid == pid || kill.in(cgroup)) {
			return true, nil
		}
	}
}

// oomKills returns how many processes the OOM killer has killed since the machine started.
func oomKills() (uint64, error) {
	data, err := os.ReadFile("/proc/vmstat")
	if err != nil {
		return 0, fmt.Errorf("cannot count the OOM kills of the machine: %w", err)
	}
	for line := range strings.Lines(string(data)) {
		if count, ok := strings.CutPrefix(line, "oom_kill "); ok {
			return strconv.ParseUint(strings.TrimSpace(count), 10, 64)
		}
	}
	return 0, errors.New("the kernel does not count the OOM kills of the machine")
}

// oomKill is one kill in the kernel's log: either its pid or its cgroup is known.
type oomKill struct {
	// pid is 0 in a record that has the cgroup.
	pid int
	// cgroup is the path of the victim's cgroup.
	cgroup string
	at     time.Duration
}

// in reports whether the victim was in the cgroup of that name or below it.
func (k *oomKill) in(name string) bool {
	return name != "" && slices.Contains(strings.Split(k.cgroup, "/"), name)
}

// parseOOMKill reads a record, "priority,number,microseconds,flags;text". The kernel writes
// two of one kill:
//
//	oom-kill:constraint=CONSTRAINT_MEMCG,...,task_memcg=/a/b,task=sh,pid=7,uid=0
//	Memory cgroup out of memory: Killed process 7 (sh) ...
func parseOOMKill(record string) (kill oomKill, ok bool) {
	head, text, _ := strings.Cut(record, ";")
	text, _, _ = strings.Cut(text, "\n")
	fields := strings.Split(head, ",")
	if len(fields) < 3 {
		return oomKill{}, false
	}
	micros, err := strconv.ParseInt(fields[2], 10, 64)
	if err != nil {
		return oomKill{}, false
	}
	kill.at = time.Duration(micros) * time.Microsecond
	if details, found := strings.CutPrefix(text, "oom-kill:"); found {
		_, path, found := strings.Cut(details, ",task_memcg=")
		kill.cgroup, _, _ = strings.Cut(path, ",task=")
		return kill, found
	}
	// Or "Out of memory: ...".
	reason, victim, ok := strings.Cut(text, ": Killed process ")
	if !ok || !strings.HasSuffix(strings.ToLower(reason), "out of memory") {
		return oomKill{}, false
	}
	digits, _, _ := strings.Cut(victim, " ")
	kill.pid, err = strconv.Atoi(digits)
	return kill, err == nil
}

// awakeAt is a process's start on the clock of kernel log and events, which stands
// still while the machine is suspended; a little early, since start is coarse.
func awakeAt(start uint64) time.Duration {
	return time.Duration(start)*(time.Second/ticksPerSecond) - asleep() - 2*time.Second/ticksPerSecond
}

// asleep is how long the machine has been suspended.
func asleep() time.Duration {
	var boot, awake unix.Timespec
	if unix.ClockGettime(unix.CLOCK_BOOTTIME, &boot) != nil || unix.ClockGettime(unix.CLOCK_MONOTONIC, &awake) != nil {
		return 0
	}
	return time.Duration(boot.Nano() - awake.Nano())
}
