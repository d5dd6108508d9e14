package pod_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/pod"
	"github.com/berthrun/berth/internal/pod/podtest"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// bed is a machine in memory with one daemon, whose calls go through the script.
type bed struct {
	*podtest.World
	*testing.T
	script *podtest.Script
	s      *pod.Service
}

func newBed(t *testing.T, decide func(n int, name string) error) *bed {
	t.Helper()
	w := podtest.NewWorld(t, podtest.Fake())
	w.Limits = pod.Limits{Batch: time.Millisecond}
	script := podtest.NewScript(decide)
	return &bed{World: w, T: t, script: script, s: w.Daemon(script)}
}

// restart kills the daemon and starts another.
func (b *bed) restart() {
	b.Helper()
	b.script.Kill()
	b.CloseDaemon(b.s)
	b.script = podtest.NewScript(nil)
	b.s = b.Daemon(b.script)
}

// outcome is the result of a request.
type outcome struct {
	id  string
	err error
}

// runLater starts a request for a sandbox in the background.
func (b *bed) runLater(ctx context.Context, config *runtimeapi.PodSandboxConfig) <-chan outcome {
	came := make(chan outcome, 1)
	go func() {
		id, err := b.s.RunSandbox(ctx, config, "")
		came <- outcome{id, err}
	}()
	return came
}

func (b *bed) mustRun(config *runtimeapi.PodSandboxConfig) string {
	b.Helper()
	id, err := b.s.RunSandbox(b.Context(), config, "")
	if err != nil {
		b.Fatalf("RunSandbox: %v", err)
	}
	return id
}

func (b *bed) mustCreate(sandbox, name string, command []string) string {
	b.Helper()
	id, err := b.s.CreateContainer(b.Context(), sandbox, b.ContainerConfig(name, command))
	if err != nil {
		b.Fatalf("CreateContainer: %v", err)
	}
	return id
}

func (b *bed) mustStart(sandbox, name string, command []string) string {
	b.Helper()
	id := b.mustCreate(sandbox, name, command)
	if err := b.s.StartContainer(b.Context(), id); err != nil {
		b.Fatalf("StartContainer: %v", err)
	}
	return id
}

func (b *bed) listed() map[string]runtimeapi.PodSandboxState {
	b.Helper()
	list, err := podtest.Sandboxes(b.Context(), b.s, nil)
	if err != nil {
		b.Fatal(err)
	}
	states := map[string]runtimeapi.PodSandboxState{}
	for _, sb := range list {
		states[sb.GetId()] = sb.GetState()
	}
	return states
}

func (b *bed) assertListed(want map[string]runtimeapi.PodSandboxState) {
	b.Helper()
	got := b.listed()
	if len(got) != len(want) {
		b.Errorf("listed %v, want %v", got, want)
		return
	}
	for id, state := range want {
		if got[id] != state {
			b.Errorf("listed %v, want %v", got, want)
		}
	}
}

func (b *bed) status(id string) *runtimeapi.ContainerStatus {
	b.Helper()
	status, _, err := b.s.ContainerStatus(b.Context(), id, false)
	if err != nil {
		b.Fatalf("ContainerStatus: %v", err)
	}
	return status
}

// clear removes everything that is listed and checks that nothing is left.
func (b *bed) clear() {
	b.Helper()
	for id := range b.listed() {
		if err := b.s.RemoveSandbox(b.Context(), id); err != nil {
			b.Errorf("RemoveSandbox: %v", err)
		}
	}
	podtest.Eventually(b.T, "nothing is left", func() bool {
		return len(b.s.Jobs()) == 0 && len(b.Leftovers()) == 0 && b.s.GracePeriods() == 0
	})
}

func assertKind(t *testing.T, err, kind error, words ...string) {
	t.Helper()
	if !errors.Is(err, kind) {
		t.Errorf("error %v, want kind %v", err, kind)
		return
	}
	for _, word := range words {
		if !strings.Contains(err.Error(), word) {
			t.Errorf("error %q does not say %q", err, word)
		}
	}
}

const (
	ready    = runtimeapi.PodSandboxState_SANDBOX_READY
	notReady = runtimeapi.PodSandboxState_SANDBOX_NOTREADY
)

