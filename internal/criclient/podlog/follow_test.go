package podlog

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berthrun/berth/internal/errs"
)

// answers is a runtime that answers ContainerStatus with one after the other.
type answers struct {
	runtimeapi.RuntimeServiceClient
	left []func() (runtimeapi.ContainerState, error)
}

func (a *answers) ContainerStatus(context.Context, *runtimeapi.ContainerStatusRequest, ...grpc.CallOption) (*runtimeapi.ContainerStatusResponse, error) {
	next := a.left[0]
	a.left = a.left[1:]
	state, err := next()
	if err != nil {
		return nil, err
	}
	return &runtimeapi.ContainerStatusResponse{Status: &runtimeapi.ContainerStatus{State: state}}, nil
}

// TestAwaitEndOutlivesARestart: only the end of the container, or the loss of it, ends the wait.
func TestAwaitEndOutlivesARestart(t *testing.T) {
	is := func(state runtimeapi.ContainerState, err error) func() (runtimeapi.ContainerState, error) {
		return func() (runtimeapi.ContainerState, error) { return state, err }
	}
	for _, last := range []func() (runtimeapi.ContainerState, error){
		is(runtimeapi.ContainerState_CONTAINER_EXITED, nil), is(0, errs.NotFound),
	} {
		synctest.Test(t, func(t *testing.T) {
			runtime := &answers{left: []func() (runtimeapi.ContainerState, error){
				is(0, errs.Unavailable), is(0, context.DeadlineExceeded), is(runtimeapi.ContainerState_CONTAINER_RUNNING, nil), last,
			}}
			<-AwaitEnd(t.Context(), runtime, "c")
			if len(runtime.left) != 0 {
				t.Errorf("the wait ends %d answers early", len(runtime.left))
			}
		})
	}
}

// TestParseSince: durations and times as docker takes them.
func TestParseSince(t *testing.T) {
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	for text, want := range map[string]time.Time{
		"": {}, "42m": now.Add(-42 * time.Minute), "2026-01-02T03:04:05Z": now, "2026-01-02T03:04:05": now,
		"2026-01-02": time.Date(2026, 1, 2, 0, 0, 0, 0, time.UTC), "1767323045": now, "1767323045.5": now.Add(500 * time.Millisecond),
	} {
		if got, err := ParseSince(text, now); err != nil || !got.Equal(want) {
			t.Errorf("%q is %v, want %v: %v", text, got, want, err)
		}
	}
	if _, err := ParseSince("yesterday", now); !errors.Is(err, errs.Invalid) {
		t.Errorf("yesterday: %v", err)
	}
}
