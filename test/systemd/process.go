package systemd

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berthrun/berth/internal/sys/sysns"
)

// lookAgain is the interval of polls.
const lookAgain = 2 * time.Millisecond

// Process is a program that runs in the machine.
type Process struct {
	m     *Machine
	pid   int // as this host numbers it
	ended chan error
	out   bytes.Buffer
}

// Begin starts a program in the machine.
func (m *Machine) Begin(args ...string) *Process {
	m.t.Helper()
	pidFile := filepath.Join(m.t.TempDir(), "pid")
	p := &Process{m: m, ended: make(chan error, 1)}
	cmd := exec.CommandContext(m.t.Context(), "runc", append([]string{"--root", m.runtime, "exec", "--pid-file", pidFile, m.name}, args...)...)
	cmd.Stdout, cmd.Stderr = &p.out, &p.out
	if err := cmd.Start(); err != nil {
		m.t.Fatalf("%s: %v", strings.Join(args, " "), err)
	}
	go func() { p.ended <- cmd.Wait() }()
	p.until(func() bool {
		data, err := os.ReadFile(pidFile)
		if err == nil {
			p.pid, err = strconv.Atoi(string(data))
		}
		return err == nil
	})
	return p
}

// until waits for a condition, and reports whether it was true before the program ended.
func (p *Process) until(there func() bool) bool {
	for !there() {
		select {
		case err := <-p.ended:
			p.ended <- err
			return false
		case <-time.After(lookAgain):
		}
	}
	return true
}

// KillWhen kills the program alone, after a condition is true and a delay has passed. It returns
// false if the program has ended before; err is how.
func (p *Process) KillWhen(there func() bool, later time.Duration) (killed bool, output string, err error) {
	p.m.t.Helper()
	if p.until(there) {
		time.Sleep(later)
		if err := unix.Kill(p.pid, unix.SIGKILL); err != nil && !errors.Is(err, unix.ESRCH) {
			p.m.t.Fatalf("cannot kill the program: %v", err)
		}
	}
	err = <-p.ended
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		killed = exit.ExitCode() == 128+int(syscall.SIGKILL)
	}
	return killed, p.out.String(), err
}

// Serve serves a handler on an address of the machine.
func (m *Machine) Serve(address string, handler http.Handler) *httptest.Server {
	m.t.Helper()
	var listener net.Listener
	err := sysns.InNetNS(fmt.Sprintf("/proc/%d/ns/net", m.pid()), func() (err error) {
		listener, err = new(net.ListenConfig).Listen(m.t.Context(), "tcp", address)
		return err
	})
	if err != nil {
		m.t.Fatalf("cannot listen on %s of the machine: %v", address, err)
	}
	server := &httptest.Server{Listener: listener, Config: &http.Server{Handler: handler, ReadHeaderTimeout: time.Minute}}
	server.Start()
	m.t.Cleanup(server.Close)
	return server
}

// Link connects two machines by a cable. Its ends are called eth0, and have addresses such as
// 10.200.0.1/24.
func Link(a *Machine, addressA string, b *Machine, addressB string) {
	a.t.Helper()
	command(a.t, "ip", "link", "add", "eth0", "netns", strconv.Itoa(a.pid()), "type", "veth", "peer", "name", "eth0", "netns", strconv.Itoa(b.pid()))
	for m, address := range map[*Machine]string{a: addressA, b: addressB} {
		m.Run("ip", "address", "add", address, "dev", "eth0")
		m.Run("ip", "link", "set", "eth0", "up")
	}
}

// Plug connects the machine by a cable to a bridge in a network namespace that has a name. Its end
// is called eth0 and has an address such as 10.200.0.1/24, and
// the bridge's is called machine.
func (m *Machine) Plug(namespace, bridge, address string) {
	m.t.Helper()
	command(m.t, "ip", "-n", namespace, "link", "add", "machine", "type", "veth", "peer", "name", "eth0", "netns", strconv.Itoa(m.pid()))
	command(m.t, "ip", "-n", namespace, "link", "set", "machine", "master", bridge, "up")
	m.Run("ip", "address", "add", address, "dev", "eth0")
	m.Run("ip", "link", "set", "eth0", "up")
}

// Unplug removes the cable of Plug.
func (m *Machine) Unplug() {
	m.t.Helper()
	m.Run("ip", "link", "delete", "eth0")
}

// pid is the machine's first process as this host numbers it.
func (m *Machine) pid() int {
	m.t.Helper()
	out, err := exec.CommandContext(m.t.Context(), "runc", "--root", m.runtime, "state", m.name).Output()
	if err != nil {
		m.t.Fatalf("cannot ask for the machine's first process: %v", err)
	}
	var state struct{ PID int }
	if err := json.Unmarshal(out, &state); err != nil {
		m.t.Fatalf("runc says of the machine: %v\n%s", err, out)
	}
	return state.PID
}

// Path is a path of the machine as this host sees it while the machine runs, also below a file
// system that is mounted there.
func (m *Machine) Path(path string) string {
	m.t.Helper()
	return filepath.Join(fmt.Sprintf("/proc/%d/root", m.pid()), path)
}

// Shell prepares a login bash of root that runs a program in the machine, on the terminal that is its
// standard input. Descriptor 3 of the caller is its descriptor 3, too.
func (m *Machine) Shell(ctx context.Context, program string) *exec.Cmd {
	return exec.CommandContext(ctx, "runc", "--root", m.runtime, "exec", "--tty", "--preserve-fds", "1", "--cwd", "/root", "-e", "HOME=/root", "-e", "TERM=dumb", m.name, "bash", "--login", "-c", program)
}