// Rule (a): an object whose creation runs appears only in the jobs.
func TestUnfinishedSandboxIsHidden(t *testing.T) {
	b := newBed(t, nil)
	hang := b.script.HangAt("before network.Attach", false)
	came := b.runLater(t.Context(), b.SandboxConfig("web"))
	<-hang.Reached
	b.assertListed(nil)
	jobs := b.s.Jobs()
	if len(jobs) != 1 || jobs[0].Kind != "run sandbox" || jobs[0].Stage != "attach network" || jobs[0].Waiters != 1 || jobs[0].Key != "default/web/uid-web/0" {
		t.Errorf("jobs: %+v", jobs)
	}
	_, err := b.s.SandboxStatus(t.Context(), jobs[0].ID, false)
	assertKind(t, err, errs.NotFound)
	_, err = b.s.CreateContainer(t.Context(), jobs[0].ID, b.ContainerConfig("main", nil))
	assertKind(t, err, errs.NotFound)
	hang.Release()
	got := <-came
	if got.err != nil || got.id != jobs[0].ID {
		t.Errorf("RunSandbox = %v", got)
	}
	b.assertListed(map[string]runtimeapi.PodSandboxState{got.id: ready})
	b.clear()
}

// Rule (a): the same for containers.
func TestUnfinishedContainerIsHidden(t *testing.T) {
	b := newBed(t, nil)
	sandbox := b.mustRun(b.SandboxConfig("web"))
	hang := b.script.HangAt("after engine.Create", false)
	came := make(chan outcome, 1)
	go func() {
		id, err := b.s.CreateContainer(t.Context(), sandbox, b.ContainerConfig("main", b.Programs.Sleep))
		came <- outcome{id, err}
	}()
	<-hang.Reached
	if list, err := podtest.Containers(t.Context(), b.s, nil); err != nil || len(list) != 0 {
		t.Errorf("listed while it is made: %v, %v", list, err)
	}
	hang.Release()
	if got := <-came; got.err != nil || b.status(got.id).GetState() != runtimeapi.ContainerState_CONTAINER_CREATED {
		t.Errorf("CreateContainer = %v", got)
	}
	b.clear()
}

// Rule (a): the sandbox is READY after success, even if no client waits for it any more.
func TestLostCallerDoesNotCancel(t *testing.T) {
	b := newBed(t, nil)
	hang := b.script.HangAt("before network.Attach", false)
	ctx, cancel := context.WithCancel(t.Context())
	came := b.runLater(ctx, b.SandboxConfig("web"))
	<-hang.Reached
	cancel()
	assertKind(t, (<-came).err, errs.Deadline, "attach network")
	hang.Release()
	podtest.Eventually(t, "the sandbox is READY", func() bool { return len(b.listed()) == 1 })
	for _, state := range b.listed() {
		if state != ready {
			t.Errorf("state %v", state)
		}
	}
	b.clear()
}

// Rule (a): a failed sandbox is NOTREADY only if the teardown failed. The teardown is retried.
func TestFailedTeardownIsListedAndRetried(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var broken atomic.Bool
		broken.Store(true)
		b := newBed(t, func(_ int, name string) error {
			if broken.Load() && (name == "after network.Attach" || name == "before network.Detach") {
				return fmt.Errorf("%w: %s", podtest.ErrInjected, name)
			}
			return nil
		})
		_, err := b.s.RunSandbox(t.Context(), b.SandboxConfig("web"), "")
		assertKind(t, err, podtest.ErrInjected, "after network.Attach", "before network.Detach")
		list := b.listed()
		if len(list) != 1 {
			t.Fatalf("listed %v", list)
		}
		for id, state := range list {
			resp, err := b.s.SandboxStatus(t.Context(), id, true)
			if state != notReady || err != nil || resp.GetStatus().GetState() != notReady || !strings.Contains(resp.GetInfo()["info"], "Detach") {
				t.Errorf("state %v, answer %v, %v", state, resp, err)
			}
		}
		time.Sleep(3 * time.Second) // before the first retry
		if len(b.listed()) != 1 {
			t.Error("the record is gone before its things are")
		}
		broken.Store(false)
		time.Sleep(time.Minute)
		b.assertListed(nil)
		if left := b.Leftovers(); len(left) > 0 {
			t.Errorf("left: %q", left)
		}
	})
}

