package pod_test

import (
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/berthrun/berth/internal/engine/enginetest"
	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/pod/podtest"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

func (b *bed) fake() *enginetest.Fake {
	b.Helper()
	fake, ok := b.Engine.(*enginetest.Fake)
	if !ok {
		b.Fatal("the bed has no fake engine")
	}
	return fake
}

func (b *bed) assertExit(id string, code int32, reason string) {
	b.Helper()
	status := b.status(id)
	if status.GetState() != runtimeapi.ContainerState_CONTAINER_EXITED || status.GetExitCode() != code || status.GetReason() != reason || status.GetFinishedAt() == 0 {
		b.Errorf("status %v, want EXITED, code %d, reason %s", status, code, reason)
	}
}

func TestStopSignalThenKill(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBed(t, nil)
		sandbox := b.mustRun(b.SandboxConfig("web"))
		soft := b.mustStart(sandbox, "soft", b.Programs.Sleep)
		hard := b.mustStart(sandbox, "hard", b.Programs.Stubborn)
		begin := time.Now()
		if err := b.s.StopContainer(t.Context(), soft, 30); err != nil {
			t.Error(err)
		}
		if took := time.Since(begin); took != 0 {
			t.Errorf("a container that obeys took %s", took)
		}
		b.assertExit(soft, 143, "Error")
		if err := b.s.StopContainer(t.Context(), hard, 30); err != nil {
			t.Error(err)
		}
		if took := time.Since(begin); took != 30*time.Second {
			t.Errorf("a stubborn container took %s", took)
		}
		b.assertExit(hard, 137, "Error")
		if got := b.fake().Signals(hard); !slices.Equal(got, []syscall.Signal{syscall.SIGTERM, syscall.SIGKILL}) {
			t.Errorf("signals %v", got)
		}
		b.clear()
	})
}

func TestStopWithoutGraceKillsAtOnce(t *testing.T) {
	b := newBed(t, nil)
	id := b.mustStart(b.mustRun(b.SandboxConfig("web")), "main", b.Programs.Sleep)
	if err := b.s.StopContainer(t.Context(), id, 0); err != nil {
		t.Error(err)
	}
	if got := b.fake().Signals(id); !slices.Equal(got, []syscall.Signal{syscall.SIGKILL}) {
		t.Errorf("signals %v", got)
	}
	b.assertExit(id, 137, "Error")
	b.clear()
}

func TestSecondStopShortensTheGracePeriod(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBed(t, nil)
		id := b.mustStart(b.mustRun(b.SandboxConfig("web")), "main", b.Programs.Stubborn)
		begin := time.Now()
		first := make(chan error, 1)
		go func() { first <- b.s.StopContainer(t.Context(), id, 3600) }()
		time.Sleep(time.Minute)
		if err := b.s.StopContainer(t.Context(), id, 7200); err == nil {
			// A longer grace period does not extend the first one.
			t.Log("ended with the first")
		}
		if err := <-first; err != nil {
			t.Error(err)
		}
		if took := time.Since(begin); took != time.Hour {
			t.Errorf("a longer second stop: took %s", took)
		}
		b.clear()
	})
	synctest.Test(t, func(t *testing.T) {
		b := newBed(t, nil)
		id := b.mustStart(b.mustRun(b.SandboxConfig("web")), "main", b.Programs.Stubborn)
		begin := time.Now()
		first := make(chan error, 1)
		go func() { first <- b.s.StopContainer(t.Context(), id, 3600) }()
		time.Sleep(time.Minute)
		if err := b.s.StopContainer(t.Context(), id, 10); err != nil {
			t.Error(err)
		}
		if err := <-first; err != nil {
			t.Error(err)
		}
		if took := time.Since(begin); took != 70*time.Second {
			t.Errorf("a shorter second stop: took %s", took)
		}
		if got := b.fake().Signals(id); !slices.Equal(got, []syscall.Signal{syscall.SIGTERM, syscall.SIGKILL}) {
			t.Errorf("signals %v", got)
		}
		b.clear()
	})
}

