//go:build vm

package vm

import (
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/berthrun/berth/internal/sys/sysproc"
	"github.com/berthrun/berth/test/harness"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

func TestInstalledUnitsAnswer(t *testing.T) {
	b := harness.Installed(t)
	harness.Systemctl(t, "restart", harness.SupervisorUnit) // a supervisor that took over before ends
	b.AwaitAnswer()
	for _, unit := range []string{harness.DaemonUnit, harness.SupervisorUnit} {
		if state := show(t, unit, "ActiveState", "SubState"); state != "active\nrunning" {
			t.Errorf("%s is %q", unit, state)
		}
	}
	answer, err := b.Runtime.RuntimeConfig(b.Ctx(), &runtimeapi.RuntimeConfigRequest{})
	if err != nil {
		t.Fatal(err)
	}
	if driver := answer.GetLinux().GetCgroupDriver(); driver != runtimeapi.CgroupDriver_SYSTEMD {
		t.Errorf("cgroup driver %v, want systemd", driver)
	}
	if pid := harness.MainPid(t, harness.SupervisorUnit); pid != b.KeeperPid() {
		t.Errorf("main process of the supervisor's unit is %d, want the keeper %d", pid, b.KeeperPid())
	}
	if _, err := os.Stat("/sys/fs/cgroup/system.slice/berth-supervisor.service/cgroup.procs"); err != nil {
		t.Errorf("the supervisor is not in its unit's cgroup: %v", err)
	}
	if out := b.MustCLI("info"); !strings.Contains(out, "systemd") {
		t.Errorf("berth info does not report the cgroup driver:\n%s", out)
	}
}

// witness is a pod that counts into its log. Whatever happens to berth, it must keep running, and
// its log must have every number once.
type witness struct {
	b   *harness.Berth
	pod harness.Pod
	pid int
}

// counter exits with code 41 on its stop signal.
const counter = `trap 'echo end; exit 41' TERM; i=0; while :; do i=$((i+1)); echo line $i; usleep 50000; done`

func newWitness(b *harness.Berth, name string) *witness {
	b.T.Helper()
	w := &witness{b: b, pod: b.RunPod(name, counter)}
	w.pid = initPid(b, w.pod.Container)
	w.awaitMore()
	return w
}

func (w *witness) lines() []string {
	w.b.T.Helper()
	lines, err := harness.LogLines(w.pod.LogFile)
	if err != nil {
		w.b.T.Fatal(err)
	}
	return lines
}

// awaitMore returns when lines arrive.
func (w *witness) awaitMore() {
	w.b.T.Helper()
	before := len(w.lines())
	w.b.Await("more lines of "+w.pod.Config.Metadata.Name, func() bool { return len(w.lines()) > before+2 })
}

// lives checks that the same process runs, logs and takes an exec.
func (w *witness) lives() {
	w.b.T.Helper()
	status := w.b.Status(w.pod.Container)
	if status.State != runtimeapi.ContainerState_CONTAINER_RUNNING {
		w.b.T.Fatalf("container is %v, code %d: %s", status.State, status.ExitCode, status.Message)
	}
	if pid := initPid(w.b, w.pod.Container); pid != w.pid {
		w.b.T.Errorf("init is process %d, was %d", pid, w.pid)
	}
	w.awaitMore()
	if got := w.b.ExecOut(w.pod.Container, "echo here"); got != "here" {
		w.b.T.Errorf("exec says %q", got)
	}
}

// ends stops the container and checks code and log.
func (w *witness) ends() {
	w.b.T.Helper()
	if _, err := w.b.Runtime.StopContainer(w.b.Ctx(), &runtimeapi.StopContainerRequest{ContainerId: w.pod.Container, Timeout: 60}); err != nil {
		w.b.T.Fatal(err)
	}
	w.ended(41)
}

func (w *witness) ended(code int32) {
	w.b.T.Helper()
	if status := w.b.AwaitExit(w.pod.Container); status.ExitCode != code {
		w.b.T.Errorf("exit code %d (%s: %s), want %d", status.ExitCode, status.Reason, status.Message, code)
	}
	lines := w.lines()
	for i, line := range lines[:len(lines)-1] {
		if line != fmt.Sprintf("line %d", i+1) {
			w.b.T.Fatalf("line %d of the log is %q", i+1, line)
		}
	}
	if last := lines[len(lines)-1]; last != "end" {
		w.b.T.Errorf("the log ends in %q, want the last words", last)
	}
}

// initPid is the pid of a container's init, from verbose status.
func initPid(b *harness.Berth, container string) int {
	b.T.Helper()
	answer, err := b.Runtime.ContainerStatus(b.Ctx(), &runtimeapi.ContainerStatusRequest{ContainerId: container, Verbose: true})
	if err != nil {
		b.T.Fatal(err)
	}
	var info struct {
		Pid int `json:"pid"`
	}
	if err := json.Unmarshal([]byte(answer.Info["info"]), &info); err != nil || info.Pid <= 1 {
		b.T.Fatalf("no pid in %v (%v)", answer.Info, err)
	}
	return info.Pid
}

// show returns properties of a unit in the requested order, one per line.
func show(t testing.TB, unit string, properties ...string) string {
	t.Helper()
	var values []string
	for _, property := range properties {
		values = append(values, harness.Systemctl(t, "show", "--property", property, "--value", unit))
	}
	return strings.Join(values, "\n")
}

// awaitActive waits until a unit is active with a main process other than before.
func awaitActive(b *harness.Berth, unit string, before int) {
	b.T.Helper()
	b.Await(unit+" to be back", func() bool {
		pid := harness.MainPid(b.T, unit)
		return pid != 0 && pid != before && show(b.T, unit, "ActiveState") == "active"
	})
}

func alive(pid int) bool { return syscall.Kill(pid, 0) == nil }

func TestInstalledRestartsKeepPods(t *testing.T) {
	b := harness.Installed(t)
	w := newWitness(b, "restarts")
	for _, step := range []struct {
		what string
		do   func()
	}{
		{"restart of the daemon", func() { harness.Systemctl(t, "restart", harness.DaemonUnit) }},
		{"restart of the supervisor", func() { harness.Systemctl(t, "restart", harness.SupervisorUnit) }},
		{"restart of both", func() { harness.Systemctl(t, "restart", harness.SupervisorUnit, harness.DaemonUnit) }},
		{"daemon-reload", func() { harness.Systemctl(t, "daemon-reload") }},
		{"daemon-reexec", func() { harness.Systemctl(t, "daemon-reexec") }},
		{"reload of the supervisor", func() { // SIGHUP: self-test, then the binary on disk
			before := b.SupervisorPid()
			harness.Systemctl(t, "reload", harness.SupervisorUnit)
			b.Await("another supervisor", func() bool { pid := b.SupervisorPid(); return pid != 0 && pid != before })
		}},
	} {
		t.Log(step.what)
		step.do()
		b.AwaitAnswer()
		w.lives()
		if t.Failed() {
			t.Fatalf("after: %s", step.what)
		}
	}
	w.ends()
}

func TestInstalledKillsKeepPods(t *testing.T) {
	b := harness.Installed(t)
	w := newWitness(b, "kills")
	daemon := func() int { return harness.MainPid(t, harness.DaemonUnit) }
	for _, round := range []struct {
		what string
		pids func() []int
	}{
		{"daemon", func() []int { return []int{daemon()} }},
		{"supervisor", func() []int { return []int{b.SupervisorPid()} }},
		{"keeper", func() []int { return []int{b.KeeperPid()} }},
		{"keeper that took over", func() []int { return []int{b.KeeperPid()} }},
		{"keeper and supervisor", func() []int { return []int{b.KeeperPid(), b.SupervisorPid()} }},
		{"daemon and supervisor", func() []int { return []int{daemon(), b.SupervisorPid()} }},
		{"all three", func() []int { return []int{daemon(), b.KeeperPid(), b.SupervisorPid()} }},
	} {
		t.Log(round.what)
		pids := round.pids()
		before := daemon()
		harness.Kill(t, pids...)
		if slices.Contains(pids, before) {
			awaitActive(b, harness.DaemonUnit, before)
		}
		b.AwaitAnswer()
		w.lives()
		b.Await("one keeper and one supervisor", func() bool { return b.KeeperPid() != 0 && b.SupervisorPid() != 0 })
		if state := show(t, harness.SupervisorUnit, "ActiveState"); state != "active" && state != "activating" {
			t.Errorf("the supervisor's unit is %s", state)
		}
		if t.Failed() {
			t.Fatalf("after the death of: %s", round.what)
		}
	}
	// The unit is under control again, no matter which process is the keeper.
	harness.Systemctl(t, "restart", harness.SupervisorUnit)
	w.lives()
	w.ends()
}

func TestInstalledUnitsNeverGiveUp(t *testing.T) {
	b := harness.Installed(t)
	w := newWitness(b, "stubborn")
	for range 7 { // systemd's own limit is five starts in ten seconds
		for _, unit := range []string{harness.DaemonUnit, harness.SupervisorUnit} {
			pid := harness.MainPid(t, unit)
			harness.Kill(t, pid)
			awaitActive(b, unit, pid)
		}
	}
	b.AwaitAnswer()
	w.lives()
	w.ends()
}

// TestInstalledStopKeepsPods: both units are stopped, as in an upgrade of packages. Pods keep
// running. Exits meanwhile are reported as far as the kernel and systemd know them.
func TestInstalledStopKeepsPods(t *testing.T) {
	b := harness.Installed(t)
	stays, goes := newWitness(b, "stays"), newWitness(b, "goes")
	harness.Systemctl(t, "stop", harness.DaemonUnit, harness.SupervisorUnit)
	if pid := b.KeeperPid(); pid != 0 {
		t.Errorf("keeper %d runs though its unit is stopped", pid)
	}
	for _, w := range []*witness{stays, goes} {
		if !alive(w.pid) {
			t.Fatalf("the stop of the units killed %s", w.pod.Config.Metadata.Name)
		}
	}
	if err := syscall.Kill(goes.pid, syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	b.Await("the end of a container", func() bool { return !alive(goes.pid) })
	harness.Systemctl(t, "start", harness.DaemonUnit)
	b.AwaitAnswer()
	stays.lives()
	stays.ends()
	if systemdVersion(t) >= 254 || sysproc.PidfdsReportExits() {
		goes.ended(41) // the fd store outlives the stop
		return
	}
	// No process of berth was its parent, and this kernel reports the status to the parent alone.
	status := b.AwaitExit(goes.pod.Container)
	if status.ExitCode != 255 || status.Reason != "Unknown" || !strings.Contains(status.Message, "not known") {
		t.Errorf("code %d, reason %q, message %q; want 255, Unknown and the cause", status.ExitCode, status.Reason, status.Message)
	}
}