// Rule (c): one second before its deadline the call returns and names the job's stage.
func TestDeadlineIsAnsweredEarly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBed(t, nil)
		hang := b.script.HangAt("before network.Attach", false)
		begin := time.Now()
		ctx, cancel := context.WithTimeout(t.Context(), 4*time.Minute)
		defer cancel()
		_, err := b.s.RunSandbox(ctx, b.SandboxConfig("web"), "")
		assertKind(t, err, errs.Deadline, `"attach network"`, "the network's plugins", "3m59s")
		if took := time.Since(begin); took != 4*time.Minute-time.Second {
			t.Errorf("answered after %s", took)
		}
		hang.Release()
		id := b.mustRun(b.SandboxConfig("web"))
		if n := b.script.Count("before network.Attach"); n != 1 {
			t.Errorf("attached %d times for %s", n, id)
		}
		b.clear()
	})
}

// Rule (d): without progress in a stage the job ends and rolls back.
func TestStageLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBed(t, nil)
		hang := b.script.HangAt("before network.Attach", false)
		begin := time.Now()
		_, err := b.s.RunSandbox(t.Context(), b.SandboxConfig("web"), "")
		assertKind(t, err, errs.Deadline, `no progress for 10m0s in stage "attach network"`)
		if took := time.Since(begin); took != 10*time.Minute {
			t.Errorf("ended after %s", took)
		}
		if left := b.Leftovers(); len(left) > 0 {
			t.Errorf("left: %q", left)
		}
		hang.Release()
		b.mustRun(b.SandboxConfig("web"))
		b.clear()
	})
}

// Changed limits apply to jobs that begin afterwards, and not to running ones.
func TestLimitsThatChange(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBed(t, nil)
		hang := b.script.HangAt("before network.Attach", false)
		begin := time.Now()
		first := b.runLater(t.Context(), b.SandboxConfig("web"))
		<-hang.Reached
		b.s.SetJobLimits(time.Minute, time.Hour)
		_, err := b.s.RunSandbox(t.Context(), b.SandboxConfig("other"), "")
		assertKind(t, err, errs.Deadline, `no progress for 1m0s in stage "attach network"`)
		assertKind(t, (<-first).err, errs.Deadline, "no progress for 10m0s")
		if took := time.Since(begin); took != 10*time.Minute {
			t.Errorf("the first ended after %s", took)
		}
		hang.Release()
		b.clear()
	})
}

// Rule (d): the same if the call does not even return. Other pods continue. The sandbox is
// NOTREADY, and is removed once the call has returned.
func TestCallThatNeverReturns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBed(t, nil)
		hang := b.script.HangAt("before engine.CreateSandbox", true)
		came := b.runLater(t.Context(), b.SandboxConfig("web"))
		<-hang.Reached
		assertKind(t, (<-came).err, errs.Deadline, "create sandbox", "does not return")
		list := b.listed()
		if len(list) != 1 {
			t.Fatalf("listed %v", list)
		}
		for id := range list {
			ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
			assertKind(t, b.s.RemoveSandbox(ctx, id), errs.Deadline, "remove")
			cancel()
		}
		hang.Release()
		time.Sleep(30 * time.Minute)
		b.assertListed(nil)
		b.clear()
	})
}

// Rule (d): a job that makes progress still ends when its time is over.
func TestTotalLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := podtest.NewWorld(t, podtest.Fake())
		w.Limits = pod.Limits{Stage: 10 * time.Minute, Total: 15 * time.Minute}
		script := podtest.NewScript(nil)
		b := &bed{World: w, T: t, script: script, s: w.Daemon(script)}
		first, second := script.HangAt("before engine.CreateSandbox", false), script.HangAt("before network.Attach", false)
		time.AfterFunc(8*time.Minute, first.Release)
		time.AfterFunc(16*time.Minute, second.Release)
		begin := time.Now()
		_, err := b.s.RunSandbox(t.Context(), b.SandboxConfig("web"), "")
		assertKind(t, err, errs.Deadline, "not done after 15m0s")
		if took := time.Since(begin); took != 15*time.Minute {
			t.Errorf("ended after %s", took)
		}
		b.clear()
	})
}

