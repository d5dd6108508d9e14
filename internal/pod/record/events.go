package record

import (
	"github.com/berthrun/berth/internal/engine"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// The events of sandboxes and containers, as CRI has them.
const (
	eventCreated = runtimeapi.ContainerEventType_CONTAINER_CREATED_EVENT
	eventStarted = runtimeapi.ContainerEventType_CONTAINER_STARTED_EVENT
	eventStopped = runtimeapi.ContainerEventType_CONTAINER_STOPPED_EVENT
	eventDeleted = runtimeapi.ContainerEventType_CONTAINER_DELETED_EVENT
)

// SandboxEvents are the events that a change of a record means: old is nil for a
// new record, new for one that is gone. An object that is still being created has none.
func SandboxEvents(old, new *Sandbox) []runtimeapi.ContainerEventType {
	was, is := old != nil && old.Visible(), new != nil && new.Visible()
	switch {
	case !was && !is:
		return nil
	case !is:
		return []runtimeapi.ContainerEventType{eventDeleted}
	case !was && new.State == SandboxReady:
		return []runtimeapi.ContainerEventType{eventCreated, eventStarted}
	case !was:
		return []runtimeapi.ContainerEventType{eventCreated, eventStopped}
	case old.State == SandboxReady && new.State != SandboxReady:
		return []runtimeapi.ContainerEventType{eventStopped}
	}
	return nil
}

// ContainerEvents is the same for containers. A container that exited before it
// was recorded as running, and not by a start error, was started, too.
func ContainerEvents(old, new *Container) []runtimeapi.ContainerEventType {
	was, is := old != nil && old.Visible(), new != nil && new.Visible()
	var all []runtimeapi.ContainerEventType
	switch {
	case !was && !is:
		return nil
	case !is:
		return []runtimeapi.ContainerEventType{eventDeleted}
	case !was:
		all = append(all, eventCreated)
	case old.State == new.State:
		return nil
	}
	switch {
	case new.State == ContainerRunning:
		all = append(all, eventStarted)
	case new.State == ContainerExited && was && old.State == ContainerStarting && new.Reason != engine.ReasonStartError:
		all = append(all, eventStarted, eventStopped)
	case new.State == ContainerExited:
		all = append(all, eventStopped)
	}
	return all
}
