package pod_test

import (
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/berthrun/berth/internal/engine"
	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/pod/podtest"
)

// tally is an observer that counts.
type tally struct {
	mu     sync.Mutex
	counts map[string]int
}

func (t *tally) add(words ...string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.counts == nil {
		t.counts = map[string]int{}
	}
	t.counts[strings.Join(words, ": ")]++
}

func (t *tally) of(words ...string) int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.counts[strings.Join(words, ": ")]
}

func (t *tally) StageEnded(job, stage string, _ time.Duration) { t.add("stage", job, stage) }
func (t *tally) StageSlow(job, stage string)                   { t.add("slow", job, stage) }
func (t *tally) JobEnded(job, result string, _ time.Duration)  { t.add("job", job, result) }
func (t *tally) JobResumed(job string)                         { t.add("resumed", job) }
func (t *tally) ContainerExited(reason string)                 { t.add("exit", reason) }
func (t *tally) LeakFound(kind string)                         { t.add("found", kind) }
func (t *tally) LeakRepaired(kind string)                      { t.add("repaired", kind) }

// observe starts the daemon of a bed again, with an observer.
func observe(b *bed) *tally {
	b.Helper()
	seen := &tally{}
	b.Observer = seen
	b.restart()
	return seen
}

// wantCounts requires counts, each "WORDS" with how often.
func (t *tally) wantCounts(test *testing.T, want map[string]int) {
	test.Helper()
	for words, n := range want {
		if got := t.of(words); got != n {
			test.Errorf("%s: %d times, want %d", words, got, n)
		}
	}
}

// TestJobsAreCounted: each job and each of its stages counts once, with the job's result.
func TestJobsAreCounted(t *testing.T) {
	b := newBed(t, nil)
	seen := observe(b)
	sandbox := b.mustRun(b.SandboxConfig("web"))
	done := b.mustStart(sandbox, "done", b.Programs.Exit(7))
	podtest.Eventually(t, "it exits", func() bool { return b.status(done).GetState() == exited && seen.of("exit", "Error") == 1 })
	config := b.ContainerConfig("absent", b.Programs.Sleep)
	config.Image.Image = "example.org/absent:1"
	if _, err := b.s.CreateContainer(t.Context(), sandbox, config); err == nil {
		t.Fatal("a container without an image is created")
	}
	seen.wantCounts(t, map[string]int{
		"job: run sandbox: ok": 1, "stage: run sandbox: attach network": 1, "stage: run sandbox: create sandbox": 1, "stage: run sandbox: publish": 1,
		"job: create container: ok": 1, "job: create container: failed": 1, "stage: create container: create container": 1,
		"job: start container: ok": 1, "stage: start container: start container": 1, "exit: Error": 1, "slow: run sandbox: attach network": 0,
	})
	b.clear()
}

// TestFailedStartsAreCounted: a container that cannot be started counts as an exit, once.
func TestFailedStartsAreCounted(t *testing.T) {
	b := newBed(t, nil)
	seen := observe(b)
	sandbox := b.mustRun(b.SandboxConfig("web"))
	for _, program := range [][]string{b.Programs.Missing, {"absent"}} { // known at the start, and at the create
		id := b.mustCreate(sandbox, program[0], program)
		if err := b.s.StartContainer(t.Context(), id); err == nil {
			t.Fatalf("%q has started", program)
		}
		b.assertExit(id, 128, "StartError")
	}
	seen.wantCounts(t, map[string]int{"exit: StartError": 2, "exit: Error": 0, "job: start container: failed": 2})
	b.clear()
}

// TestAFailedStartWithoutAnExitIsCounted: the engine reports no exit of a container that it has neither started nor killed.
func TestAFailedStartWithoutAnExitIsCounted(t *testing.T) {
	b := newBed(t, nil)
	seen := observe(b)
	b.script.Kill()
	b.CloseDaemon(b.s)
	var failed, kept atomic.Bool
	b.script = podtest.NewScript(func(_ int, name string) error {
		if name == "before engine.Start" && !failed.Swap(true) || name == "before engine.Signal" && !kept.Swap(true) {
			return podtest.ErrInjected
		}
		return nil
	})
	b.s = b.Daemon(b.script)
	id := b.mustCreate(b.mustRun(b.SandboxConfig("web")), "main", b.Programs.Sleep)
	if err := b.s.StartContainer(t.Context(), id); err == nil {
		t.Fatal("it has started")
	}
	b.assertExit(id, 128, "StartError")
	seen.wantCounts(t, map[string]int{"exit: StartError": 1, "exit: Error": 0})
	b.clear()
}

// TestWhatIsResumedIsCounted: a stop that a killed daemon has left is one resumed job.
func TestWhatIsResumedIsCounted(t *testing.T) {
	b := newBed(t, nil)
	sandbox := b.mustRun(b.SandboxConfig("web"))
	hang := b.script.HangAt("before network.Detach", false)
	go func() { _ = b.s.StopSandbox(t.Context(), sandbox) }()
	<-hang.Reached
	seen := observe(b)
	podtest.Eventually(t, "the stop is done", func() bool { return len(b.Left()) == 0 && seen.of("job", "stop", "ok") == 1 })
	seen.wantCounts(t, map[string]int{"resumed: stop": 1, "resumed: remove": 0})
	b.clear()
}

// TestLeaksAreCounted: what no record owns is found, and counts as repaired once it is removed.
func TestLeaksAreCounted(t *testing.T) {
	b := newBed(t, nil)
	stray := func(id string) {
		spec := &engine.SandboxSpec{ID: strings.Repeat(id, 64), Config: b.SandboxConfig("stray")}
		if _, err := b.Engine.CreateSandbox(t.Context(), spec); err != nil {
			t.Fatal(err)
		}
	}
	stray("a")
	seen := observe(b)
	podtest.Eventually(t, "the orphan is gone", func() bool { return seen.of("repaired", "sandbox") == 1 })
	seen.wantCounts(t, map[string]int{"found: sandbox": 1, "found: container": 0})

	stray("b")
	stays := &tally{}
	b.Observer = stays
	b.script.Kill()
	b.CloseDaemon(b.s)
	b.script = podtest.NewScript(func(_ int, name string) error {
		if name == "before engine.RemoveSandbox" {
			return errs.Unavailable
		}
		return nil
	})
	b.s = b.Daemon(b.script)
	podtest.Eventually(t, "the orphan is found", func() bool { return stays.of("found", "sandbox") == 1 })
	b.restart()
	podtest.Eventually(t, "the orphan is gone", func() bool { return stays.of("repaired", "sandbox") == 1 })
	if n := stays.of("found", "sandbox"); n != 2 {
		t.Errorf("found %d times: want once by each daemon", n)
	}
	b.clear()
}