// Rule (e): Stop and Remove cancel the job with their key.
func TestRemoveCancelsRunningJob(t *testing.T) {
	for name, end := range map[string]func(*pod.Service, context.Context, string) error{
		"stop": (*pod.Service).StopSandbox, "remove": (*pod.Service).RemoveSandbox,
	} {
		t.Run(name, func(t *testing.T) {
			b := newBed(t, nil)
			hang := b.script.HangAt("after network.Attach", false)
			came := b.runLater(t.Context(), b.SandboxConfig("web"))
			<-hang.Reached
			if err := end(b.s, t.Context(), b.s.Jobs()[0].ID); err != nil {
				t.Errorf("%s: %v", name, err)
			}
			if got := <-came; got.err == nil {
				t.Error("the cancelled job succeeded")
			}
			b.assertListed(nil)
			b.clear()
		})
	}
}

// Rule (e): Remove is completed, also without its caller, and by the next daemon if necessary.
func TestRemoveRunsToItsEnd(t *testing.T) {
	for _, call := range []string{"before engine.StopSandbox", "after network.Detach", "before engine.RemoveSandbox"} {
		t.Run(call, func(t *testing.T) {
			b := newBed(t, nil)
			sandbox := b.mustRun(b.SandboxConfig("web"))
			b.mustStart(sandbox, "main", b.Programs.Sleep)
			hang := b.script.HangAt(call, false)
			ctx, cancel := context.WithCancel(t.Context())
			came := make(chan error, 1)
			go func() { came <- b.s.RemoveSandbox(ctx, sandbox) }()
			<-hang.Reached
			b.assertListed(map[string]runtimeapi.PodSandboxState{sandbox: notReady})
			cancel()
			assertKind(t, <-came, errs.Deadline)
			b.restart()
			podtest.Eventually(t, "the next daemon removes it", func() bool { return len(b.Leftovers()) == 0 })
		})
	}
}

// Rule (e): the next daemon completes StopSandbox, too. The record stays.
func TestStopRunsToItsEnd(t *testing.T) {
	b := newBed(t, nil)
	sandbox := b.mustRun(b.SandboxConfig("web"))
	container := b.mustStart(sandbox, "main", b.Programs.Sleep)
	hang := b.script.HangAt("before network.Detach", false)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	go func() { _ = b.s.StopSandbox(ctx, sandbox) }()
	<-hang.Reached
	b.restart()
	podtest.Eventually(t, "the network is detached", func() bool { return len(b.Left()) == 0 && len(b.s.Jobs()) == 0 })
	b.assertListed(map[string]runtimeapi.PodSandboxState{sandbox: notReady})
	if status := b.status(container); status.GetExitCode() != 137 {
		t.Errorf("container: %v", status)
	}
	b.clear()
}

// If a sandbox is stopped during the creation of a container, the container is removed.
func TestStopSandboxEndsCreation(t *testing.T) {
	b := newBed(t, nil)
	sandbox := b.mustRun(b.SandboxConfig("web"))
	hang := b.script.HangAt("after engine.Create", false)
	came := make(chan error, 1)
	go func() {
		_, err := b.s.CreateContainer(t.Context(), sandbox, b.ContainerConfig("main", b.Programs.Sleep))
		came <- err
	}()
	<-hang.Reached
	if err := b.s.StopSandbox(t.Context(), sandbox); err != nil {
		t.Errorf("StopSandbox: %v", err)
	}
	if err := <-came; err == nil {
		t.Error("a container was made in a stopped sandbox")
	}
	_, err := b.s.CreateContainer(t.Context(), sandbox, b.ContainerConfig("main", nil))
	assertKind(t, err, errs.State, "not ready")
	b.clear()
}

// The same if the sandbox was stopped before the container had a record.
func TestCreationFindsSandboxStopped(t *testing.T) {
	b := newBed(t, nil)
	sandbox := b.mustRun(b.SandboxConfig("web"))
	hang := b.script.HangAt("before image.Get", false)
	came := make(chan error, 1)
	go func() {
		_, err := b.s.CreateContainer(t.Context(), sandbox, b.ContainerConfig("main", b.Programs.Sleep))
		came <- err
	}()
	<-hang.Reached
	if err := b.s.StopSandbox(t.Context(), sandbox); err != nil {
		t.Errorf("StopSandbox: %v", err)
	}
	hang.Release()
	assertKind(t, <-came, errs.State, "not ready")
	b.clear()
}

