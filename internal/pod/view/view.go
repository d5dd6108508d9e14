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
	"google.golang.org/protobuf/proto"
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
	// sandboxes and containers are what lists show.
	sandboxes  *catalog[record.Sandbox]
	containers *catalog[record.Container]
	// showSecrets shows the values of environments in verbose statuses.
	showSecrets atomic.Bool
}

// New returns a View.
func New(eng engine.Engine, records *record.Store, source *EventSource, jobs *job.Table) *View {
	return &View{
		engine: eng, records: records, events: source, jobs: jobs,
		sandboxes:  newCatalog(records.Sandboxes, listedSandbox, newestSandbox),
		containers: newCatalog(records.Containers, listedContainer, newestContainer),
	}
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

// ListSandboxes returns the sandboxes that filter (may be nil) selects, the newest first, each
// item a runtimeapi.PodSandbox.
func (v *View) ListSandboxes(_ context.Context, filter *runtimeapi.PodSandboxFilter) (Items, error) {
	return v.sandboxes.list(sandboxSelector(filter))
}

// listedSandbox is a sandbox as lists show it, nil for one that is being made.
func listedSandbox(rec *record.Sandbox) proto.Message {
	if !rec.Visible() {
		return nil
	}
	config := rec.Config.Get()
	return &runtimeapi.PodSandbox{
		Id: rec.ID, Metadata: config.GetMetadata(), State: sandboxState(rec), CreatedAt: rec.CreatedAt,
		Labels: config.GetLabels(), Annotations: config.GetAnnotations(), RuntimeHandler: rec.Handler,
	}
}

func newestSandbox(a, b *record.Sandbox) int {
	return cmp.Or(cmp.Compare(b.CreatedAt, a.CreatedAt), cmp.Compare(a.ID, b.ID))
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

// ListContainers returns the containers that filter (may be nil) selects, the newest first, each
// item a runtimeapi.Container.
func (v *View) ListContainers(ctx context.Context, filter *runtimeapi.ContainerFilter) (Items, error) {
	v.awaitStarts(ctx)
	return v.containers.list(containerSelector(filter))
}

// listedContainer is a container as lists show it, nil for one that is being made.
func listedContainer(rec *record.Container) proto.Message {
	if !rec.Visible() {
		return nil
	}
	config := rec.Config.Get()
	return &runtimeapi.Container{
		Id: rec.ID, PodSandboxId: rec.SandboxID, Metadata: config.GetMetadata(), Image: config.GetImage(),
		ImageRef: rec.Image.Ref, ImageId: rec.Image.ID, State: containerState(rec), CreatedAt: rec.CreatedAt,
		Labels: config.GetLabels(), Annotations: config.GetAnnotations(),
	}
}

func newestContainer(a, b *record.Container) int {
	return cmp.Or(cmp.Compare(b.CreatedAt, a.CreatedAt), cmp.Compare(a.ID, b.ID))
}

// sandboxSelector returns whether a filter selects a sandbox, nil when it selects all. An empty
// field selects all; ids may be prefixes.
func sandboxSelector(filter *runtimeapi.PodSandboxFilter) func(*record.Sandbox) bool {
	if filter.GetId() == "" && filter.GetState() == nil && len(filter.GetLabelSelector()) == 0 {
		return nil
	}
	return func(rec *record.Sandbox) bool {
		return strings.HasPrefix(rec.ID, filter.GetId()) &&
			(filter.GetState() == nil || filter.GetState().GetState() == sandboxState(rec)) &&
			matches(filter.GetLabelSelector(), rec.Config.Get().GetLabels())
	}
}

// containerSelector is sandboxSelector for containers.
func containerSelector(filter *runtimeapi.ContainerFilter) func(*record.Container) bool {
	if filter.GetId() == "" && filter.GetPodSandboxId() == "" && filter.GetState() == nil && len(filter.GetLabelSelector()) == 0 {
		return nil
	}
	return func(rec *record.Container) bool {
		return strings.HasPrefix(rec.ID, filter.GetId()) && strings.HasPrefix(rec.SandboxID, filter.GetPodSandboxId()) &&
			(filter.GetState() == nil || filter.GetState().GetState() == containerState(rec)) &&
			matches(filter.GetLabelSelector(), rec.Config.Get().GetLabels())
	}
}

// selectSandboxes returns the visible sandboxes that a filter selects.
func selectSandboxes(records *record.Store, filter *runtimeapi.PodSandboxFilter) []*record.Sandbox {
	chosen := sandboxSelector(filter)
	return slices.DeleteFunc(records.Sandboxes.All(), func(rec *record.Sandbox) bool {
		return !rec.Visible() || chosen != nil && !chosen(rec)
	})
}

// selectContainers is the same for containers.
func selectContainers(records *record.Store, filter *runtimeapi.ContainerFilter) []*record.Container {
	chosen := containerSelector(filter)
	return slices.DeleteFunc(records.Containers.All(), func(rec *record.Container) bool {
		return !rec.Visible() || chosen != nil && !chosen(rec)
	})
}

func matches(selector, labels map[string]string) bool {
	for key, value := range selector {
		if got, ok := labels[key]; !ok || got != value {
			return false
		}
	}
	return true
}
