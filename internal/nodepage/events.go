package nodepage

import (
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/printable"
)

// keptEvents is how many events are kept.
const keptEvents = 1000

// Event is one event of a pod or a container. All text in it is printable.
type Event struct {
	// Number counts events from 1.
	Number uint64    `json:"number"`
	Time   time.Time `json:"time"`
	// Kind is "created", "started", "stopped" or "deleted".
	Kind string `json:"kind"`
	Pod  string `json:"pod"`
	// Container is "" for an event of the pod itself. Detail is the exit code and the reason of a container that has
	// stopped.
	Container string `json:"container,omitempty"`
	Detail    string `json:"detail,omitempty"`
}

// Events is the answer of /api/events.
type Events struct {
	Events []Event `json:"events"`
	// Last is the number of the newest event: the client asks with it for later ones.
	Last uint64 `json:"last"`
}

// eventRing has the last events. The zero value is ready.
type eventRing struct {
	mu   sync.Mutex
	last uint64
	all  []Event
}

func (r *eventRing) add(events []*runtimeapi.ContainerEventResponse) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, e := range events {
		r.last++
		shown := eventOf(e)
		shown.Number = r.last
		r.all = append(r.all, shown)
	}
	if excess := len(r.all) - keptEvents; excess > 0 {
		r.all = append([]Event(nil), r.all[excess:]...)
	}
}

// after returns the events behind a number.
func (r *eventRing) after(number uint64) Events {
	r.mu.Lock()
	defer r.mu.Unlock()
	out := Events{Events: []Event{}, Last: r.last}
	for _, e := range r.all {
		// A number beyond the last is one of a former daemon.
		if e.Number > number || number > r.last {
			out.Events = append(out.Events, e)
		}
	}
	return out
}

func (p *Page) answerEvents(r *http.Request) (any, error) {
	number, err := strconv.ParseUint("0"+r.URL.Query().Get("after"), 10, 64)
	if err != nil {
		return nil, fmt.Errorf("after: want a number: %w", errs.Invalid)
	}
	return p.events.after(number), nil
}

// eventOf takes the time from the status where it has it: events of the present state are stamped when they are read.
func eventOf(e *runtimeapi.ContainerEventResponse) Event {
	pod := e.GetPodSandboxStatus()
	out := Event{
		Time: time.Unix(0, e.GetCreatedAt()),
		Kind: strings.ToLower(strings.TrimSuffix(strings.TrimPrefix(e.GetContainerEventType().String(), "CONTAINER_"), "_EVENT")),
		Pod:  printable.Text(pod.GetMetadata().GetNamespace() + "/" + pod.GetMetadata().GetName()),
	}
	if e.GetContainerId() == pod.GetId() {
		switch e.GetContainerEventType() {
		case runtimeapi.ContainerEventType_CONTAINER_CREATED_EVENT, runtimeapi.ContainerEventType_CONTAINER_STARTED_EVENT:
			out.Time = timeOr(pod.GetCreatedAt(), out.Time)
		}
		return out
	}
	for _, c := range e.GetContainersStatuses() {
		if c.GetId() != e.GetContainerId() {
			continue
		}
		out.Container = printable.Text(c.GetMetadata().GetName())
		switch e.GetContainerEventType() {
		case runtimeapi.ContainerEventType_CONTAINER_CREATED_EVENT:
			out.Time = timeOr(c.GetCreatedAt(), out.Time)
		case runtimeapi.ContainerEventType_CONTAINER_STARTED_EVENT:
			out.Time = timeOr(c.GetStartedAt(), out.Time)
		case runtimeapi.ContainerEventType_CONTAINER_STOPPED_EVENT:
			out.Time = timeOr(c.GetFinishedAt(), out.Time)
			out.Detail = printable.Text(fmt.Sprintf("exit code %d, %s", c.GetExitCode(), c.GetReason()))
		}
	}
	return out
}

func timeOr(stamp int64, other time.Time) time.Time {
	if stamp > 0 {
		return time.Unix(0, stamp)
	}
	return other
}