func TestRemoveEndsGracePeriod(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBed(t, nil)
		id := b.mustStart(b.mustRun(b.SandboxConfig("web")), "main", b.Programs.Stubborn)
		begin := time.Now()
		first := make(chan error, 1)
		go func() { first <- b.s.StopContainer(t.Context(), id, 3600) }()
		time.Sleep(time.Minute)
		if err := b.s.RemoveContainer(t.Context(), id); err != nil {
			t.Error(err)
		}
		if err := <-first; err != nil {
			t.Error(err)
		}
		if took := time.Since(begin); took != time.Minute {
			t.Errorf("took %s", took)
		}
		b.clear()
	})
}

// A stop that joins a removal leaves no grace period behind, because nothing would ever end it.
func TestStopThatJoinsARemoval(t *testing.T) {
	b := newBed(t, nil)
	id := b.mustStart(b.mustRun(b.SandboxConfig("web")), "main", b.Programs.Sleep)
	hang := b.script.HangAt("before engine.Remove", false)
	ended := make(chan error, 2)
	go func() { ended <- b.s.RemoveContainer(t.Context(), id) }()
	<-hang.Reached
	go func() { ended <- b.s.StopContainer(t.Context(), id, 3600) }()
	podtest.Eventually(t, "the stop joins the removal", func() bool {
		jobs := b.s.Jobs()
		return len(jobs) == 1 && jobs[0].Waiters == 2
	})
	hang.Release()
	for range 2 {
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}
	if n := b.s.GracePeriods(); n != 0 {
		t.Errorf("%d grace periods are left", n)
	}
	b.clear()
}

// The next daemon continues a stop with the rest of the grace period, and without a second stop
// signal.
func TestStopSurvivesRestart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBed(t, nil)
		id := b.mustStart(b.mustRun(b.SandboxConfig("web")), "main", b.Programs.Stubborn)
		begin := time.Now()
		came := make(chan error, 1)
		go func() { came <- b.s.StopContainer(t.Context(), id, 600) }()
		time.Sleep(time.Minute)
		b.restart()
		<-came
		if status := b.status(id); status.GetState() != runtimeapi.ContainerState_CONTAINER_RUNNING {
			t.Errorf("after the restart: %v", status)
		}
		for b.status(id).GetState() == runtimeapi.ContainerState_CONTAINER_RUNNING {
			time.Sleep(time.Second)
		}
		if took := time.Since(begin).Round(5 * time.Second); took != 10*time.Minute {
			t.Errorf("took %s", took)
		}
		if got := b.fake().Signals(id); !slices.Equal(got, []syscall.Signal{syscall.SIGTERM, syscall.SIGKILL}) {
			t.Errorf("signals %v", got)
		}
		b.clear()
	})
}

func TestStopOfEndedContainers(t *testing.T) {
	b := newBed(t, nil)
	sandbox := b.mustRun(b.SandboxConfig("web"))
	created := b.mustCreate(sandbox, "created", b.Programs.Sleep)
	exited := b.mustStart(sandbox, "exited", b.Programs.Exit(4))
	podtest.Eventually(t, "it exits", func() bool { return b.status(exited).GetExitCode() == 4 })
	for what, id := range map[string]string{"created": created, "exited": exited, "unknown": "0123"} {
		if err := b.s.StopContainer(t.Context(), id, 5); err != nil {
			t.Errorf("stop of a container that is %s: %v", what, err)
		}
	}
	if state := b.status(created).GetState(); state != runtimeapi.ContainerState_CONTAINER_CREATED {
		t.Errorf("created became %v", state)
	}
	b.assertExit(exited, 4, "Error")
	for _, end := range []error{
		b.s.RemoveContainer(t.Context(), "0123"), b.s.StopSandbox(t.Context(), "0123"), b.s.RemoveSandbox(t.Context(), "0123"),
		b.s.StopSandbox(t.Context(), sandbox), b.s.StopSandbox(t.Context(), sandbox),
	} {
		if end != nil {
			t.Error(end)
		}
	}
	b.clear()
}

