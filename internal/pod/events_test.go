package pod_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/berthrun/berth/internal/pod/events"
	"github.com/berthrun/berth/internal/pod/podtest"
	"github.com/google/go-cmp/cmp"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// follower reads a subscription. It shows the events with the names that a test assigned to ids.
type follower struct {
	*bed
	sub   *events.Subscription
	names map[string]string
	last  int64
	held  []*events.Event
}

func (b *bed) follow(names map[string]string) *follower {
	b.Helper()
	sub, err := b.s.Events()
	if err != nil {
		b.Fatal(err)
	}
	return &follower{bed: b, sub: sub, names: names}
}

func (f *follower) next() *events.Event {
	f.Helper()
	ctx, cancel := context.WithTimeout(f.Context(), 30*time.Second)
	defer cancel()
	for len(f.held) == 0 {
		held, err := f.sub.Next(ctx)
		if err != nil {
			f.Fatalf("no more events: %v", err)
		}
		f.held = held
	}
	event := f.held[0]
	f.held = f.held[1:]
	if event.CreatedAt <= f.last {
		f.Errorf("stamp %d after %d", event.CreatedAt, f.last)
	}
	f.last = event.CreatedAt
	return event
}

// assert reads as many events as the test expects, each "NAME kind".
func (f *follower) assert(want ...string) {
	f.Helper()
	var got []string
	for range want {
		event := f.next()
		kind := map[runtimeapi.ContainerEventType]string{0: "created", 1: "started", 2: "stopped", 3: "deleted"}[event.ContainerEventType]
		got = append(got, fmt.Sprintf("%s %s", f.names[event.ContainerId], kind))
		if event.PodSandboxStatus.GetMetadata().GetUid() == "" {
			f.Errorf("event %v tells of no pod", event)
		}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		f.Errorf("events (-want +got):\n%s", diff)
	}
}

