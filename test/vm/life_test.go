//go:build vm

package vm

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/berthrun/berth/internal/sys/sysproc"
	"github.com/berthrun/berth/test/harness"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// TestInstalledTerminalsLiveInTheFdStore: while all three processes are dead, only systemd holds
// the master of a terminal, and the pipes.
func TestInstalledTerminalsLiveInTheFdStore(t *testing.T) {
	b := harness.Installed(t)
	config := b.Sandbox("terminal")
	sandbox := b.RunSandbox(config)
	container := b.Container("c", counter)
	container.Tty = true
	id := b.Create(sandbox, container, config)
	b.StartContainer(id)
	pid := initPid(b, id)
	w := newWitness(b, "pipes")
	stored := show(t, harness.SupervisorUnit, "NFileDescriptorStore")
	if n, err := strconv.Atoi(stored); err != nil || n < 4 {
		t.Fatalf("the fd store holds %q descriptors of two containers", stored)
	}
	for _, what := range []string{"kill of all three", "restart of both", "stop and start of both"} {
		t.Log(what)
		before := harness.MainPid(t, harness.DaemonUnit)
		switch what {
		case "kill of all three":
			harness.Kill(t, b.KeeperPid(), b.SupervisorPid(), before)
			awaitActive(b, harness.DaemonUnit, before)
		case "restart of both":
			harness.Systemctl(t, "restart", harness.SupervisorUnit, harness.DaemonUnit)
		default:
			// systemd before 254 drops the store of a stopped unit.
			if version := systemdVersion(t); version < 254 {
				t.Logf("systemd %d has no FileDescriptorStorePreserve", version)
				continue
			}
			harness.Systemctl(t, "stop", harness.SupervisorUnit, harness.DaemonUnit)
			harness.Systemctl(t, "start", harness.DaemonUnit)
		}
		b.AwaitAnswer()
		if status := b.Status(id); status.State != runtimeapi.ContainerState_CONTAINER_RUNNING {
			t.Fatalf("the container with a terminal is %v, code %d", status.State, status.ExitCode)
		}
		logFile := filepath.Join(config.LogDirectory, "c", "0.log")
		size := func() int64 {
			info, err := os.Stat(logFile)
			if err != nil {
				t.Fatal(err)
			}
			return info.Size()
		}
		old := size()
		b.Await("output of the terminal", func() bool { return size() > old+20 })
		w.lives()
	}
	if got := initPid(b, id); got != pid {
		t.Errorf("init is %d, was %d", got, pid)
	}
	w.ends()
	b.RemoveAllPods()
	left := "0"
	if !sysproc.PidfdsReportExits() {
		left = "1" // the process connector does not belong to a container
	}
	b.Await("the fd store to be emptied", func() bool { return show(t, harness.SupervisorUnit, "NFileDescriptorStore") == left })
}

func systemdVersion(t *testing.T) int {
	t.Helper()
	fields := strings.Fields(harness.Systemctl(t, "--version"))
	version, err := strconv.Atoi(fields[1])
	if err != nil {
		t.Fatal(err)
	}
	return version
}

// TestInstalledExitsAreTrueThroughKills: this kernel reports the exit status of a process to its
// parent alone. After the supervisor's death that is the keeper.
func TestInstalledExitsAreTrueThroughKills(t *testing.T) {
	b := harness.Installed(t)
	for round := range 6 {
		var pods []*witness
		for i := range 3 {
			pods = append(pods, newWitness(b, fmt.Sprintf("exits-%d-%d", round, i)))
		}
		victims := []int{b.SupervisorPid()}
		if round%2 == 1 {
			victims = []int{b.KeeperPid()} // the supervisor becomes the keeper, and the parent stays
		}
		// One before the kill, one at the same time, one after.
		must(t, syscall.Kill(pods[0].pid, syscall.SIGTERM))
		harness.Kill(t, victims...)
		must(t, syscall.Kill(pods[1].pid, syscall.SIGTERM))
		pods[0].ended(41)
		pods[1].ended(41)
		must(t, syscall.Kill(pods[2].pid, syscall.SIGTERM))
		pods[2].ended(41)
		b.RemoveAllPods()
	}
}