func TestStopSignalOfRequestAndImage(t *testing.T) {
	b := newBed(t, nil)
	sandbox := b.mustRun(b.SandboxConfig("web"))
	for i, c := range []struct {
		asked runtimeapi.Signal
		image string
		want  syscall.Signal
		told  runtimeapi.Signal
	}{
		{runtimeapi.Signal_SIGNAL_RUNTIME_DEFAULT, "", syscall.SIGTERM, runtimeapi.Signal_SIGNAL_SIGTERM},
		{runtimeapi.Signal_SIGNAL_RUNTIME_DEFAULT, "SIGQUIT", syscall.SIGQUIT, runtimeapi.Signal_SIGNAL_SIGQUIT},
		{runtimeapi.Signal_SIGNAL_RUNTIME_DEFAULT, "SIGNONSENSE", syscall.SIGTERM, runtimeapi.Signal_SIGNAL_SIGTERM},
		{runtimeapi.Signal_SIGNAL_SIGUSR1, "SIGQUIT", syscall.SIGUSR1, runtimeapi.Signal_SIGNAL_SIGUSR1},
		{runtimeapi.Signal_SIGNAL_SIGRTMINPLUS3, "RTMIN+5", 37, runtimeapi.Signal_SIGNAL_SIGRTMINPLUS3},
		{runtimeapi.Signal_SIGNAL_SIGRTMAXMINUS1, "", 63, runtimeapi.Signal_SIGNAL_SIGRTMAXMINUS1},
		{runtimeapi.Signal_SIGNAL_RUNTIME_DEFAULT, "1", syscall.SIGHUP, runtimeapi.Signal_SIGNAL_SIGHUP},
		{runtimeapi.Signal_SIGNAL_RUNTIME_DEFAULT, "SIGRTMIN+4", 38, runtimeapi.Signal_SIGNAL_SIGRTMINPLUS4},
	} {
		images, ok := b.Images.(*podtest.Images)
		if !ok {
			t.Fatal("the bed has no fake images")
		}
		images.Image.Config.StopSignal = c.image
		config := b.ContainerConfig(fmt.Sprint("main", i), b.Programs.Stubborn)
		config.StopSignal = c.asked
		id, err := b.s.CreateContainer(t.Context(), sandbox, config)
		if err != nil {
			t.Fatal(err)
		}
		if err := b.s.StartContainer(t.Context(), id); err != nil {
			t.Fatal(err)
		}
		if told := b.status(id).GetStopSignal(); told != c.told {
			t.Errorf("asked %v, image %q: told %v, want %v", c.asked, c.image, told, c.told)
		}
		done := make(chan error, 1)
		go func() { done <- b.s.StopContainer(t.Context(), id, 3600) }()
		podtest.Eventually(t, "the stop signal is sent", func() bool { return len(b.fake().Signals(id)) == 1 })
		if got := b.fake().Signals(id)[0]; got != c.want {
			t.Errorf("asked %v, image %q: sent %d, want %d", c.asked, c.image, got, c.want)
		}
		if err := b.s.RemoveContainer(t.Context(), id); err != nil {
			t.Error(err)
		}
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
	b.clear()
}

// A stop that fails is reported, and continues without another request.
func TestFailedStopIsRetried(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var broken atomic.Bool
		broken.Store(true)
		b := newBed(t, func(_ int, name string) error {
			if broken.Load() && name == "before engine.Signal" {
				return podtest.ErrInjected
			}
			return nil
		})
		id := b.mustStart(b.mustRun(b.SandboxConfig("web")), "main", b.Programs.Stubborn)
		assertKind(t, b.s.StopContainer(t.Context(), id, 0), podtest.ErrInjected, "cannot kill container")
		if got := b.status(id).GetState(); got != running {
			t.Errorf("state %v", got)
		}
		broken.Store(false)
		time.Sleep(time.Minute)
		b.assertExit(id, 137, "Error")
		b.clear()
	})
}

// A stop signal that could not be sent is sent again. The container keeps its grace period.
func TestFailedStopSignalIsSentAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var broken atomic.Bool
		broken.Store(true)
		b := newBed(t, func(_ int, name string) error {
			if broken.Load() && name == "before engine.Signal" {
				return podtest.ErrInjected
			}
			return nil
		})
		sandbox := b.mustRun(b.SandboxConfig("web"))
		polite, stubborn := b.mustStart(sandbox, "polite", b.Programs.Sleep), b.mustStart(sandbox, "stubborn", b.Programs.Stubborn)
		for _, id := range []string{polite, stubborn} {
			assertKind(t, b.s.StopContainer(t.Context(), id, 90), podtest.ErrInjected, "cannot stop container")
		}
		broken.Store(false)
		time.Sleep(time.Minute)
		b.assertExit(polite, 143, "Error")
		if got := b.status(stubborn).GetState(); got != running {
			t.Errorf("state %v a minute before its grace ends", got)
		}
		time.Sleep(time.Minute)
		b.assertExit(stubborn, 137, "Error")
		b.clear()
	})
}

