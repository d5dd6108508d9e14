package keep

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/sys/sysproc"
)

func (h *host) mark(name string) {
	h.t.Helper()
	if err := os.WriteFile(filepath.Join(h.state, name), nil, 0o600); err != nil {
		h.t.Fatal(err)
	}
}

func (h *host) unmark(name string) {
	h.t.Helper()
	if err := os.Remove(filepath.Join(h.state, name)); err != nil {
		h.t.Fatal(err)
	}
}

func TestUpgradeReplacesTheSupervisorAfterItsSelfTest(t *testing.T) {
	h := newHost(t)
	keeper := h.keeper()
	first := h.status(ready)
	w := h.spawn(9)
	h.mark("broken")
	if said := h.ask("upgrade"); !strings.Contains(said, "this binary is broken") {
		t.Errorf("upgrade to a broken binary: %q", said)
	}
	failed := h.status(func(s Status) bool { return s.UpgradeAt != nil })
	if failed.Supervisor != first.Supervisor || !strings.Contains(failed.UpgradeError, "exit status 1") {
		t.Errorf("status after a failed upgrade: %+v", failed)
	}
	h.unmark("broken")
	if said := h.ask("upgrade"); said != "ok" {
		t.Errorf("upgrade: %q", said)
	}
	second := h.readyAfter(first.Supervisor)
	if second.Pid != first.Pid || second.UpgradeError != "" {
		t.Errorf("status after an upgrade: %+v", second)
	}
	syscall.Kill(keeper.Process.Pid, syscall.SIGHUP)
	h.readyAfter(second.Supervisor)
	h.release(w)
	h.gone(w.pid)
	h.exited(w)
}

func TestUpgradeToAMissingBinaryIsRefused(t *testing.T) {
	h := newHost(t)
	h.keeper()
	first := h.status(ready)
	binary := filepath.Join(h.state, "binary")
	target, err := os.Readlink(binary)
	if err != nil {
		t.Fatal(err)
	}
	h.unmark("binary")
	if said := h.ask("upgrade"); !strings.Contains(said, "no such file") {
		t.Errorf("upgrade: %q", said)
	}
	// A supervisor that dies meanwhile restarts only once the binary exists again.
	h.kill(first.Supervisor)
	h.status(func(s Status) bool { return s.NextStart != nil })
	if err := os.Symlink(target, binary); err != nil {
		t.Fatal(err)
	}
	h.readyAfter(first.Supervisor)
}

func TestSupervisorThatKeepsFailingIsRestartedSlowly(t *testing.T) {
	h := newHost(t)
	binary := filepath.Join(h.state, "binary")
	target, err := os.Readlink(binary)
	if err != nil {
		t.Fatal(err)
	}
	h.unmark("binary")
	if err := os.WriteFile(binary, []byte("#!/bin/sh\nexit 0\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	h.keeper()
	began := time.Now()
	const enough = 7
	s := h.status(func(s Status) bool { return s.Restarts >= enough })
	if least := 3 * firstPause; time.Since(began) < least || s.LastEnd != "exit status 0" {
		t.Errorf("%d restarts in %v, status %+v", s.Restarts, time.Since(began), s)
	}
	h.unmark("binary")
	if err := os.Symlink(target, binary); err != nil {
		t.Fatal(err)
	}
	h.status(ready)
}

func TestBackOffGrowsToItsMaximum(t *testing.T) {
	last := time.Duration(0)
	for failures := range 100 {
		pause := backOff(failures, false)
		if kinder := backOff(failures, true); kinder != min(pause, readyPause) {
			t.Errorf("pause %v after %d failures of one that was ready", kinder, failures)
		}
		if pause < last || pause > longestPause || failures <= freeFailures && pause != 0 {
			t.Fatalf("pause %v after %d failures, %v before", pause, failures, last)
		}
		last = pause
	}
	if last != longestPause {
		t.Errorf("longest pause %v", last)
	}
}

func TestSupervisorThatDoesNotEndIsKilled(t *testing.T) {
	h := newHost(t)
	keeper := h.keeperWith(nil, "impatient")
	s := h.status(ready)
	h.freeze(s.Supervisor)
	syscall.Kill(keeper.Process.Pid, syscall.SIGTERM)
	if err := keeper.Wait(); err != nil {
		t.Errorf("keeper ended: %v", err)
	}
	if _, err := sysproc.ReadProc(s.Supervisor); !errors.Is(err, errs.NotFound) {
		t.Errorf("supervisor: %v", err)
	}
}

func TestOrphanThatDoesNotTakeOverIsEnded(t *testing.T) {
	h := newHost(t)
	keeper := h.keeper()
	s := h.status(ready)
	w := h.spawn(3)
	h.freeze(s.Supervisor)
	h.kill(keeper.Process.Pid)
	h.gone(keeper.Process.Pid)
	next := h.keeperWith(nil, "impatient")
	now := h.readyAfter(s.Supervisor)
	if now.Pid != next.Process.Pid {
		t.Errorf("status %+v, keeper %d", now, next.Process.Pid)
	}
	h.gone(s.Supervisor)
	if p, err := sysproc.ReadProc(w.pid); err != nil || p.Zombie() {
		t.Errorf("worker %+v %v", p, err)
	}
}

// TestNewKeeperRacesTheTakeOver starts keepers at the moment when one dies, as systemd and daemons
// do. The supervisor takes over first.
func TestNewKeeperRacesTheTakeOver(t *testing.T) {
	h := newHost(t)
	h.keeper()
	for range rounds(t) / 4 {
		s := h.status(func(s Status) bool { return s.Ready && s.Supervisor != 0 })
		w := h.spawn(21)
		h.kill(s.Pid)
		rival := h.keeper()
		now := h.status(func(now Status) bool { return now.Ready && now.Pid != s.Pid })
		if now.Pid != s.Supervisor {
			t.Fatalf("keeper is %d, the supervisor was %d", now.Pid, s.Supervisor)
		}
		if err := rival.Wait(); err == nil {
			t.Error("the rival ended well")
		}
		h.release(w)
		h.gone(w.pid)
		h.exited(w)
	}
}

func TestAllKilledAtOnceLeavesTheLedger(t *testing.T) {
	h := newHost(t)
	keeper := h.keeper()
	first := h.status(ready)
	w, alive := h.spawn(55), h.spawn(56)
	h.kill(first.Supervisor)
	second := h.readyAfter(first.Supervisor)
	h.release(w)
	h.gone(w.pid)
	h.exited(w)
	h.freeze(second.Supervisor)
	h.kill(keeper.Process.Pid)
	h.kill(second.Supervisor)
	h.gone(keeper.Process.Pid)
	h.gone(second.Supervisor)
	h.keeper()
	h.readyAfter(second.Supervisor)
	h.exited(w)
	if got := h.ask("exit %d %d", alive.pid, alive.start); got == fmt.Sprint(alive.code) {
		t.Errorf("a running worker has ended: %s", got)
	}
}
