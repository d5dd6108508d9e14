package pod_test

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/testing/protocmp"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/pod/podtest"
)

// An update is in the cgroup, in the status, and in both again after a restart. The container's
// original config does not change.
func TestUpdateContainer(t *testing.T) {
	b := newBed(t, nil)
	sandbox := b.mustRun(b.SandboxConfig("web"))
	config := b.ContainerConfig("main", b.Programs.Sleep)
	config.Linux = &runtimeapi.LinuxContainerConfig{Resources: &runtimeapi.LinuxContainerResources{
		CpuPeriod: 100000, CpuShares: 102, MemoryLimitInBytes: 64 << 20, MemorySwapLimitInBytes: 64 << 20, OomScoreAdj: 500,
		HugepageLimits: []*runtimeapi.HugepageLimit{{PageSize: "2MB", Limit: 0}, {PageSize: "1GB", Limit: 1 << 30}},
		Unified:        map[string]string{"memory.oom.group": "1", "memory.high": "50000000"},
	}}
	id, err := b.s.CreateContainer(t.Context(), sandbox, config)
	if err != nil {
		t.Fatal(err)
	}
	if err := b.s.UpdateContainer(t.Context(), id[:12], &runtimeapi.LinuxContainerResources{
		CpuQuota: 50000, MemoryLimitInBytes: 128 << 20, CpusetCpus: "0", OomScoreAdj: -5,
		HugepageLimits: []*runtimeapi.HugepageLimit{{PageSize: "2MB", Limit: 4 << 20}},
		Unified:        map[string]string{"memory.high": "100000000"},
	}); err != nil {
		t.Fatal(err)
	}
	want := &runtimeapi.LinuxContainerResources{
		CpuPeriod: 100000, CpuQuota: 50000, CpuShares: 102, MemoryLimitInBytes: 128 << 20, OomScoreAdj: 500, CpusetCpus: "0",
		HugepageLimits: []*runtimeapi.HugepageLimit{{PageSize: "1GB", Limit: 1 << 30}, {PageSize: "2MB", Limit: 4 << 20}},
		Unified:        map[string]string{"memory.oom.group": "1", "memory.high": "100000000"},
	}
	check := func(when string) {
		t.Helper()
		if diff := cmp.Diff(want, b.status(id).GetResources().GetLinux(), protocmp.Transform()); diff != "" {
			t.Errorf("status %s: %s", when, diff)
		}
		if diff := cmp.Diff(want, b.fake().Limits(id), protocmp.Transform()); diff != "" {
			t.Errorf("cgroup %s: %s", when, diff)
		}
	}
	check("after the update")
	b.restart()
	check("after the restart")
	if again, err := b.s.CreateContainer(t.Context(), sandbox, config); err != nil || again != id {
		t.Errorf("the retry of the create got %s, %v", again, err)
	}
	b.clear()
}

// TestConcurrentUpdates: what a kubelet changes and what a plugin changes at the same time both hold,
// in the cgroup and in the status.
func TestConcurrentUpdates(t *testing.T) {
	b := newBed(t, nil)
	sandbox := b.mustRun(b.SandboxConfig("web"))
	id := b.mustStart(sandbox, "main", b.Programs.Sleep)
	hang := b.script.HangAt("before engine.Update", false)
	failed := make(chan error, 2)
	go func() {
		failed <- b.s.UpdateLimits(t.Context(), id, &runtimeapi.LinuxContainerResources{CpuShares: 333})
	}()
	<-hang.Reached
	go func() {
		failed <- b.s.UpdateContainer(t.Context(), id, &runtimeapi.LinuxContainerResources{MemoryLimitInBytes: 1 << 30})
	}()
	podtest.Eventually(t, "the kubelet's update is at the engine", func() bool {
		jobs := b.s.Jobs()
		return len(jobs) == 1 && jobs[0].Stage == "update container"
	})
	hang.Release()
	for range 2 {
		if err := <-failed; err != nil {
			t.Error(err)
		}
	}
	for where, got := range map[string]*runtimeapi.LinuxContainerResources{
		"cgroup": b.fake().Limits(id), "status": b.status(id).GetResources().GetLinux(),
	} {
		if got.GetCpuShares() != 333 || got.GetMemoryLimitInBytes() != 1<<30 {
			t.Errorf("%s: %v, want both changes", where, got)
		}
	}
	b.clear()
}

