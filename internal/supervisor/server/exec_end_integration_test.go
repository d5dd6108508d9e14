//go:build integration

package server_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/supervisor"
	"github.com/berthrun/berth/internal/sys/sysproc"
)

// A supervisor that exits in order, because its keeper is gone or because of a request, leaves
// execs running. No exec runs twice, and clients get the exit code.
func TestExecAcrossAnOrderlyEnd(t *testing.T) {
	for _, end := range []struct {
		name string
		do   func(h *host)
	}{
		{"keeper is gone", func(h *host) { syscall.Kill(h.status().Pid, syscall.SIGKILL) }},
		{"told to", func(h *host) { syscall.Kill(h.status().Supervisor, syscall.SIGTERM) }},
	} {
		t.Run(end.name, func(t *testing.T) {
			h := newHost(t).keep()
			h.run("box", `sleep 1000`)
			for i := range 16 {
				before := h.status()
				delay := time.Duration(i) * 3 * time.Millisecond
				time.AfterFunc(delay, func() { end.do(h) })
				var out bytes.Buffer
				code, err := h.client.Exec(h.ctx(), execRequest("box", "echo begin; sleep 0.06; echo end; exit 66"), supervisor.Streams{Stdout: &out})
				if errors.Is(err, errs.Unavailable) && out.String() == "" {
					continue // it did not begin
				}
				if err != nil || code != 66 || out.String() != "begin\nend\n" {
					t.Errorf("ended after %v: %d %v %q", delay, code, err, out.String())
				}
				h.eventually("another supervisor", func() bool {
					now := h.status()
					return now.Ready && now.Supervisor != before.Supervisor
				})
			}
		})
	}
}

// If supervisor and keeper die together, no process knows which execs had begun. So none runs a
// second time.
func TestExecRunsOnceWhenSupervisorAndKeeperDie(t *testing.T) {
	h := newHost(t).keep()
	h.run("box", `sleep 1000`)
	for i := range 12 {
		delay := time.Duration(i) * 3 * time.Millisecond
		var ready sync.WaitGroup
		ready.Go(func() {
			time.Sleep(delay)
			before := h.status()
			killWhole(t, before.Pid, before.Supervisor)
			h.ensure()
		})
		_, err := h.client.Exec(h.ctx(), execRequest("box", "echo begin >> /tmp/runs"), supervisor.Streams{})
		ready.Wait()
		out, _, _, execErr := h.exec("box", "cat /tmp/runs 2>/dev/null; rm -f /tmp/runs")
		if execErr != nil {
			t.Fatal(execErr)
		}
		runs := strings.Count(out, "begin")
		if runs > 1 || err == nil && runs != 1 || err != nil && !errors.Is(err, errs.Unavailable) {
			t.Errorf("killed after %v: it ran %d times: %v", delay, runs, err)
		}
	}
}

// If an init dies with its supervisor, its messages are not part of the command's output.
func TestExecAcrossASupervisorDeathHasNoExtraOutput(t *testing.T) {
	h := newHost(t).keep()
	h.run("box", `sleep 1000`)
	for i := range 40 {
		pid, delay := h.pid(), time.Duration(i)*700*time.Microsecond
		time.AfterFunc(delay, func() { syscall.Kill(pid, syscall.SIGKILL) })
		var out, complaints bytes.Buffer
		code, err := h.client.Exec(h.ctx(), execRequest("box", "echo said; exit 4"), supervisor.Streams{Stdout: &out, Stderr: &complaints})
		if err == nil && (code != 4 || out.String() != "said\n" || complaints.String() != "") {
			t.Errorf("killed after %v: %d %q, stderr %q", delay, code, out.String(), complaints.String())
		}
		h.eventually("death", func() bool { return syscall.Kill(pid, 0) != nil })
	}
}

// An exec whose deadline expires at the moment of its start is reaped. A zombie in the container's
// PID namespace would prevent the exit of the container's init.
func TestInterruptedExecIsReaped(t *testing.T) {
	h := newHost(t).serve()
	h.run("box", `sleep 1000`)
	for after := 4 * time.Millisecond; after < 40*time.Millisecond; after += 250 * time.Microsecond {
		ctx, stop := context.WithTimeout(h.ctx(), after)
		if _, err := h.client.Exec(ctx, execRequest("box", "sleep 1000"), supervisor.Streams{}); err == nil {
			t.Error("an exec of a long sleep has ended")
		}
		stop()
	}
	h.eventually("end of all execs", func() bool { return len(children(t, h.pid())) == 1 })
	if err := h.client.Signal(h.ctx(), "box", syscall.SIGKILL, true); err != nil {
		t.Fatal(err)
	}
	h.wantExit("box", 137)
}

// A client gives up while there is no supervisor. The next supervisor ends an exec to which no
// client returns, and removes its record.
func TestAbandonedExecIsEndedByTheNextSupervisor(t *testing.T) {
	h := newHost(t).keep()
	h.run("box", `sleep 1000`)
	ctx, giveUp := context.WithCancel(h.ctx())
	defer giveUp()
	said, say := io.Pipe()
	ended := make(chan error, 1)
	go func() {
		_, err := h.client.Exec(ctx, execRequest("box", "sleep 1000 & echo begun; sleep 1000"), supervisor.Streams{Stdout: say})
		ended <- err
	}()
	if _, err := io.ReadFull(said, make([]byte, len("begun\n"))); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Kill(h.pid(), syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	giveUp()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Errorf("the exec that was given up: %v", err)
	}
	left := func() (paths []string) {
		records, _ := filepath.Glob(filepath.Join(h.state, "supervisor/box/exec-*"))
		groups, _ := exec.Command("find", "/sys/fs/cgroup", "-type", "d", "-path", "*"+h.name+"*/berth-exec-*").Output()
		return append(records, strings.Fields(string(groups))...)
	}
	if len(left()) < 2 {
		t.Errorf("no record and no cgroup of a running exec: %v", left())
	}
	for deadline := time.Now().Add(patience + 15*time.Second); len(left()) > 0; time.Sleep(50 * time.Millisecond) { // an orphan has 30 s
		if time.Now().After(deadline) {
			t.Fatalf("nobody waits for it, and it is there: %v", left())
		}
	}
}

// children lists the child processes, including zombies.
func children(t *testing.T, of int) []int {
	t.Helper()
	all, err := os.ReadDir("/proc")
	if err != nil {
		t.Fatal(err)
	}
	var list []int
	for _, entry := range all {
		pid, err := strconv.Atoi(entry.Name())
		if err != nil {
			continue
		}
		if proc, err := sysproc.ReadProc(pid); err == nil && proc.PPid == of {
			list = append(list, pid)
		}
	}
	return list
}

// killWhole kills processes and waits until all of their threads have ended. Before that, the
// socket of a dying process may still accept connections.
func killWhole(t *testing.T, pids ...int) {
	t.Helper()
	ctx, stop := context.WithTimeout(context.Background(), 10*time.Second)
	defer stop()
	var dying []*os.File
	for _, pid := range pids {
		pidfd, err := sysproc.OpenPidfd(pid)
		if err != nil {
			t.Error(err)
			continue
		}
		defer pidfd.Close()
		if err := sysproc.SignalPidfd(pidfd, syscall.SIGKILL); err != nil {
			t.Error(err)
		}
		dying = append(dying, pidfd)
	}
	for _, pidfd := range dying {
		if err := sysproc.AwaitExit(ctx, pidfd); err != nil {
			t.Error(err)
		}
	}
}
