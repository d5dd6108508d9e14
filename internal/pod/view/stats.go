package view

import (
	"context"
	"fmt"

	"github.com/berthrun/berth/internal/engine"
	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/pod/record"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// ContainerStats returns one container's figures.
func (v *View) ContainerStats(ctx context.Context, id string) (*runtimeapi.ContainerStats, error) {
	rec, err := v.records.Container(id)
	if err != nil {
		return nil, err
	}
	stats, err := v.statsOf(ctx, []*record.Container{rec})
	if err != nil {
		return nil, err
	}
	if len(stats) == 0 {
		return nil, fmt.Errorf("container %q is %s and has no figures: %w", rec.ID, rec.State, errs.NotFound)
	}
	return stats[0], nil
}

// ListContainerStats returns figures of the containers that filter selects.
func (v *View) ListContainerStats(ctx context.Context, filter *runtimeapi.ContainerStatsFilter) ([]*runtimeapi.ContainerStats, error) {
	return v.statsOf(ctx, selectContainers(v.records, &runtimeapi.ContainerFilter{
		Id: filter.GetId(), PodSandboxId: filter.GetPodSandboxId(), LabelSelector: filter.GetLabelSelector(),
	}))
}

// statsOf returns the figures of those containers that have some.
func (v *View) statsOf(ctx context.Context, recs []*record.Container) ([]*runtimeapi.ContainerStats, error) {
	ids := make([]string, 0, len(recs))
	for _, rec := range recs {
		if rec.State != record.ContainerExited {
			ids = append(ids, rec.ID)
		}
	}
	if len(ids) == 0 {
		return nil, nil
	}
	figures, err := v.engine.Stats(ctx, ids)
	if err != nil {
		return nil, fmt.Errorf("cannot read container stats: %w", err)
	}
	list := make([]*runtimeapi.ContainerStats, 0, len(figures))
	for _, rec := range recs {
		stats := figures[rec.ID]
		if stats == nil {
			continue
		}
		config := rec.Config.Get()
		stats.Attributes = &runtimeapi.ContainerAttributes{
			Id: rec.ID, Metadata: config.GetMetadata(), Labels: config.GetLabels(), Annotations: config.GetAnnotations(),
		}
		list = append(list, stats)
	}
	return list, nil
}

// PodSandboxStats returns one sandbox's figures, its containers' included.
func (v *View) PodSandboxStats(ctx context.Context, id string) (*runtimeapi.PodSandboxStats, error) {
	rec, err := v.records.ReadySandbox(id)
	if err != nil {
		return nil, fmt.Errorf("cannot read sandbox stats: %w", err)
	}
	all, err := v.sandboxStats(ctx, []*record.Sandbox{rec})
	if err != nil {
		return nil, err
	}
	if len(all) == 0 {
		return nil, fmt.Errorf("sandbox %q has no figures: %w", rec.ID, errs.NotFound)
	}
	return all[0], nil
}

// ListPodSandboxStats returns figures of the READY sandboxes that filter
// selects. One that goes meanwhile is absent.
func (v *View) ListPodSandboxStats(ctx context.Context, filter *runtimeapi.PodSandboxStatsFilter) ([]*runtimeapi.PodSandboxStats, error) {
	return v.sandboxStats(ctx, selectSandboxes(v.records, &runtimeapi.PodSandboxFilter{
		Id: filter.GetId(), LabelSelector: filter.GetLabelSelector(),
		State: &runtimeapi.PodSandboxStateValue{State: runtimeapi.PodSandboxState_SANDBOX_READY},
	}))
}

// sandboxStats reads everything of all of them at once.
func (v *View) sandboxStats(ctx context.Context, recs []*record.Sandbox) ([]*runtimeapi.PodSandboxStats, error) {
	figures, err := v.engine.SandboxStats(ctx, sandboxRefs(v.records, recs))
	if err != nil {
		return nil, fmt.Errorf("cannot read sandbox stats: %w", err)
	}
	var containers []*record.Container
	owner := map[string]string{}
	for _, c := range v.records.Containers.All() {
		if figures[c.SandboxID] != nil && c.Visible() {
			containers = append(containers, c)
			owner[c.ID] = c.SandboxID
		}
	}
	stats, err := v.statsOf(ctx, containers)
	if err != nil {
		return nil, err
	}
	for _, one := range stats {
		pod := figures[owner[one.GetAttributes().GetId()]]
		pod.Containers = append(pod.Containers, one)
	}
	all := make([]*runtimeapi.PodSandboxStats, 0, len(recs))
	for _, rec := range recs {
		if figures[rec.ID] == nil {
			continue
		}
		config := rec.Config.Get()
		all = append(all, &runtimeapi.PodSandboxStats{
			Attributes: &runtimeapi.PodSandboxAttributes{
				Id: rec.ID, Metadata: config.GetMetadata(), Labels: config.GetLabels(), Annotations: config.GetAnnotations(),
			},
			Linux: figures[rec.ID],
		})
	}
	return all, nil
}

func sandboxRefs(records *record.Store, recs []*record.Sandbox) []engine.SandboxRef {
	refs := make([]engine.SandboxRef, 0, len(recs))
	for _, rec := range recs {
		if rec.Engine != nil {
			refs = append(refs, engine.SandboxRef{Spec: records.SandboxSpec(rec), Sandbox: rec.Engine})
		}
	}
	return refs
}