// TestStopEndsAllUpdates: an update waits for one that hangs. A stop cancels both, and does not wait for them.
func TestStopEndsAllUpdates(t *testing.T) {
	b := newBed(t, nil)
	sandbox := b.mustRun(b.SandboxConfig("web"))
	id := b.mustStart(sandbox, "main", b.Programs.Sleep)
	hang := b.script.HangAt("before engine.Update", false)
	defer hang.Release()
	failed := make(chan error, 2)
	update := func() {
		failed <- b.s.UpdateContainer(t.Context(), id, &runtimeapi.LinuxContainerResources{CpuShares: 333})
	}
	go update()
	<-hang.Reached
	go update()
	podtest.Eventually(t, "the second update waits for the first", func() bool { return len(b.s.Jobs()) == 2 })
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	if err := b.s.StopContainer(ctx, id, 0); err != nil {
		t.Errorf("the stop: %v", err)
	}
	for range 2 {
		assertKind(t, <-failed, errs.Unavailable, `gave way to "stop"`)
	}
	b.clear()
}

func TestUpdateContainerRefused(t *testing.T) {
	b := newBed(t, nil)
	sandbox := b.mustRun(b.SandboxConfig("web"))
	done := b.mustStart(sandbox, "done", b.Programs.Exit(0))
	podtest.Eventually(t, "the program ends", func() bool { return b.status(done).GetState() == exited })
	res := &runtimeapi.LinuxContainerResources{CpuShares: 512}
	assertKind(t, b.s.UpdateContainer(t.Context(), done, res), errs.State, "exited")
	assertKind(t, b.s.UpdateContainer(t.Context(), "0123", res), errs.NotFound)
	assertKind(t, b.s.UpdateSandbox(t.Context(), "0123", nil, res), errs.NotFound)
	// Fields that an update cannot change are validated, too.
	score := &runtimeapi.LinuxContainerResources{OomScoreAdj: 1001}
	waiting := b.mustCreate(sandbox, "waiting", b.Programs.Sleep)
	assertKind(t, b.s.UpdateContainer(t.Context(), waiting, score), errs.Invalid, "linux.oom_score_adj")
	assertKind(t, b.s.UpdateSandbox(t.Context(), sandbox, nil, score), errs.Invalid, "resources.oom_score_adj")
	assertKind(t, b.s.UpdateSandbox(t.Context(), sandbox, score, nil), errs.Invalid, "overhead.oom_score_adj")
	if err := b.s.StopSandbox(t.Context(), sandbox); err != nil {
		t.Fatal(err)
	}
	assertKind(t, b.s.UpdateSandbox(t.Context(), sandbox, nil, res), errs.State)
	b.clear()
}

func TestUpdateSandbox(t *testing.T) {
	b := newBed(t, nil)
	config := b.SandboxConfig("web")
	config.Linux = &runtimeapi.LinuxPodSandboxConfig{Resources: &runtimeapi.LinuxContainerResources{CpuShares: 100}}
	id := b.mustRun(config)
	for range 2 {
		if err := b.s.UpdateSandbox(t.Context(), id, &runtimeapi.LinuxContainerResources{CpuShares: 10}, &runtimeapi.LinuxContainerResources{MemoryLimitInBytes: 1 << 30}); err != nil {
			t.Fatal(err)
		}
		want := &runtimeapi.LinuxContainerResources{CpuShares: 100, MemoryLimitInBytes: 1 << 30}
		if diff := cmp.Diff(want, b.fake().Limits(id), protocmp.Transform()); diff != "" {
			t.Error(diff)
		}
		b.restart()
	}
	if again := b.mustRun(config); again != id {
		t.Errorf("the retry of the run got %s", again)
	}
	b.clear()
}

