package harness

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/berthrun/berth/internal/require"
)

// SupervisorPid is the supervisor's pid, 0 when there is none.
func (b *Berth) SupervisorPid() int { return b.roleOf("serve") }

// KeeperPid is the keeper's pid, 0 when there is none.
func (b *Berth) KeeperPid() int { return b.roleOf("keep") }

func (b *Berth) roleOf(role string) int {
	for _, process := range Processes(func(_ int, cmdline string) bool {
		return strings.Contains(cmdline, "berth-supervisor") && strings.Contains(cmdline, b.State) &&
			strings.Contains(cmdline+" ", " "+role+" ")
	}) {
		text, _, _ := strings.Cut(process, " ")
		if pid, err := strconv.Atoi(text); err == nil {
			return pid
		}
	}
	return 0
}

// Kill ends processes by SIGKILL and waits until they are gone or zombies.
func Kill(t testing.TB, pids ...int) {
	t.Helper()
	for _, pid := range pids {
		if pid <= 1 {
			t.Fatalf("no process to kill: pid %d", pid)
		}
		_ = syscall.Kill(pid, syscall.SIGKILL)
	}
	for _, pid := range pids {
		for deadline := time.Now().Add(require.Patience(10 * time.Second)); alive(pid); {
			if time.Now().After(deadline) {
				t.Fatalf("process %d does not die", pid)
			}
			time.Sleep(time.Millisecond)
		}
	}
}

func alive(pid int) bool {
	stat, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "stat"))
	if err != nil {
		return false
	}
	_, rest, _ := strings.Cut(string(stat), ") ")
	return !strings.HasPrefix(rest, "Z")
}
