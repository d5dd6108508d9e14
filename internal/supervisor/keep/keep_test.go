package keep

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/berthrun/berth/internal/sys/sysfd"
	"github.com/berthrun/berth/internal/sys/sysproc"
)

func TestDescriptorsAndStatusesSurviveTheSupervisor(t *testing.T) {
	h := newHost(t)
	h.keeper()
	first := h.status(ready)
	before, after := h.spawn(41), h.spawn(42)
	h.kill(first.Supervisor)
	second := h.readyAfter(first.Supervisor)
	if second.LastEnd != "signal: killed" || second.Restarts != 1 {
		t.Errorf("status %+v", second)
	}
	if keys := h.ask("keys"); keys != before.key+"=3 "+after.key+"=3" {
		t.Errorf("fetched keys %q", keys)
	}
	for _, w := range []worker{before, after} {
		if said := h.ask("held %s", w.key); said != fmt.Sprintf("last words of %d", w.pid) {
			t.Errorf("pipe of %d holds %q", w.pid, said)
		}
		h.gone(w.pid)
		h.exited(w)
	}
	h.ask("forget %d %d", before.pid, before.start)
	if got := h.ask("exit %d %d", before.pid, before.start); !strings.Contains(got, "not found") {
		t.Errorf("a forgotten exit: %q", got)
	}
	h.ask("release w%d/", before.pid)
	h.kill(second.Supervisor)
	h.readyAfter(second.Supervisor)
	if keys := h.ask("keys"); keys != after.key+"=3" {
		t.Errorf("keys after release: %q", keys)
	}
	h.exited(after)
}

func TestExitWhileTheSupervisorIsDead(t *testing.T) {
	h := newHost(t)
	keeper := h.keeper()
	first := h.status(ready)
	w := h.spawn(77)
	h.freeze(keeper.Process.Pid)
	h.kill(first.Supervisor)
	h.kill(w.pid)
	h.gone(w.pid)
	w.code = 137
	syscall.Kill(keeper.Process.Pid, syscall.SIGCONT)
	h.readyAfter(first.Supervisor)
	h.exited(w)
}

func TestStopEndsKeeperAndSupervisorOnly(t *testing.T) {
	h := newHost(t)
	keeper := h.keeper()
	s := h.status(ready)
	w := h.spawn(5)
	syscall.Kill(keeper.Process.Pid, syscall.SIGTERM)
	if err := keeper.Wait(); err != nil {
		t.Errorf("keeper ended: %v", err)
	}
	h.gone(s.Supervisor)
	if p, err := sysproc.ReadProc(w.pid); err != nil || p.Zombie() || p.PPid != os.Getpid() {
		t.Errorf("worker %+v %v", p, err)
	}
	if _, err := os.Stat(filepath.Join(h.state, StatusName)); err == nil {
		t.Error("keeper.json is left")
	}
}

func TestIdleExitLeavesNoProcess(t *testing.T) {
	h := newHost(t)
	keeper := h.keeperWith(nil, "idle")
	h.status(ready)
	h.askOnce("end 0")
	if err := keeper.Wait(); err != nil {
		t.Errorf("keeper ended: %v", err)
	}
	if _, err := os.Stat(filepath.Join(h.state, ledgerName)); err == nil {
		t.Error("the ledger is left")
	}
	second := h.keeper()
	s := h.status(ready)
	h.askOnce("end 0")
	h.readyAfter(s.Supervisor)
	if err := syscall.Kill(second.Process.Pid, 0); err != nil {
		t.Errorf("a keeper that must not be idle: %v", err)
	}
}

func TestSecondKeeperIsRefused(t *testing.T) {
	h := newHost(t)
	h.keeper()
	s := h.status(ready)
	second := h.keeper()
	if err := second.Wait(); err == nil {
		t.Error("a second keeper ran and ended well")
	}
	if now := h.status(ready); now.Pid != s.Pid || now.Supervisor != s.Supervisor {
		t.Errorf("the second keeper disturbed the first: %+v, was %+v", now, s)
	}
}

