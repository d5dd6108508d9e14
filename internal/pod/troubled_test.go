package pod_test

import (
	"context"
	"sync/atomic"
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
}

// List implements engine.Engine.
func (e *troubled) List(ctx context.Context) ([]engine.Actual, error) {
	if e.failures.Add(-1) >= 0 {
		return nil, errs.Unavailable
	}
	return e.Fake.List(ctx)
}

// newTroubledBed is newBed over such an engine.
func newTroubledBed(t *testing.T) (*bed, *troubled) {
	t.Helper()
	parts, e := podtest.Fake(), &troubled{Fake: enginetest.NewFake()}
	parts.Engine, parts.Limits = e, pod.Limits{Batch: time.Millisecond}
	w, script := podtest.NewWorld(t, parts), podtest.NewScript(nil)
	return &bed{World: w, T: t, script: script, s: w.Daemon(script)}, e
}

// The engine is back, and cannot list its objects at first.
func TestEngineThatCannotListAtFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, e := newTroubledBed(t)
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
