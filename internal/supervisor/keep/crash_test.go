package keep

import (
	"flag"
	"math/rand/v2"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/berthrun/berth/internal/sys/sysproc"
)

// crashSeed repeats a run: -keep.seed=N.
func crashSeed(t *testing.T) *rand.Rand {
	t.Helper()
	seed := uint64(time.Now().UnixNano())
	if flag.Lookup("keep.seed") != nil && *seedFlag != 0 {
		seed = *seedFlag
	}
	t.Logf("seed %d (repeat with -keep.seed=%d)", seed, seed)
	return rand.New(rand.NewPCG(seed, 0))
}

var seedFlag = flag.Uint64("keep.seed", 0, "seed of the crash tests, 0 draws one")

// TestKillRounds kills the supervisor or the keeper at random moments, while workers start and exit
// with known codes, half of them while one is dead. If a round kills both, it kills one after the
// other. The keeper must report every code: workers of a supervisor whose keeper died stay its
// children.
func TestKillRounds(t *testing.T) {
	h, random := newHost(t), crashSeed(t)
	h.keeper()
	h.status(ready)
	var keepers, supervisors int
	for range rounds(t) {
		s := h.status(func(s Status) bool { return s.Ready && s.Supervisor != 0 })
		early, gap := h.spawn(random.IntN(256)), h.spawn(random.IntN(256))
		h.release(early)
		// The test requests the code of an exited worker after the crash. The previous supervisor
		// or the ledger may have it already, or the worker is still a zombie.
		time.Sleep(time.Duration(random.IntN(3000)) * time.Microsecond)
		if random.IntN(2) == 0 {
			supervisors++
			h.kill(s.Supervisor)
			h.release(gap)
			h.readyAfter(s.Supervisor)
		} else {
			keepers++
			h.kill(s.Pid)
			h.release(gap)
			h.status(func(now Status) bool { return now.Ready && now.Pid == s.Supervisor })
		}
		for _, w := range []worker{early, gap} {
			h.gone(w.pid)
			h.exited(w)
			h.ask("forget %d %d", w.pid, w.start)
			h.ask("release w%d/", w.pid)
		}
	}
	t.Logf("%d keepers and %d supervisors killed", keepers, supervisors)
}

// rounds is the number of kills in a crash test.
func rounds(t *testing.T) int {
	if testing.Short() {
		return 10
	}
	return 60
}

// release makes w exit. It uses a signal of the test's own, because dying processes may hold its
// pipe.
func (h *host) release(w worker) {
	h.t.Helper()
	if err := syscall.Kill(w.pid, syscall.SIGUSR1); err != nil {
		h.t.Fatalf("worker %d: %v", w.pid, err)
	}
}

// TestNoExitIsLostWhenTheKeeperIsKilledWhileReaping kills the keeper while a dozen orphans exit.
// Each exit is in the ledger, or the process is still a zombie and a child of the test, which is
// the subreaper above.
func TestNoExitIsLostWhenTheKeeperIsKilledWhileReaping(t *testing.T) {
	random := crashSeed(t)
	var inLedger, zombies, both int
	for range rounds(t) / 5 {
		h := newHost(t)
		keeper := h.keeper()
		s := h.status(ready)
		const orphans = 12
		workers := make([]worker, orphans)
		for i := range workers {
			workers[i] = h.spawn(random.IntN(256))
		}
		h.kill(s.Supervisor)
		h.readyAfter(s.Supervisor)
		// No supervisor may take over from the killed keeper, so the test stops the new one until
		// it has seen all exits.
		next := h.status(ready).Supervisor
		h.freeze(next)
		for _, w := range workers {
			h.release(w)
		}
		time.Sleep(time.Duration(random.IntN(15000)) * time.Microsecond)
		h.kill(keeper.Process.Pid)
		h.gone(keeper.Process.Pid)
		for _, w := range workers {
			h.gone(w.pid)
		}
		bootID, err := sysproc.BootID()
		if err != nil {
			t.Fatal(err)
		}
		l, err := openLedger(filepath.Join(h.state, ledgerName), bootID)
		if err != nil {
			t.Fatal(err)
		}
		for _, w := range workers {
			e, known := l.lookup(identity{w.pid, w.start})
			p, err := sysproc.ReadProc(w.pid)
			zombie := err == nil && p.Start == w.start && p.Zombie()
			switch {
			case known && zombie:
				both++
			case known:
				inLedger++
			case zombie:
				zombies++
			default:
				t.Errorf("worker %d: nobody knows its code", w.pid)
			}
			if known && sysproc.ExitCode(e.status) != int32(w.code) || zombie && sysproc.ExitCode(p.Status) != int32(w.code) {
				t.Errorf("worker %d: ledger %v, zombie %v, want %d", w.pid, e.status, p.Status, w.code)
			}
			if zombie && p.PPid != os.Getpid() {
				t.Errorf("worker %d fell to %d", w.pid, p.PPid)
			}
		}
		l.file.Close()
		syscall.Kill(next, syscall.SIGKILL)
		h.end()
	}
	t.Logf("%d in the ledger, %d zombies, %d both", inLedger, zombies, both)
}
