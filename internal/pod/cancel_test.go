package pod_test

import (
	"errors"
	"testing"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/pod/job"
	"github.com/berthrun/berth/internal/pod/podtest"
)

// TestCancelJob: a create that is cancelled is rolled back, and its client gets the reason. A stop goes to its end.
func TestCancelJob(t *testing.T) {
	b := newBed(t, nil)
	hang := b.script.HangAt("before network.Attach", false)
	config := b.SandboxConfig("web")
	came := b.runLater(t.Context(), config)
	<-hang.Reached
	id := b.s.Jobs()[0].ID
	before, end, err := b.s.CancelJob(t.Context(), id[:12])
	if err != nil || before.ID != id || before.Stage != "attach network" || end.Result != job.ResultCancelled {
		t.Errorf("got %+v, %+v, %v", before, end, err)
	}
	if got := <-came; !errors.Is(got.err, errs.Unavailable) {
		t.Errorf("the client got %v", got.err)
	}
	b.assertListed(nil)
	if left := b.Left(); len(left) > 0 {
		t.Errorf("left: %q", left)
	}
	if _, _, err := b.s.CancelJob(t.Context(), id); !errors.Is(err, errs.NotFound) {
		t.Errorf("a job that has ended: %v", err)
	}

	hang.Release()
	sandbox := b.mustRun(config)
	hang = b.script.HangAt("before network.Detach", true)
	stopped := make(chan error, 1)
	go func() { stopped <- b.s.StopSandbox(t.Context(), sandbox) }()
	<-hang.Reached
	if _, _, err := b.s.CancelJob(t.Context(), sandbox); !errors.Is(err, errs.State) {
		t.Errorf("a stop: %v", err)
	}
	hang.Release()
	if err := <-stopped; err != nil {
		t.Errorf("the stop: %v", err)
	}
	podtest.Eventually(t, "no job is left", func() bool { return len(b.s.Jobs()) == 0 })
}
