package containerdapi

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"testing"
	"time"

	containersapi "github.com/containerd/containerd/api/services/containers/v1"
	tasksapi "github.com/containerd/containerd/api/services/tasks/v1"
	"github.com/containerd/containerd/api/types/task"
	"github.com/google/go-cmp/cmp"
	specs "github.com/opencontainers/runtime-spec/specs-go"
	"google.golang.org/grpc/metadata"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/pod/events"
	"github.com/berthrun/berth/internal/pod/view"
)

type fakePods struct {
	tasks  map[string]*view.Task
	hub    *events.Hub
	marked chan string
}

func (f *fakePods) Task(id string) (*view.Task, error) {
	if t := f.tasks[id]; t != nil {
		return t, nil
	}
	return nil, fmt.Errorf("task %q: %w", id, errs.NotFound)
}

func (f *fakePods) MakePlaceholder(_ context.Context, id string) error {
	f.marked <- id
	return nil
}

func (f *fakePods) Events() (*events.Subscription, error) {
	return f.hub.Subscribe(func() []*events.Event { return []*events.Event{event("present")} })
}

func event(sandbox string) *events.Event {
	return &events.Event{PodSandboxStatus: &runtimeapi.PodSandboxStatus{Id: sandbox}}
}

func newFake() *fakePods {
	return &fakePods{hub: events.NewHub(0), marked: make(chan string, 10), tasks: map[string]*view.Task{
		"c1": {ID: "c1", SandboxID: "s1", Labels: map[string]string{"io.kubernetes.pod.name": "web"}, Image: "busybox", Pid: 12},
		"c2": {ID: "c2", SandboxID: "s1", Exited: true, ExitCode: 3},
		"s1": {ID: "s1", SandboxID: "s1", Labels: map[string]string{"io.kubernetes.pod.name": "web"}, Pid: 12},
		"s2": {ID: "s2", SandboxID: "s2"},
	}}
}

func in(t *testing.T, namespace string) context.Context {
	return metadata.NewIncomingContext(t.Context(), metadata.Pairs("containerd-namespace", namespace))
}

func TestGetReportsTheTypeOfAnID(t *testing.T) {
	s := New(newFake(), "1", slog.New(slog.DiscardHandler))
	for id, want := range map[string]string{"c1": "container", "s1": "sandbox"} {
		resp, err := s.Get(in(t, "k8s.io"), &containersapi.GetContainerRequest{ID: id})
		if err != nil {
			t.Fatal(err)
		}
		labels := map[string]string{"io.kubernetes.pod.name": "web", "io.cri-containerd.kind": want}
		if diff := cmp.Diff(labels, resp.Container.Labels); diff != "" {
			t.Errorf("labels of %s (-want +got):\n%s", id, diff)
		}
		var spec specs.Spec
		if err := json.Unmarshal(resp.Container.Spec.Value, &spec); err != nil || spec.Process == nil || spec.Process.Env != nil {
			t.Errorf("spec %s, %v: want one that parses, with a process and no environment", resp.Container.Spec.Value, err)
		}
	}
	for _, ctx := range []context.Context{in(t, "moby"), t.Context()} {
		if _, err := s.Get(ctx, &containersapi.GetContainerRequest{ID: "c1"}); !errors.Is(err, errs.NotFound) {
			t.Errorf("in another namespace: %v", err)
		}
	}
}

func TestTasksHavePids(t *testing.T) {
	s := &tasks{pods: newFake()}
	for id, want := range map[string]*task.Process{
		"c1": {ID: "c1", ContainerID: "c1", Pid: 12, Status: task.Status_RUNNING},
		"c2": {ID: "c2", ContainerID: "c2", Status: task.Status_STOPPED, ExitStatus: 3},
		"s1": {ID: "s1", ContainerID: "s1", Pid: 12, Status: task.Status_RUNNING},
	} {
		resp, err := s.Get(in(t, "k8s.io"), &tasksapi.GetRequest{ContainerID: id})
		if err != nil || resp.Process.String() != want.String() {
			t.Errorf("%s: %v, %v; want %v", id, resp, err, want)
		}
	}
	for _, id := range []string{"s2", "nobody"} {
		if _, err := s.Get(in(t, "k8s.io"), &tasksapi.GetRequest{ContainerID: id}); !errors.Is(err, errs.NotFound) {
			t.Errorf("%s: %v, want kind NotFound", id, err)
		}
	}
}

func TestPlaceholdersFollowEvents(t *testing.T) {
	pods := newFake()
	s := New(pods, "1", slog.New(slog.DiscardHandler))
	done := make(chan struct{})
	go func() {
		defer close(done)
		s.UpdatePlaceholders(t.Context())
	}()
	expect := func(want string) {
		t.Helper()
		select {
		case got := <-pods.marked:
			if got != want {
				t.Errorf("marked %s, want %s", got, want)
			}
		case <-time.After(30 * time.Second):
			t.Fatalf("%s was not marked", want)
		}
	}
	expect("present")
	pods.hub.Publish(event("s1"), func(*events.Event) {})
	expect("s1")
	pods.hub.Close()
	<-done
}