// An engine that does not answer cannot block a request forever.
func TestStopIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBed(t, nil)
		id := b.mustStart(b.mustRun(b.SandboxConfig("web")), "main", b.Programs.Stubborn)
		hang := b.script.HangAt("before engine.Signal", true)
		begin := time.Now()
		assertKind(t, b.s.StopContainer(t.Context(), id, 0), errs.Deadline, "send signal", "does not return")
		if took := time.Since(begin); took != 20*time.Second { // 10 for the answer, 10 after the cancellation
			t.Errorf("took %s", took)
		}
		hang.Release()
		time.Sleep(time.Minute)
		b.assertExit(id, 137, "Error")
		b.clear()
	})
}

func TestStartError(t *testing.T) {
	b := newBed(t, nil)
	sandbox := b.mustRun(b.SandboxConfig("web"))
	id := b.mustCreate(sandbox, "main", b.Programs.Missing)
	err := b.s.StartContainer(t.Context(), id)
	assertKind(t, err, errs.Invalid, "missing")
	b.assertExit(id, 128, "StartError")
	if b.status(id).GetMessage() == "" {
		t.Error("the status does not say why")
	}
	assertKind(t, b.s.StartContainer(t.Context(), id), errs.State, "exited")
	assertKind(t, b.s.StartContainer(t.Context(), "0123"), errs.NotFound)
	b.clear()
}

// A start that fails for another reason leaves no running process.
func TestStartFailsAfterItTookEffect(t *testing.T) {
	b := newBed(t, func(_ int, name string) error {
		if name == "after engine.Start" {
			return podtest.ErrInjected
		}
		return nil
	})
	id := b.mustCreate(b.mustRun(b.SandboxConfig("web")), "main", b.Programs.Stubborn)
	assertKind(t, b.s.StartContainer(t.Context(), id), podtest.ErrInjected)
	if got := b.fake().Signals(id); !slices.Equal(got, []syscall.Signal{syscall.SIGKILL}) {
		t.Errorf("signals %v", got)
	}
	b.assertExit(id, 128, "StartError")
	b.clear()
}

// TestStoppedSandboxReleasesItsResources: the engine's resources are released only after the
// network was detached. The record contains no path to them. Containers that never ran are reported
// as exited.
func TestStoppedSandboxReleasesItsResources(t *testing.T) {
	var asked atomic.Bool
	b := newBed(t, func(_ int, name string) error {
		if name == "before network.Detach" && !asked.Swap(true) {
			return podtest.ErrInjected
		}
		return nil
	})
	sandbox := b.mustRun(b.SandboxConfig("web"))
	waiting := b.mustCreate(sandbox, "waiting", b.Programs.Sleep)
	assertKind(t, b.s.StopSandbox(t.Context(), sandbox), podtest.ErrInjected)
	if b.fake().Released(sandbox) {
		t.Error("a sandbox whose network is not detached has lost its namespaces")
	}
	for range 2 {
		if err := b.s.StopSandbox(t.Context(), sandbox); err != nil {
			t.Fatal(err)
		}
	}
	if !b.fake().Released(sandbox) {
		t.Error("a stopped sandbox holds its namespaces")
	}
	if status := b.status(waiting); status.GetState() != runtimeapi.ContainerState_CONTAINER_EXITED {
		t.Errorf("a container that was not started is %v", status)
	}
	status, err := b.s.SandboxStatus(t.Context(), sandbox, true)
	if err != nil || status.Status.GetState() != notReady || status.Status.GetNetwork().GetIp() != "" || strings.Contains(status.Info["info"], "/fake/net/") {
		t.Errorf("status %v, %v", status, err)
	}
	b.clear()
}

func TestStartNeedsReadySandbox(t *testing.T) {
	b := newBed(t, nil)
	sandbox := b.mustRun(b.SandboxConfig("web"))
	id := b.mustCreate(sandbox, "main", b.Programs.Sleep)
	if err := b.s.StopSandbox(t.Context(), sandbox); err != nil {
		t.Fatal(err)
	}
	assertKind(t, b.s.StartContainer(t.Context(), id), errs.State, "not ready")
	b.clear()
}
