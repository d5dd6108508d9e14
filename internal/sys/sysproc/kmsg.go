package sysproc

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// ticksPerSecond is the unit of Proc.Start, the same on all machines.
const ticksPerSecond = 100

// OOMKilled reports whether the kernel's log says that the OOM killer ended the
// process pid that began at start (Proc.Start). It is for a process whose cgroup,
// with its counters, is gone. The log is bounded: false may mean that the record is gone.
func OOMKilled(pid int, start uint64) (bool, error) {
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
		if victim, at, ok := parseOOMKill(string(buf[:n])); ok && victim == pid && at >= since {
			return true, nil
		}
	}
}

// parseOOMKill reads a record, "priority,number,microseconds,flags;text".
func parseOOMKill(record string) (pid int, at time.Duration, ok bool) {
	head, text, _ := strings.Cut(record, ";")
	text, _, _ = strings.Cut(text, "\n")
	// "Memory cgroup out of memory: Killed process 7 (sh) ...", or "Out of memory: ...".
	reason, victim, ok := strings.Cut(text, ": Killed process ")
	if !ok || !strings.HasSuffix(strings.ToLower(reason), "out of memory") {
		return 0, 0, false
	}
	fields := strings.Split(head, ",")
	if len(fields) < 3 {
		return 0, 0, false
	}
	micros, err := strconv.ParseInt(fields[2], 10, 64)
	if err != nil {
		return 0, 0, false
	}
	digits, _, _ := strings.Cut(victim, " ")
	pid, err = strconv.Atoi(digits)
	return pid, time.Duration(micros) * time.Microsecond, err == nil
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
