package view

import (
	"cmp"
	"slices"

	"github.com/berthrun/berth/internal/pod/events"
	"github.com/berthrun/berth/internal/pod/record"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// EventSource publishes the CRI events that changes of records mean; see record.SandboxEvents.
type EventSource struct {
	hub     *events.Hub
	records *record.Store
}

// OpenRecords opens the records, and the source of the events that their changes mean. The
// stamps of events are larger than every time in the records, even if the clock was set back
// since.
func OpenRecords(opts record.Options) (*record.Store, *EventSource, error) {
	s := &EventSource{}
	opts.SandboxChanged, opts.ContainerChanged = s.sandboxChanged, s.containerChanged
	records, err := record.Open(opts)
	if err != nil {
		return nil, nil, err
	}
	s.hub, s.records = events.NewHub(records.NewestTime()), records
	return records, s, nil
}

// Events subscribes to the events of sandboxes and containers. The subscription begins with
// the events that lead to the current state of each, the older pods first, and continues with
// every change. So a client that was dropped, or lost the daemon, misses nothing when it
// subscribes again: an object without an event is gone. The caller cancels the subscription.
// Unavailable once CloseEvents was called.
func (s *EventSource) Events() (*events.Subscription, error) { return s.hub.Subscribe(s.present) }

// CloseEvents ends all subscriptions and refuses new ones.
func (s *EventSource) CloseEvents() { s.hub.Close() }

// EventCounters counts the events since the daemon's start.
func (s *EventSource) EventCounters() events.Counters { return s.hub.Counters() }

// sandboxChanged publishes the events of a change of a sandbox's record: old is nil for a
// new record, new for one that is gone.
func (s *EventSource) sandboxChanged(old, new *record.Sandbox) {
	rec := cmp.Or(new, old)
	for _, kind := range record.SandboxEvents(old, new) {
		s.hub.Publish(&events.Event{ContainerId: rec.ID, ContainerEventType: kind}, func(e *events.Event) {
			e.PodSandboxStatus = sandboxStatus(rec)
			e.ContainersStatuses = containerStatuses(s.records, rec.ID)
		})
	}
}

// containerChanged publishes the events of a change of a container's record. It publishes
// none of a container whose sandbox has gone: an event is
// about a pod, and clients refuse one without.
func (s *EventSource) containerChanged(old, new *record.Container) {
	rec := cmp.Or(new, old)
	sb, err := s.records.Sandboxes.Get(rec.SandboxID)
	if err != nil {
		return
	}
	for _, kind := range record.ContainerEvents(old, new) {
		s.hub.Publish(&events.Event{ContainerId: rec.ID, ContainerEventType: kind}, func(e *events.Event) {
			if now, err := s.records.Sandboxes.Get(sb.ID); err == nil {
				sb = now
			}
			e.PodSandboxStatus, e.ContainersStatuses = sandboxStatus(sb), containerStatuses(s.records, sb.ID)
		})
	}
}

// present are the events that lead to the current state.
func (s *EventSource) present() []*events.Event {
	containers := map[string][]*record.Container{}
	for _, rec := range s.records.Containers.All() {
		containers[rec.SandboxID] = append(containers[rec.SandboxID], rec)
	}
	sandboxes := s.records.Sandboxes.All()
	slices.SortFunc(sandboxes, func(a, b *record.Sandbox) int {
		return cmp.Or(cmp.Compare(a.CreatedAt, b.CreatedAt), cmp.Compare(a.ID, b.ID))
	})
	var all []*events.Event
	for _, sb := range sandboxes {
		status, statuses := sandboxStatus(sb), statusesOf(containers[sb.ID])
		add := func(id string, kinds []runtimeapi.ContainerEventType) {
			for _, kind := range kinds {
				all = append(all, &events.Event{
					ContainerId: id, ContainerEventType: kind, PodSandboxStatus: status, ContainersStatuses: statuses,
				})
			}
		}
		add(sb.ID, record.SandboxEvents(nil, sb))
		for _, rec := range slices.Backward(containers[sb.ID]) {
			add(rec.ID, record.ContainerEvents(nil, rec))
		}
	}
	return all
}