func TestEventsOfAPodLifecycle(t *testing.T) {
	b := newBed(t, nil)
	names := map[string]string{}
	f := b.follow(names)
	sandbox := b.mustRun(b.SandboxConfig("web"))
	names[sandbox] = "pod"
	f.assert("pod created", "pod started")
	up := b.mustCreate(sandbox, "up", b.Programs.Sleep)
	names[up] = "up"
	f.assert("up created")
	if err := b.s.StartContainer(t.Context(), up); err != nil {
		t.Fatal(err)
	}
	started := f.next()
	if started.ContainerEventType != runtimeapi.ContainerEventType_CONTAINER_STARTED_EVENT ||
		started.PodSandboxStatus.GetState() != ready || len(started.ContainersStatuses) != 1 || started.ContainersStatuses[0].State != running {
		t.Errorf("started: %v", started)
	}
	resp, err := b.s.SandboxStatus(t.Context(), sandbox, false)
	if err != nil || resp.Timestamp < started.CreatedAt || len(resp.ContainersStatuses) != 1 {
		t.Errorf("status %v, %v: want one container and a stamp from %d on", resp, err, started.CreatedAt)
	}
	done := b.mustCreate(sandbox, "done", b.Programs.Exit(3))
	names[done] = "done"
	if err := b.s.StartContainer(t.Context(), done); err != nil {
		t.Fatal(err)
	}
	f.assert("done created", "done started", "done stopped")
	for _, err := range []error{
		b.s.StopContainer(t.Context(), up, 10), b.s.RemoveContainer(t.Context(), up),
		b.s.StopSandbox(t.Context(), sandbox), b.s.RemoveSandbox(t.Context(), sandbox),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	f.assert("up stopped", "up deleted", "pod stopped", "done deleted", "pod deleted")
	if c := b.s.EventCounters(); c.Dropped != 0 || c.Published != 12 {
		t.Errorf("counters %+v, want 12 events and none dropped", c)
	}
}

// If several containers have the same name, a kubelet uses the first one in the status and in
// events. This must be the newest, or the kubelet restarts a running container.
func TestStatusesOfContainersAreTheNewestFirst(t *testing.T) {
	b := newBed(t, nil)
	sandbox := b.mustRun(b.SandboxConfig("web"))
	old := b.mustStart(sandbox, "main", b.Programs.Sleep)
	if err := b.s.StopContainer(t.Context(), old, 10); err != nil {
		t.Fatal(err)
	}
	again := b.ContainerConfig("main", b.Programs.Sleep)
	again.Metadata.Attempt = 1
	id, err := b.s.CreateContainer(t.Context(), sandbox, again)
	if err != nil {
		t.Fatal(err)
	}
	check := func(where string, all []*runtimeapi.ContainerStatus) {
		t.Helper()
		if len(all) != 2 || all[0].Id != id || all[1].Id != old {
			t.Errorf("%s: %v, want %s, then %s", where, all, id, old)
		}
	}
	resp, err := b.s.SandboxStatus(t.Context(), sandbox, false)
	if err != nil {
		t.Fatal(err)
	}
	check("status", resp.ContainersStatuses)
	f := b.follow(nil)
	check("events that lead to the present", f.next().ContainersStatuses)
	if err := b.s.StartContainer(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	event := f.next()
	for event.ContainerId != id || event.ContainerEventType != runtimeapi.ContainerEventType_CONTAINER_STARTED_EVENT {
		event = f.next()
	}
	check("event", event.ContainersStatuses)
}

// TestEventsOfFailedAttempts: an object that was never visible has no events. A container that
// could not start has exited without a start.
func TestEventsOfFailedAttempts(t *testing.T) {
	b := newBed(t, nil)
	names := map[string]string{}
	f := b.follow(names)
	broken := b.ContainerConfig("broken", b.Programs.Sleep)
	broken.Image.Image = "nothing"
	sandbox := b.mustRun(b.SandboxConfig("web"))
	names[sandbox] = "pod"
	if _, err := b.s.CreateContainer(t.Context(), sandbox, broken); err == nil {
		t.Fatal("made of an image that is not there")
	}
	bad := b.mustCreate(sandbox, "bad", b.Programs.Missing)
	names[bad] = "bad"
	if err := b.s.StartContainer(t.Context(), bad); err == nil {
		t.Fatal("started a program that is not there")
	}
	f.assert("pod created", "pod started", "bad created", "bad stopped")
}

// TestEventsAreCompleteAfterARestart: the first events of the next subscription cover the time
// without a subscriber and the time without a daemon.
func TestEventsAreCompleteAfterARestart(t *testing.T) {
	b := newBed(t, nil)
	names := map[string]string{}
	sandbox := b.mustRun(b.SandboxConfig("web"))
	up := b.mustStart(sandbox, "up", b.Programs.Sleep)
	dies := b.mustStart(sandbox, "dies", b.Programs.Sleep)
	waits := b.mustCreate(sandbox, "waits", b.Programs.Sleep)
	names[sandbox], names[up], names[dies], names[waits] = "pod", "up", "dies", "waits"
	f := b.follow(names)
	f.assert("pod created", "pod started", "up created", "up started", "dies created", "dies started", "waits created")
	b.script.Kill()
	if err := b.Engine.Signal(t.Context(), dies, 9, true); err != nil {
		t.Fatal(err)
	}
	b.restart()
	podtest.Eventually(t, "the exit is known", func() bool { return b.status(dies).GetState() == exited })
	again := b.follow(names)
	again.last = f.last
	again.assert("pod created", "pod started", "up created", "up started", "dies created", "dies stopped", "waits created")
}

// A removal that a dead daemon began is completed, and subscribers get its event.
func TestEventsOfARemovalThatARestartFinishes(t *testing.T) {
	b := newBed(t, nil)
	names := map[string]string{}
	sandbox := b.mustRun(b.SandboxConfig("web"))
	goes := b.mustStart(sandbox, "goes", b.Programs.Sleep)
	names[sandbox], names[goes] = "pod", "goes"
	f := b.follow(names)
	f.assert("pod created", "pod started", "goes created", "goes started")
	hang := b.script.HangAt("before engine.Remove", false)
	removed := make(chan error, 1)
	go func() { removed <- b.s.RemoveContainer(context.WithoutCancel(t.Context()), goes) }()
	<-hang.Reached
	f.assert("goes stopped")
	b.script.Kill()
	if err := <-removed; err == nil {
		t.Error("the dead daemon has removed it")
	}
	b.CloseDaemon(b.s)
	b.script = podtest.NewScript(nil)
	hang = b.script.HangAt("before engine.Remove", false)
	b.s = b.Daemon(b.script)
	again := b.follow(names)
	again.last = f.last
	again.assert("pod created", "pod started", "goes created", "goes stopped")
	hang.Release()
	again.assert("goes deleted")
	if c := b.s.EventCounters(); c.Dropped != 0 {
		t.Errorf("counters %+v", c)
	}
}
