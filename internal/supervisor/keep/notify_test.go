package keep

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/berthrun/berth/internal/sys/sysfd"
)

// manager is the part of systemd that a unit communicates with.
type manager struct {
	t    *testing.T
	path string
	conn *net.UnixConn
}

// message is a message from a unit.
type message struct {
	text string
	fds  []int
}

func newManager(t *testing.T) *manager {
	t.Helper()
	m := &manager{t: t, path: filepath.Join(t.TempDir(), "notify")}
	var err error
	if m.conn, err = net.ListenUnixgram("unixgram", &net.UnixAddr{Name: m.path, Net: "unixgram"}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { m.conn.Close() })
	return m
}

// next waits for the next message that begins with start.
func (m *manager) next(start string) message {
	m.t.Helper()
	m.conn.SetReadDeadline(time.Now().Add(20 * time.Second))
	buf := make([]byte, 4096)
	for {
		n, fds, err := sysfd.ReceiveFDs(m.conn, buf)
		if err != nil {
			m.t.Fatalf("no message %q: %v", start, err)
		}
		if text := string(buf[:n]); strings.HasPrefix(text, start) {
			return message{text, fds}
		}
		sysfd.CloseFDs(fds)
	}
}

func TestHeldDescriptorsAreStoredInSystemd(t *testing.T) {
	h, m := newHost(t), newManager(t)
	keeper := h.keeper("NOTIFY_SOCKET=" + m.path)
	if got := m.next("READY=1").text; !strings.Contains(got, fmt.Sprintf("MAINPID=%d", keeper.Process.Pid)) {
		t.Errorf("ready: %q", got)
	}
	w := h.spawn(12)
	var stored []*os.File
	for i := range 3 {
		got := m.next("FDSTORE=1")
		if want := fmt.Sprintf("FDSTORE=1\nFDPOLL=0\nFDNAME=%s#%d", w.key, i); got.text != want || len(got.fds) != 1 {
			t.Fatalf("stored %q with %d descriptors, want %q", got.text, len(got.fds), want)
		}
		stored = append(stored, os.NewFile(uintptr(got.fds[0]), "stored"))
	}
	// All processes die. systemd restarts the unit with the stored descriptors, in an order of its
	// own, and with one that is not ours.
	s := h.status(ready)
	h.freeze(s.Supervisor)
	h.kill(keeper.Process.Pid)
	h.kill(s.Supervisor)
	h.gone(keeper.Process.Pid)
	h.gone(s.Supervisor)
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("sh", "-c", `LISTEN_PID=$$ exec "$@"`, "sh", self, "keep", h.state)
	names := fmt.Sprintf("%[1]s#2:stored:%[1]s#0:%[1]s#1", w.key)
	cmd.Env = append(os.Environ(), "NOTIFY_SOCKET="+m.path, "LISTEN_FDS=4", "LISTEN_FDNAMES="+names)
	cmd.ExtraFiles = []*os.File{stored[2], h.log, stored[0], stored[1]}
	cmd.Stdout, cmd.Stderr = h.log, h.log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	for _, f := range stored {
		f.Close()
	}
	m.next("READY=1")
	if keys := h.ask("keys"); keys != w.key+"=3" {
		t.Errorf("keys %q", keys)
	}
	if said := h.ask("held %s", w.key); said != fmt.Sprintf("last words of %d", w.pid) {
		t.Errorf("pipe holds %q", said)
	}
	h.ask("release w%d/", w.pid)
	for i := range 3 {
		if got, want := m.next("FDSTOREREMOVE=1").text, fmt.Sprintf("FDSTOREREMOVE=1\nFDNAME=%s#%d", w.key, i); got != want {
			t.Errorf("removed %q, want %q", got, want)
		}
	}
}

func TestKeeperStandsByAfterTakeOver(t *testing.T) {
	h, m := newHost(t), newManager(t)
	keeper := h.keeper("NOTIFY_SOCKET=" + m.path)
	m.next("READY=1")
	first := h.status(ready)
	h.kill(keeper.Process.Pid)
	if got := m.next("READY=1").text; strings.Contains(got, "MAINPID") {
		t.Errorf("a keeper that took over claims to be the main process: %q", got)
	}
	second := h.status(func(s Status) bool { return s.Ready && s.Pid == first.Supervisor })
	standby := h.keeper("NOTIFY_SOCKET=" + m.path)
	if got := m.next("READY=1").text; !strings.Contains(got, fmt.Sprintf("MAINPID=%d", standby.Process.Pid)) {
		t.Errorf("standby: %q", got)
	}
	syscall.Kill(standby.Process.Pid, syscall.SIGHUP)
	third := h.readyAfter(second.Supervisor)
	if third.Pid != first.Supervisor {
		t.Errorf("status %+v", third)
	}
	syscall.Kill(standby.Process.Pid, syscall.SIGTERM)
	if err := standby.Wait(); err != nil {
		t.Errorf("standby ended: %v", err)
	}
	h.gone(third.Supervisor)
	if holder, err := sysfd.LockHolder(filepath.Join(h.state, LockName)); err != nil || holder != 0 {
		t.Errorf("keeper %d %v", holder, err)
	}
}

func TestStoredDescriptorsAreMatchedByName(t *testing.T) {
	env := map[string]string{
		"LISTEN_PID": "7", "LISTEN_FDS": "7",
		"LISTEN_FDNAMES": "a/io#1:b#0:stored:a/io#0:c#1:b#0:bad key#0",
	}
	held, strange := storedFDs(func(k string) string { return env[k] }, 7)
	if len(held) != 2 || !slices.Equal(held["a/io"], []int{6, 3}) || !slices.Equal(held["b"], []int{4}) {
		t.Errorf("held %v", held)
	}
	slices.Sort(strange)
	if !slices.Equal(strange, []int{5, 7, 8, 9}) {
		t.Errorf("strange %v", strange)
	}
	if held, strange := storedFDs(func(k string) string { return env[k] }, 8); len(held)+len(strange) != 0 {
		t.Errorf("descriptors of another process: %v %v", held, strange)
	}
}
