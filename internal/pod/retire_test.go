package pod_test

import (
	"testing"
	"testing/synctest"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// TestRetire: every container stops within the grace period, the engine has nothing left, and
// the records with the exits stay.
func TestRetire(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBed(t, nil)
		web, batch := b.mustRun(b.SandboxConfig("web")), b.mustRun(b.SandboxConfig("batch"))
		soft := b.mustStart(web, "soft", b.Programs.Sleep)
		hard := b.mustStart(web, "hard", b.Programs.Stubborn)
		done := b.mustStart(batch, "done", b.Programs.Exit(3))
		synctest.Wait()
		begin := time.Now()
		if err := b.s.Retire(t.Context()); err != nil {
			t.Fatal(err)
		}
		if took := time.Since(begin); took > 31*time.Second {
			t.Errorf("the pods took %s to stop", took)
		}
		b.assertExit(soft, 143, "Error")
		b.assertExit(hard, 137, "Error")
		b.assertExit(done, 3, "Error")
		for _, id := range []string{web, batch} {
			status, err := b.s.SandboxStatus(t.Context(), id, false)
			if err != nil || status.GetStatus().GetState() != runtimeapi.PodSandboxState_SANDBOX_NOTREADY {
				t.Errorf("sandbox %s: %v, %v, want NOTREADY", id, status, err)
			}
		}
		left, err := b.Engine.List(t.Context())
		if err != nil || len(left) > 0 {
			t.Errorf("the engine still has %v, %v", left, err)
		}
		b.clear()
	})
}
