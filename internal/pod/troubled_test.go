package pod_test

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/berthrun/berth/internal/engine"
	"github.com/berthrun/berth/internal/engine/enginetest"
	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/pod"
	"github.com/berthrun/berth/internal/pod/podtest"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// troubled is an engine in memory whose answers have faults.
type troubled struct {
	*enginetest.Fake
	// failures is how many calls of List fail from now on.
	failures atomic.Int64
	// silent is true while List reports no state.
	silent atomic.Bool
	// gone is the id of an object that List leaves out, nil for none.
	gone atomic.Value
	// exitDelay is how much later than List each exit comes.
	exitDelay time.Duration
}

// List implements engine.Engine.
func (e *troubled) List(ctx context.Context) ([]engine.Actual, error) {
	if e.failures.Add(-1) >= 0 {
		return nil, errs.Unavailable
	}
	all, err := e.Fake.List(ctx)
	if e.silent.Load() {
		for i := range all {
			all[i].State, all[i].Pid = engine.StateUnknown, 0
		}
	}
	return slices.DeleteFunc(all, func(a engine.Actual) bool { return a.ID == e.gone.Load() }), err
}

// Exits implements engine.Engine.
func (e *troubled) Exits(ctx context.Context) (<-chan engine.Exit, error) {
	exits, err := e.Fake.Exits(ctx)
	if err != nil || e.exitDelay == 0 {
		return exits, err
	}
	late := make(chan engine.Exit)
	go func() {
		defer close(late)
		var pending sync.WaitGroup
		defer pending.Wait()
		for exit := range exits {
			pending.Go(func() {
				time.Sleep(e.exitDelay)
				select {
				case late <- exit:
				case <-ctx.Done():
				}
			})
		}
	}()
	return late, nil
}

// newTroubledBed is newBed over such an engine.
func newTroubledBed(t *testing.T, exitDelay time.Duration) (*bed, *troubled) {
	t.Helper()
	parts, e := podtest.Fake(), &troubled{Fake: enginetest.NewFake(), exitDelay: exitDelay}
	parts.Engine, parts.Limits = e, pod.Limits{Batch: time.Millisecond}
	w, script := podtest.NewWorld(t, parts), podtest.NewScript(nil)
	return &bed{World: w, T: t, script: script, s: w.Daemon(script)}, e
}

// The engine is back, and cannot list its objects at first.
func TestEngineThatCannotListAtFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, e := newTroubledBed(t, 0)
		sandbox := b.mustRun(b.SandboxConfig("web"))
		up := b.mustStart(sandbox, "up", b.Programs.Sleep)
		synctest.Wait()
		e.Forget()
		e.failures.Store(3)
		if _, err := e.Exits(t.Context()); err != nil { // the test acts as the daemon
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		b.assertExit(up, 255, "Unknown")
		b.assertListed(map[string]runtimeapi.PodSandboxState{sandbox: notReady})
		b.clear()
	})
}

// The engine does not report the states of objects while berth starts, because they hang. Their records stay
// as they are. A start that an earlier berth began is found out about once the engine reports the state: until then
// a kubelet that sees the container CREATED would run a second one.
func TestStartWithoutTheStatesOfObjects(t *testing.T) {
	for point, want := range map[string]runtimeapi.ContainerState{"before engine.Start": created, "after engine.Start": running} {
		t.Run(point, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b, e := newTroubledBed(t, 0)
				sandbox := b.mustRun(b.SandboxConfig("web"))
				up, waiting := b.mustStart(sandbox, "up", b.Programs.Sleep), b.mustCreate(sandbox, "waiting", b.Programs.Sleep)
				starting, lost := b.mustCreate(sandbox, "starting", b.Programs.Sleep), b.mustStart(sandbox, "lost", b.Programs.Sleep)
				hang := b.script.HangAt(point, false)
				came := make(chan error, 1)
				go func() { came <- b.s.StartContainer(t.Context(), starting) }()
				<-hang.Reached
				record := filepath.Join(b.StateDir, "containers", up+".json")
				before, err := os.ReadFile(record)
				if err != nil {
					t.Fatal(err)
				}
				e.silent.Store(true)
				b.restart()
				<-came
				time.Sleep(10 * time.Minute)
				for id, state := range map[string]runtimeapi.ContainerState{up: running, waiting: created, starting: unknown, lost: running} {
					if got := b.status(id).GetState(); got != state {
						t.Errorf("%s is %v, want %v", b.status(id).GetMetadata().GetName(), got, state)
					}
				}
				b.assertListed(map[string]runtimeapi.PodSandboxState{sandbox: ready})
				if after, err := os.ReadFile(record); err != nil || !bytes.Equal(before, after) {
					t.Errorf("the record of a running container was\n%s\nand is\n%s, %v", before, after, err)
				}
				err = b.s.StartContainer(t.Context(), starting)
				assertKind(t, err, errs.State, "it is starting")
				e.gone.Store(lost)
				e.silent.Store(false)
				time.Sleep(time.Minute)
				if got := b.status(starting).GetState(); got != want {
					t.Errorf("the container that was being started is %v, want %v", got, want)
				}
				b.assertExit(lost, 255, "Unknown")
				b.clear()
			})
		})
	}
}

// An engine reports an exit once the log of the container is complete, and may take ten seconds for that, and ten
// for processes that run on. The exit code counts, also when a stop or a start of berth waits for it.
func TestExitThatIsReportedLate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, e := newTroubledBed(t, 20*time.Second)
		sandbox := b.mustRun(b.SandboxConfig("web"))
		stubborn, job := b.mustStart(sandbox, "stubborn", b.Programs.Stubborn), b.mustStart(sandbox, "job", b.Programs.Sleep)
		if err := b.s.StopContainer(t.Context(), stubborn, 1); err != nil {
			t.Error(err)
		}
		b.assertExit(stubborn, 137, "Error")
		b.script.Kill()
		if err := e.Signal(t.Context(), job, syscall.SIGTERM, true); err != nil {
			t.Fatal(err)
		}
		b.restart()
		time.Sleep(time.Minute)
		b.assertExit(job, 143, "Error")
		b.clear()
	})
}