func TestTakeOverKeepsChildrenAndDescriptors(t *testing.T) {
	h := newHost(t)
	keeper := h.keeper()
	first := h.status(ready)
	w := h.spawn(33)
	h.kill(keeper.Process.Pid)
	second := h.status(func(s Status) bool { return s.Ready && s.Pid == first.Supervisor })
	if second.Supervisor == first.Supervisor || second.Binary != first.Binary {
		t.Errorf("status after the take-over: %+v, was %+v", second, first)
	}
	p, err := sysproc.ReadProc(w.pid)
	if err != nil || p.PPid != first.Supervisor {
		t.Errorf("worker %+v %v: its parent was %d", p, err, first.Supervisor)
	}
	if holder, err := sysfd.LockHolder(filepath.Join(h.state, LockName)); err != nil || holder != first.Supervisor {
		t.Errorf("lock holder %d %v", holder, err)
	}
	h.noStrayDescriptors(second.Supervisor)
	if keys := h.ask("keys"); keys != w.key+"=3" {
		t.Errorf("keys %q", keys)
	}
	if said := h.ask("held %s", w.key); said != fmt.Sprintf("last words of %d", w.pid) {
		t.Errorf("pipe holds %q", said)
	}
	h.gone(w.pid)
	h.exited(w)
	// The keeper that was a supervisor dies as well.
	h.kill(second.Pid)
	third := h.status(func(s Status) bool { return s.Ready && s.Pid == second.Supervisor })
	h.exited(w)
	h.kill(third.Supervisor)
	h.readyAfter(third.Supervisor)
	h.exited(w)
}

func TestRestartsAndTakeOversLeakNoDescriptor(t *testing.T) {
	h := newHost(t)
	h.keeper()
	s := h.status(ready)
	h.spawn(1)
	count := func(pid int) int {
		entries, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid))
		if err != nil {
			t.Fatal(err)
		}
		// A keeper reads its own mappings for a moment, once a supervisor is ready.
		entries = slices.DeleteFunc(entries, func(e os.DirEntry) bool {
			target, err := os.Readlink(fmt.Sprintf("/proc/%d/fd/%s", pid, e.Name()))
			return err != nil || strings.HasSuffix(target, "/smaps")
		})
		return len(entries)
	}
	h.kill(s.Supervisor)
	s = h.readyAfter(s.Supervisor)
	h.ask("keys")
	before := count(s.Pid)
	for range 10 {
		h.kill(s.Supervisor)
		s = h.readyAfter(s.Supervisor)
	}
	h.ask("keys")
	if now := count(s.Pid); now > before {
		t.Errorf("keeper had %d descriptors, has %d after ten restarts", before, now)
	}
	for range 10 {
		h.kill(s.Pid)
		next := s.Supervisor
		s = h.status(func(now Status) bool { return now.Ready && now.Pid == next })
	}
	h.ask("keys")
	if now := count(s.Pid); now > before {
		t.Errorf("keeper had %d descriptors, has %d after ten take-overs", before, now)
	}
}

// TestTakeOverLeavesOutWhatIsClosed: the owner closes a file while the supervisor becomes the
// keeper.
func TestTakeOverLeavesOutWhatIsClosed(t *testing.T) {
	h := newHost(t)
	keeper := h.keeper()
	first := h.status(ready)
	closed, open := h.spawn(1), h.spawn(2)
	h.ask("close %s", closed.key)
	h.kill(keeper.Process.Pid)
	h.status(func(s Status) bool { return s.Ready && s.Pid == first.Supervisor })
	if keys := h.ask("keys"); keys != open.key+"=3" {
		t.Errorf("keys %q", keys)
	}
}

// noStrayDescriptors fails if a new supervisor has more pipes than the two ends that it fetched. It
// would have inherited the others.
func (h *host) noStrayDescriptors(pid int) {
	h.t.Helper()
	entries, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid))
	if err != nil {
		h.t.Fatal(err)
	}
	count := map[string]int{}
	for _, e := range entries {
		target, err := os.Readlink(fmt.Sprintf("/proc/%d/fd/%s", pid, e.Name()))
		if err == nil && strings.HasPrefix(target, "pipe:") {
			count[target]++
		}
	}
	for pipe, n := range count {
		if n > 2 {
			h.t.Errorf("supervisor has %s %d times", pipe, n)
		}
	}
}
