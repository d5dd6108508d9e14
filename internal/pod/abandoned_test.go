package pod_test

import (
	"context"
	"testing"
	"time"

	"github.com/berthrun/berth/internal/pod/podtest"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// A kubelet that dies in StartContainer leaves a start under way. The next kubelet must not find the
// container CREATED: it would run another one in its place.
func TestAbandonedStartIsAwaited(t *testing.T) {
	b := newBed(t, nil)
	sandbox := b.mustRun(b.SandboxConfig("web"))
	id, err := b.s.CreateContainer(t.Context(), sandbox, b.ContainerConfig("main", b.Programs.Sleep))
	if err != nil {
		t.Fatal(err)
	}
	hang := b.script.HangAt("before engine.Start", true)
	ctx, die := context.WithCancel(t.Context())
	left := make(chan error, 1)
	go func() { left <- b.s.StartContainer(ctx, id) }()
	<-hang.Reached
	if state := b.status(id).State; state != runtimeapi.ContainerState_CONTAINER_CREATED {
		t.Fatalf("the container is %s while its caller waits, want CREATED", state)
	}
	die()
	if <-left == nil {
		t.Fatal("the start has not been left")
	}
	answers := make(chan runtimeapi.ContainerState, 3)
	go func() { answers <- b.status(id).State }()
	go func() {
		list, err := podtest.Containers(t.Context(), b.s, nil)
		if err != nil || len(list) != 1 {
			t.Errorf("list: %v, %v", list, err)
			return
		}
		answers <- list[0].State
	}()
	go func() {
		status, err := b.s.SandboxStatus(t.Context(), sandbox, false)
		if err != nil || len(status.ContainersStatuses) != 1 {
			t.Errorf("sandbox status: %v, %v", status, err)
			return
		}
		answers <- status.ContainersStatuses[0].State
	}()
	select {
	case state := <-answers:
		t.Errorf("an answer while the start is undecided: %s", state)
	case <-time.After(50 * time.Millisecond):
	}
	hang.Release()
	for range 3 {
		if state := <-answers; state != runtimeapi.ContainerState_CONTAINER_RUNNING {
			t.Errorf("the container is %s, want RUNNING", state)
		}
	}
	if err := b.s.RemoveSandbox(t.Context(), sandbox); err != nil {
		t.Error(err)
	}
	b.clear()
}