// TestInstalledExitsAreTrueThoughAllDied: exits while none of the three lives wait in systemd's
// store, on any kernel.
func TestInstalledExitsAreTrueThoughAllDied(t *testing.T) {
	b := harness.Installed(t)
	old := newWitness(b, "old")
	harness.Kill(t, b.SupervisorPid()) // from now on it is the keeper's child
	old.lives()
	young := newWitness(b, "young")
	daemon := harness.MainPid(t, harness.DaemonUnit)
	harness.Kill(t, daemon, b.KeeperPid(), b.SupervisorPid())
	must(t, syscall.Kill(old.pid, syscall.SIGTERM))
	must(t, syscall.Kill(young.pid, syscall.SIGTERM))
	awaitActive(b, harness.DaemonUnit, daemon)
	b.AwaitAnswer()
	old.ended(41)
	young.ended(41)
}

func TestInstalledReloadRefusesBadValues(t *testing.T) {
	b := harness.Installed(t)
	const file = "/etc/berth/berth.toml"
	old, err := os.ReadFile(file)
	must(t, err)
	pid := harness.MainPid(t, harness.DaemonUnit)
	t.Cleanup(func() { must(t, os.WriteFile(file, old, 0o644)) })
	for _, change := range []struct{ from, to, want string }{
		{"level = 'info'", "level = 'debug'", "configuration reloaded"},
		{"level = 'info'", "level = 'loud'", "log.level"},
		{"mode = \"builtin\"", "mode = 'cni'", "network.mode"},
		{"level = 'info'", "level = 'info'", "configuration reloaded"},
	} {
		if !strings.Contains(string(old), change.from) {
			t.Fatalf("no %q in %s:\n%s", change.from, file, old)
		}
		must(t, os.WriteFile(file, []byte(strings.Replace(string(old), change.from, change.to, 1)), 0o644))
		since := time.Now()
		harness.Systemctl(t, "reload", harness.DaemonUnit)
		b.Await(change.want+" in the journal", func() bool {
			out, err := exec.Command("journalctl", "--no-pager", "-o", "cat", "-u", harness.DaemonUnit,
				"--since", fmt.Sprintf("@%d.%06d", since.Unix(), since.Nanosecond()/1000)).CombinedOutput()
			return err == nil && strings.Contains(string(out), change.want)
		})
		b.AwaitAnswer()
	}
	if now := harness.MainPid(t, harness.DaemonUnit); now != pid {
		t.Errorf("the daemon is process %d, was %d: it did not live through bad values", now, pid)
	}
}

// TestInstalledWatchdogEndsAHungDaemon stops the daemon's process as a deadlock
// would. The units' minute is shortened for it.
func TestInstalledWatchdogEndsAHungDaemon(t *testing.T) {
	b := harness.Installed(t)
	w := newWitness(b, "watched")
	const dropIn = "/run/systemd/system/berth.service.d/watchdog.conf"
	must(t, os.MkdirAll(filepath.Dir(dropIn), 0o755))
	must(t, os.WriteFile(dropIn, []byte("[Service]\nWatchdogSec=8\n"), 0o644))
	t.Cleanup(func() {
		must(t, os.RemoveAll(filepath.Dir(dropIn)))
		harness.Systemctl(t, "daemon-reload")
		harness.Systemctl(t, "restart", harness.DaemonUnit)
	})
	harness.Systemctl(t, "daemon-reload")
	harness.Systemctl(t, "restart", harness.DaemonUnit)
	pid := harness.MainPid(t, harness.DaemonUnit)
	// Twice the interval: systemd does not restart a daemon that works.
	time.Sleep(16 * time.Second)
	if now := harness.MainPid(t, harness.DaemonUnit); now != pid {
		t.Fatalf("the watchdog ended a daemon that works\n%s", harness.Journal(harness.DaemonUnit))
	}
	must(t, syscall.Kill(pid, syscall.SIGSTOP))
	awaitActive(b, harness.DaemonUnit, pid)
	b.AwaitAnswer()
	w.lives()
	w.ends()
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
