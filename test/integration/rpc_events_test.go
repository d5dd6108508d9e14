//go:build integration

package integration

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/berthrun/berth/internal/require"
	"github.com/berthrun/berth/test/harness"
	"github.com/google/go-cmp/cmp"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// eventReader reads events from CRI. It replaces ids by names that a test assigns.
type eventReader struct {
	*harness.Berth
	stream runtimeapi.RuntimeService_GetContainerEventsClient
	names  map[string]string
	last   int64
}

func readEvents(b *harness.Berth, names map[string]string) *eventReader {
	b.T.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), require.Patience(2*time.Minute))
	b.T.Cleanup(cancel)
	stream, err := b.Runtime.GetContainerEvents(ctx, &runtimeapi.GetEventsRequest{})
	if err != nil {
		b.T.Fatal(err)
	}
	return &eventReader{b, stream, names, 0}
}

// want reads as many events as the test expects, each "NAME KIND".
func (r *eventReader) want(want ...string) {
	r.T.Helper()
	var got []string
	for range want {
		event, err := r.stream.Recv()
		if err != nil {
			r.T.Fatalf("after %q: %v", got, err)
		}
		if event.CreatedAt <= r.last {
			r.T.Errorf("stamp %d after %d", event.CreatedAt, r.last)
		}
		r.last = event.CreatedAt
		if event.PodSandboxStatus.GetMetadata() == nil {
			r.T.Errorf("no pod in %v", event)
		}
		kind := strings.TrimSuffix(strings.TrimPrefix(event.ContainerEventType.String(), "CONTAINER_"), "_EVENT")
		got = append(got, r.names[event.ContainerId]+" "+kind)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		r.T.Errorf("events (-want +got):\n%s", diff)
	}
}

// TestRPCGetContainerEvents: two subscribers see a pod's life, over a kill of the daemon, with no
// event dropped.
func TestRPCGetContainerEvents(t *testing.T) {
	b := harness.Start(t, harness.Options{})
	names := map[string]string{}
	first, second := readEvents(b, names), readEvents(b, names)
	b.Await("both subscriptions", func() bool { return strings.Contains(verboseStatus(t, b)["events"], `"subscribers":2`) })
	pod := b.RunPod("web", "sleep 1000")
	names[pod.Sandbox], names[pod.Container] = "pod", "c"
	for _, r := range []*eventReader{first, second} {
		r.want("pod CREATED", "pod STARTED", "c CREATED", "c STARTED")
	}
	status, err := b.Runtime.PodSandboxStatus(b.Ctx(), &runtimeapi.PodSandboxStatusRequest{PodSandboxId: pod.Sandbox})
	if err != nil || status.Timestamp < first.last || len(status.ContainersStatuses) != 1 || status.ContainersStatuses[0].Id != pod.Container {
		t.Errorf("status %v, %v: want its container and a stamp not before %d", status, err, first.last)
	}

	b.KillDaemon()
	if _, err := first.stream.Recv(); err == nil {
		t.Error("the stream outlived the daemon")
	}
	b.StartDaemon()
	third := readEvents(b, names)
	third.last = first.last
	third.want("pod CREATED", "pod STARTED", "c CREATED", "c STARTED")

	// An exit during which no daemon ran.
	late := b.Create(pod.Sandbox, b.Container("late", "sleep 1000"), b.Sandbox("web"))
	names[late] = "late"
	b.StartContainer(late)
	third.want("late CREATED", "late STARTED")
	pid, err := strconv.Atoi((&fields{Berth: b}).pid(t, late))
	if err != nil {
		t.Fatal(err)
	}
	b.KillDaemon()
	harness.Kill(t, pid)
	b.StartDaemon()
	if status := b.AwaitExit(late); status.ExitCode != 137 {
		t.Errorf("the exit that no daemon saw has code %d", status.ExitCode)
	}
	last := third.last
	third = readEvents(b, names)
	third.last = last
	third.want("pod CREATED", "pod STARTED", "c CREATED", "c STARTED", "late CREATED", "late STOPPED")
	if _, err := b.Runtime.RemoveContainer(b.Ctx(), &runtimeapi.RemoveContainerRequest{ContainerId: late}); err != nil {
		t.Fatal(err)
	}
	third.want("late DELETED")
	if _, err := b.Runtime.StopPodSandbox(b.Ctx(), &runtimeapi.StopPodSandboxRequest{PodSandboxId: pod.Sandbox}); err != nil {
		t.Fatal(err)
	}
	if _, err := b.Runtime.RemovePodSandbox(b.Ctx(), &runtimeapi.RemovePodSandboxRequest{PodSandboxId: pod.Sandbox}); err != nil {
		t.Fatal(err)
	}
	third.want("pod STOPPED", "c STOPPED", "c DELETED", "pod DELETED")
	if got := verboseStatus(t, b)["events"]; !strings.Contains(got, `"dropped":0`) || !strings.Contains(got, fmt.Sprintf(`"last":%d`, third.last)) {
		t.Errorf("counters %s, want none dropped and the last at %d", got, third.last)
	}
	// A daemon that waits for the stream waits for five seconds each time. A busy machine delays one stop or another.
	limit := require.Patience(4 * time.Second)
	took := time.Hour
	for tries := 0; tries < 3 && took > limit; tries++ {
		if tries > 0 {
			readEvents(b, names)
			if _, err := b.Runtime.Version(b.Ctx(), &runtimeapi.VersionRequest{}); err != nil { // by the same connection: the daemon has the stream
				t.Fatal(err)
			}
		}
		began := time.Now()
		b.StopDaemon()
		took = time.Since(began)
		b.StartDaemon()
	}
	if took > limit {
		t.Errorf("the daemon took %s to stop with an open stream", took)
	}
}

// verboseStatus is the info map of a verbose Status.
func verboseStatus(t *testing.T, b *harness.Berth) map[string]string {
	t.Helper()
	resp, err := b.Runtime.Status(b.Ctx(), &runtimeapi.StatusRequest{Verbose: true})
	if err != nil {
		t.Fatal(err)
	}
	return resp.Info
}
