package keep

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/sys/sysfd"
	"github.com/berthrun/berth/internal/sys/sysproc"
)

// host is a state directory with its processes. The test is their subreaper, so it can wait for
// orphans.
type host struct {
	t     *testing.T
	state string
	log   *os.File
}

func newHost(t *testing.T) *host {
	t.Helper()
	if err := sysproc.SetSubreaper(); err != nil {
		t.Fatal(err)
	}
	h := &host{t: t, state: t.TempDir()}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(self, filepath.Join(h.state, "binary")); err != nil {
		t.Fatal(err)
	}
	if h.log, err = os.Create(filepath.Join(h.state, "log")); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(h.end)
	return h
}

// end kills the holders of the locks, then every child that was reparented to the test.
func (h *host) end() {
	for _, name := range []string{LockName, SupervisorLockName, LockName} {
		if pid, err := sysfd.LockHolder(filepath.Join(h.state, name)); err == nil && pid > 0 {
			syscall.Kill(pid, syscall.SIGKILL)
			h.gone(pid)
		}
	}
	for {
		pid, _, err := sysproc.PeekAnyChild()
		if err != nil {
			break
		}
		if pid == 0 {
			for _, child := range children(h.t) {
				syscall.Kill(child, syscall.SIGKILL)
			}
			time.Sleep(time.Millisecond)
			continue
		}
		sysproc.ReapPid(pid)
	}
	if h.t.Failed() {
		data, _ := os.ReadFile(h.log.Name())
		h.t.Logf("log:\n%s", data)
	}
	h.log.Close()
}

func children(t *testing.T) []int {
	t.Helper()
	tasks, err := filepath.Glob("/proc/self/task/*/children")
	if err != nil {
		t.Fatal(err)
	}
	var pids []int
	for _, path := range tasks {
		data, err := os.ReadFile(path)
		if err != nil {
			continue
		}
		for _, word := range strings.Fields(string(data)) {
			var pid int
			fmt.Sscan(word, &pid)
			pids = append(pids, pid)
		}
	}
	return pids
}

// keeper starts a keeper process and returns its command. Only the test's own cleanup waits for it.
func (h *host) keeper(env ...string) *exec.Cmd {
	h.t.Helper()
	return h.keeperWith(env)
}

func (h *host) keeperWith(env []string, args ...string) *exec.Cmd {
	h.t.Helper()
	cmd := exec.Command("/proc/self/exe", append([]string{"keep", h.state}, args...)...)
	cmd.Env = append(os.Environ(), env...)
	cmd.Stdout, cmd.Stderr = h.log, h.log
	if err := cmd.Start(); err != nil {
		h.t.Fatal(err)
	}
	return cmd
}

// status waits until keeper.json satisfies want.
func (h *host) status(want func(Status) bool) Status {
	h.t.Helper()
	var s Status
	h.until("keeper.json", func() bool {
		data, err := os.ReadFile(filepath.Join(h.state, StatusName))
		s = Status{}
		return err == nil && json.Unmarshal(data, &s) == nil && want(s)
	})
	return s
}

func ready(s Status) bool { return s.Ready }

func (h *host) readyAfter(old int) Status {
	h.t.Helper()
	return h.status(func(s Status) bool { return s.Ready && s.Supervisor != old })
}

// until polls for a condition without an event.
func (h *host) until(what string, ok func() bool) {
	h.t.Helper()
	for deadline := time.Now().Add(20 * time.Second); !ok(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			h.t.Fatalf("%s: not in time", what)
		}
	}
}

// gone waits until pid has exited. It may be a zombie.
func (h *host) gone(pid int) {
	h.t.Helper()
	pidfd, err := sysproc.OpenPidfd(pid)
	if errors.Is(err, errs.NotFound) {
		return
	}
	if err != nil {
		h.t.Fatal(err)
	}
	defer pidfd.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	if err := sysproc.AwaitExit(ctx, pidfd); err != nil {
		h.t.Errorf("process %d: %v", pid, err)
	}
}

func (h *host) kill(pid int) {
	h.t.Helper()
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		h.t.Fatalf("kill %d: %v", pid, err)
	}
}

// freeze stops pid and waits until all of its threads have stopped.
func (h *host) freeze(pid int) {
	h.t.Helper()
	if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
		h.t.Fatalf("stop %d: %v", pid, err)
	}
	h.until("a stopped process", func() bool {
		tasks, err := os.ReadDir(fmt.Sprintf("/proc/%d/task", pid))
		for _, task := range tasks {
			data, readErr := os.ReadFile(fmt.Sprintf("/proc/%d/task/%s/stat", pid, task.Name()))
			err = errors.Join(err, readErr)
			if !strings.Contains(string(data), ") T ") {
				return false
			}
		}
		return err == nil
	})
}

// ask sends a command to the current supervisor. It retries while there is none.
func (h *host) ask(format string, args ...any) string {
	h.t.Helper()
	var text string
	h.until("an answer to "+format, func() bool {
		var err error
		text, err = h.askOnce(fmt.Sprintf(format, args...))
		return err == nil
	})
	return text
}

func (h *host) askOnce(line string) (string, error) {
	conn, err := net.Dial("unix", filepath.Join(h.state, "supervisor.sock"))
	if err != nil {
		return "", err
	}
	defer conn.Close()
	fmt.Fprintln(conn, line)
	text, err := bufio.NewReader(conn).ReadString('\n')
	return strings.TrimSpace(text), err
}

// worker is a container of the tests.
type worker struct {
	pid   int
	start uint64
	key   string
	code  int
}

func (h *host) spawn(code int) worker {
	h.t.Helper()
	w := worker{code: code}
	text := h.ask("spawn %d", code)
	if _, err := fmt.Sscan(text, &w.pid, &w.start, &w.key); err != nil {
		h.t.Fatalf("spawn: %s: %v", text, err)
	}
	return w
}

// exited returns the keeper's report of how w ended.
func (h *host) exited(w worker) {
	h.t.Helper()
	if got := h.ask("exit %d %d", w.pid, w.start); got != fmt.Sprint(w.code) {
		h.t.Errorf("worker %d ended with %q, want %d", w.pid, got, w.code)
	}
}
