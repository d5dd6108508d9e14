//go:build integration

package server_test

import (
	"bytes"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/berthrun/berth/internal/supervisor"
)

// TestTracedExecIsReaped: if a process is traced when it exits, its tracer gets the exit first. The
// supervisor reaps the process once the tracer detaches. As a zombie it would prevent the exit of
// the init of its PID namespace, and so of the container.
func TestTracedExecIsReaped(t *testing.T) {
	h := newHost(t).keep()
	h.run("box", `exec sleep 1000`)
	type result struct {
		code int32
		err  error
	}
	ended := make(chan result, 1)
	go func() {
		code, err := h.client.Exec(h.ctx(), execRequest("box", "exec sleep 76.5"), supervisor.Streams{})
		ended <- result{code, err}
	}()
	pid := 0
	h.eventually("the command", func() bool { pid = pidOf(t, "sleep", "76.5"); return pid != 0 })

	seized, letGo, done := make(chan error), make(chan struct{}), make(chan error)
	go func() {
		runtime.LockOSThread() // the thread is the tracer
		_, _, errno := unix.Syscall6(unix.SYS_PTRACE, unix.PTRACE_SEIZE, uintptr(pid), 0, 0, 0, 0)
		if errno != 0 {
			seized <- errno
			return
		}
		seized <- nil
		<-letGo
		var status unix.WaitStatus
		_, err := unix.Wait4(pid, &status, unix.WALL, nil)
		done <- err
	}()
	if err := <-seized; err != nil {
		t.Fatal(err)
	}
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	if r := <-ended; r.err != nil || r.code != 137 {
		t.Errorf("the command ended with %d, %v", r.code, r.err)
	}
	if !exists(pid) {
		t.Fatal("the tracer does not hold the zombie")
	}
	close(letGo)
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	h.eventually("the zombie is reaped", func() bool { return !exists(pid) })
	if err := h.client.Signal(h.ctx(), "box", syscall.SIGKILL, false); err != nil {
		t.Fatal(err)
	}
	h.wantExit("box", 137)
}

func exists(pid int) bool {
	_, err := os.Stat(filepath.Join("/proc", strconv.Itoa(pid)))
	return err == nil
}

// pidOf finds a process by its arguments, 0 when there is none.
func pidOf(t *testing.T, args ...string) int {
	t.Helper()
	files, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		t.Fatal(err)
	}
	want := []byte{}
	for _, arg := range args {
		want = append(append(want, arg...), 0)
	}
	for _, file := range files {
		if line, err := os.ReadFile(file); err == nil && bytes.Equal(line, want) {
			pid, _ := strconv.Atoi(filepath.Base(filepath.Dir(file)))
			return pid
		}
	}
	return 0
}