// Rule (f): the job of a dead daemon leaves nothing, and the retry succeeds.
func TestCrashInJob(t *testing.T) {
	b := newBed(t, nil)
	hang := b.script.HangAt("after network.Attach", false)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	b.runLater(ctx, b.SandboxConfig("web"))
	<-hang.Reached
	b.restart()
	for id, state := range b.listed() {
		t.Errorf("%s is listed %v after the crash", id, state)
	}
	id := b.mustRun(b.SandboxConfig("web"))
	b.assertListed(map[string]runtimeapi.PodSandboxState{id: ready})
	podtest.Eventually(t, "one attachment is left", func() bool { return len(b.Left()) == 1 })
	b.clear()
}

// A pod never blocks another pod.
func TestHangsDoNotDelayOthers(t *testing.T) {
	b := newBed(t, nil)
	hang := b.script.HangAt("before engine.Create", true)
	sandbox := b.mustRun(b.SandboxConfig("web"))
	go func() {
		_, _ = b.s.CreateContainer(context.WithoutCancel(t.Context()), sandbox, b.ContainerConfig("main", nil))
	}()
	<-hang.Reached
	other := b.mustRun(b.SandboxConfig("other"))
	if err := b.s.RemoveSandbox(t.Context(), other); err != nil {
		t.Error(err)
	}
	hang.Release()
	podtest.Eventually(t, "the container is made", func() bool { list, _ := podtest.Containers(t.Context(), b.s, nil); return len(list) == 1 })
	b.clear()
}

// A container may see the processes of a target container. If the target's process exits, another
// process may get its pid. The container must not see that process.
func TestTargetThatEndsDuringCreate(t *testing.T) {
	var b *bed
	target := ""
	b = newBed(t, func(_ int, name string) error {
		if name == "before engine.Create" && target != "" {
			b.fake().Lose(target)
		}
		return nil
	})
	sandbox := b.mustRun(b.SandboxConfig("web"))
	lost := b.mustStart(sandbox, "main", b.Programs.Sleep)
	config := b.ContainerConfig("debugger", b.Programs.Sleep)
	config.Linux = &runtimeapi.LinuxContainerConfig{SecurityContext: &runtimeapi.LinuxContainerSecurityContext{
		NamespaceOptions: &runtimeapi.NamespaceOption{Pid: runtimeapi.NamespaceMode_TARGET, TargetId: lost},
	}}
	id, err := b.s.CreateContainer(t.Context(), sandbox, config)
	if err != nil {
		t.Fatalf("with a target that runs: %v", err)
	}
	if err := b.s.RemoveContainer(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	target = lost
	_, err = b.s.CreateContainer(t.Context(), sandbox, config)
	assertKind(t, err, errs.State, "target_id", "meanwhile")
	list, err := podtest.Containers(t.Context(), b.s, nil)
	if err != nil || len(list) != 1 {
		t.Errorf("what is left: %v, %v", list, err)
	}
	b.clear()
}

// A panic in a job is rolled back like any other failure.
func TestPanicIsRolledBack(t *testing.T) {
	var at atomic.Value
	at.Store("")
	b := newBed(t, func(_ int, name string) error {
		if at.CompareAndSwap(strings.TrimPrefix(name, "before "), "") {
			panic("oh no")
		}
		return nil
	})
	steps := map[string]bool{}
	for _, step := range []string{"engine.CreateSandbox", "network.Attach", "engine.StartSandbox"} {
		at.Store(step)
		_, err := b.s.RunSandbox(t.Context(), b.SandboxConfig("web"), "")
		if err == nil || errs.Kind(err) != nil || !strings.Contains(err.Error(), "oh no") {
			t.Errorf("%s: %v", step, err)
		}
		steps[step] = at.Load() == ""
		b.assertListed(nil)
	}
	sandbox := b.mustRun(b.SandboxConfig("web"))
	at.Store("engine.Create")
	if _, err := b.s.CreateContainer(t.Context(), sandbox, b.ContainerConfig("c", b.Programs.Sleep)); err == nil || !strings.Contains(err.Error(), "oh no") {
		t.Errorf("engine.Create: %v", err)
	}
	b.mustCreate(sandbox, "c", b.Programs.Sleep)
	for step, met := range steps {
		if !met {
			t.Errorf("the script never came to %s", step)
		}
	}
	b.clear()
}
