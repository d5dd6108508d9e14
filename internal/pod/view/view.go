// Package view shows records to clients: lists, statuses, figures, events and warnings.
//
// It reads records and the engine's figures, and changes no record.
package view

import (
	"cmp"
	"context"
	"slices"
	"strings"
	"sync/atomic"

	"github.com/berthrun/berth/internal/engine"
	"github.com/berthrun/berth/internal/pod/job"
	"github.com/berthrun/berth/internal/pod/record"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// View reads sandboxes and containers. All methods are safe for concurrent use; ids may be
// unambiguous prefixes; errors carry a kind of package errs. Messages that it returns share
// memory with records: callers must not change them.
type View struct {
	engine  engine.Engine
	records *record.Store
	events  *EventSource
	jobs    *job.Table
	// showSecrets shows the values of environments in verbose statuses.
	showSecrets atomic.Bool
}

// New returns a View.
func New(eng engine.Engine, records *record.Store, source *EventSource, jobs *job.Table) *View {
	return &View{engine: eng, records: records, events: source, jobs: jobs}
}

// SetShowSecrets changes whether verbose statuses show the values of environments.
func (v *View) SetShowSecrets(show bool) { v.showSecrets.Store(show) }

// SandboxStatus returns the sandbox's status with those of its containers and,
// when verbose, what berth knows beyond them, as JSON values by name. Its stamp
// compares with those of events: the status includes every event stamped by then.
func (v *View) SandboxStatus(ctx context.Context, id string, verbose bool) (*runtimeapi.PodSandboxStatusResponse, error) {
	v.awaitStarts(ctx)
	stamp := v.events.hub.Stamp()
	rec, err := v.records.Sandbox(id)
	if err != nil {
		return nil, err
	}
	resp := &runtimeapi.PodSandboxStatusResponse{
		Status: sandboxStatus(rec), ContainersStatuses: containerStatuses(v.records, rec.ID), Timestamp: stamp,
	}
	if verbose {
		resp.Info, err = v.sandboxInfo(rec)
	}
	return resp, err
}

// ListSandboxes returns the sandboxes that filter (may be nil) selects, the
// newest first.
func (v *View) ListSandboxes(_ context.Context, filter *runtimeapi.PodSandboxFilter) ([]*runtimeapi.PodSandbox, error) {
	var list []*runtimeapi.PodSandbox
	for _, rec := range selectSandboxes(v.records, filter) {
		config := rec.Config.Get()
		list = append(list, &runtimeapi.PodSandbox{
			Id: rec.ID, Metadata: config.GetMetadata(), State: sandboxState(rec), CreatedAt: rec.CreatedAt,
			Labels: config.GetLabels(), Annotations: config.GetAnnotations(), RuntimeHandler: rec.Handler,
		})
	}
	slices.SortFunc(list, func(a, b *runtimeapi.PodSandbox) int {
		return cmp.Or(cmp.Compare(b.CreatedAt, a.CreatedAt), cmp.Compare(a.Id, b.Id))
	})
	return list, nil
}

// ContainerStatus is SandboxStatus for a container.
func (v *View) ContainerStatus(ctx context.Context, id string, verbose bool) (*runtimeapi.ContainerStatus, map[string]string, error) {
	v.awaitStarts(ctx)
	rec, err := v.records.Container(id)
	if err != nil {
		return nil, nil, err
	}
	if !verbose {
		return containerStatus(rec), nil, nil
	}
	info, err := v.containerInfo(ctx, rec)
	return containerStatus(rec), info, err
}

// ListContainers returns the containers that filter (may be nil) selects, the
// newest first.
func (v *View) ListContainers(ctx context.Context, filter *runtimeapi.ContainerFilter) ([]*runtimeapi.Container, error) {
	v.awaitStarts(ctx)
	var list []*runtimeapi.Container
	for _, rec := range selectContainers(v.records, filter) {
		config := rec.Config.Get()
		list = append(list, &runtimeapi.Container{
			Id: rec.ID, PodSandboxId: rec.SandboxID, Metadata: config.GetMetadata(), Image: config.GetImage(),
			ImageRef: rec.Image.Ref, ImageId: rec.Image.ID, State: containerState(rec), CreatedAt: rec.CreatedAt,
			Labels: config.GetLabels(), Annotations: config.GetAnnotations(),
		})
	}
	slices.SortFunc(list, func(a, b *runtimeapi.Container) int {
		return cmp.Or(cmp.Compare(b.CreatedAt, a.CreatedAt), cmp.Compare(a.Id, b.Id))
	})
	return list, nil
}

// selectSandboxes returns the visible sandboxes that a filter selects; a nil
// filter and an empty field select all, ids may be prefixes.
func selectSandboxes(records *record.Store, filter *runtimeapi.PodSandboxFilter) []*record.Sandbox {
	var selected []*record.Sandbox
	for _, rec := range records.Sandboxes.All() {
		if rec.Visible() && strings.HasPrefix(rec.ID, filter.GetId()) &&
			(filter.GetState() == nil || filter.GetState().GetState() == sandboxState(rec)) &&
			matches(filter.GetLabelSelector(), rec.Config.Get().GetLabels()) {
			selected = append(selected, rec)
		}
	}
	return selected
}

// selectContainers is the same for containers.
func selectContainers(records *record.Store, filter *runtimeapi.ContainerFilter) []*record.Container {
	var selected []*record.Container
	for _, rec := range records.Containers.All() {
		if rec.Visible() && strings.HasPrefix(rec.ID, filter.GetId()) && strings.HasPrefix(rec.SandboxID, filter.GetPodSandboxId()) &&
			(filter.GetState() == nil || filter.GetState().GetState() == containerState(rec)) &&
			matches(filter.GetLabelSelector(), rec.Config.Get().GetLabels()) {
			selected = append(selected, rec)
		}
	}
	return selected
}

func matches(selector, labels map[string]string) bool {
	for key, value := range selector {
		if got, ok := labels[key]; !ok || got != value {
			return false
		}
	}
	return true
}
