package harness

import (
	"context"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/berthrun/berth/internal/require"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// The units of an installed berth.
const (
	DaemonUnit     = "berth.service"
	SupervisorUnit = "berth-supervisor.service"

	installedState = "/run/berth"
)

// Installed is the berth that this machine's systemd runs, in the default directories. The test
// owns it: it removes its pods, and fails if they leave something.
func Installed(t testing.TB) *Berth {
	t.Helper()
	require.Root(t)
	require.Systemd(t)
	dir, err := os.MkdirTemp("", "berth-test-")
	must(t, err)
	b := &Berth{
		T: t, Dir: dir, Logs: dir + "/logs",
		Root: "/var/lib/berth", State: installedState, Socket: installedState + "/berth.sock",
		Bin: BinDir(t),
	}
	must(t, os.MkdirAll(b.Logs, 0o755))
	b.connect()
	t.Cleanup(b.leaveInstalled)
	b.AwaitAnswer()
	b.ImportBusybox()
	return b
}

// AwaitAnswer waits until the process that serves the socket answers.
func (b *Berth) AwaitAnswer() {
	b.T.Helper()
	b.Await("the daemon's answer", func() bool {
		ctx, cancel := context.WithTimeout(context.Background(), require.Patience(time.Second))
		defer cancel()
		_, err := b.Runtime.Version(ctx, &runtimeapi.VersionRequest{})
		return err == nil
	})
}

func (b *Berth) leaveInstalled() {
	b.AwaitAnswer()
	b.RemoveAllPods()
	b.awaitNone(b.PodLeftovers)
	if b.T.Failed() {
		b.T.Logf("end of the daemon's journal:\n%s", Journal(DaemonUnit))
		b.T.Logf("end of the supervisor's journal:\n%s", Journal(SupervisorUnit))
	}
	_ = b.conn.Close()
	must(b.T, os.RemoveAll(b.Dir))
}

// PodLeftovers is what pods of an installed berth have on the host.
func (b *Berth) PodLeftovers() Leftovers {
	left := FindLeftovers(b.State)
	left.Mounts = append(left.Mounts, FindLeftovers(b.Root).Mounts...)
	left.Mounts = slices.DeleteFunc(left.Mounts, func(dir string) bool {
		return dir == b.Root // a disk of its own
	})
	left.Processes = nil // keeper, supervisor and daemon keep running
	left.Cgroups = slices.DeleteFunc(left.Cgroups, func(dir string) bool {
		return strings.HasSuffix(dir, "-unpack") // the daemon's, for as long as it runs
	})
	return left
}

// Journal is the end of a unit's journal, for messages.
func Journal(unit string) string {
	out, err := exec.Command("journalctl", "--no-pager", "-o", "cat", "-n", "60", "-u", unit).CombinedOutput()
	if err != nil {
		return err.Error()
	}
	return string(out)
}

// Systemctl runs systemctl, which must succeed, and returns what it printed.
func Systemctl(t testing.TB, args ...string) string {
	t.Helper()
	out, err := exec.Command("systemctl", args...).CombinedOutput()
	if err != nil {
		t.Fatalf("systemctl %s: %v: %s\n%s\n%s", strings.Join(args, " "), err, out, Journal(DaemonUnit), Journal(SupervisorUnit))
	}
	return strings.TrimSpace(string(out))
}

// MainPid is the main process of a unit, 0 when it has none.
func MainPid(t testing.TB, unit string) int {
	t.Helper()
	pid, err := strconv.Atoi(Systemctl(t, "show", "--property", "MainPID", "--value", unit))
	must(t, err)
	return pid
}