// If the engine could not write the limits, the record keeps the previous ones, which still apply.
func TestUpdateSandboxThatFails(t *testing.T) {
	var fail atomic.Bool
	b := newBed(t, func(_ int, name string) error {
		if fail.Load() && name == "before engine.UpdateSandbox" {
			return podtest.ErrInjected
		}
		return nil
	})
	id := b.mustRun(b.SandboxConfig("web"))
	limits := func(bytes int64) error {
		return b.s.UpdateSandbox(t.Context(), id, nil, &runtimeapi.LinuxContainerResources{MemoryLimitInBytes: bytes})
	}
	if err := limits(1 << 30); err != nil {
		t.Fatal(err)
	}
	fail.Store(true)
	if err := limits(1 << 20); !errors.Is(err, podtest.ErrInjected) {
		t.Errorf("the failure is not told: %v", err)
	}
	answer, err := b.s.SandboxStatus(t.Context(), id, true)
	if err != nil || !strings.Contains(answer.Info["info"], `"memoryLimitInBytes":"1073741824"`) {
		t.Errorf("the record says %v, %v", answer.GetInfo(), err)
	}
	fail.Store(false)
	b.clear()
}

// If berth knows at creation that a program is missing, the start fails, because users expect the
// error there.
func TestStartErrorKnownAtCreate(t *testing.T) {
	b := newBed(t, nil)
	sandbox := b.mustRun(b.SandboxConfig("web"))
	id := b.mustCreate(sandbox, "main", []string{"absent"})
	if got := b.status(id).GetState(); got != created {
		t.Errorf("state %v", got)
	}
	assertKind(t, b.s.UpdateContainer(t.Context(), id, &runtimeapi.LinuxContainerResources{CpuShares: 2}), errs.State)
	b.restart()
	if again := b.mustCreate(sandbox, "main", []string{"absent"}); again != id {
		t.Errorf("the retry of the create got %s", again)
	}
	assertKind(t, b.s.StartContainer(t.Context(), id), errs.Invalid, "absent")
	b.assertExit(id, 128, "StartError")
	if b.status(id).GetMessage() == "" {
		t.Error("the status does not say why")
	}
	b.clear()
}

// If the daemon dies during the start of such a container, the next one reports its exit at once.
// No other process would ever report it.
func TestRestartDuringAFailingStart(t *testing.T) {
	b := newBed(t, nil)
	id := b.mustCreate(b.mustRun(b.SandboxConfig("web")), "main", []string{"absent"})
	hang := b.script.HangAt("before engine.Signal", false)
	came := make(chan error, 1)
	go func() { came <- b.s.StartContainer(t.Context(), id) }()
	<-hang.Reached
	b.restart()
	<-came
	b.assertExit(id, 128, "StartError")
	b.clear()
}

// Every signal that a request can name exists on Linux.
func TestEverySignalOfTheAPICanBeSent(t *testing.T) {
	b := newBed(t, nil)
	sandbox := b.mustRun(b.SandboxConfig("web"))
	for number, name := range runtimeapi.Signal_name {
		config := b.ContainerConfig("c"+name, b.Programs.Sleep)
		config.StopSignal = runtimeapi.Signal(number)
		id, err := b.s.CreateContainer(t.Context(), sandbox, config)
		if err != nil {
			t.Fatal(err)
		}
		want := config.StopSignal
		if want == runtimeapi.Signal_SIGNAL_RUNTIME_DEFAULT {
			want = runtimeapi.Signal_SIGNAL_SIGTERM // the image's
		}
		if got := b.status(id).GetStopSignal(); got != want {
			t.Errorf("%s: the status says %s", name, got)
		}
	}
	b.clear()
}
