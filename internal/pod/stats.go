package pod

import (
	"context"
	"fmt"
	"time"

	"github.com/berthrun/berth/internal/engine"
	"github.com/berthrun/berth/internal/errs"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// ContainerStats returns one container's figures.
func (s *Service) ContainerStats(ctx context.Context, id string) (*runtimeapi.ContainerStats, error) {
	rec, err := s.container(id)
	if err != nil {
		return nil, err
	}
	stats, err := s.statsOf(ctx, []*ContainerRecord{rec})
	if err != nil {
		return nil, err
	}
	if len(stats) == 0 {
		return nil, fmt.Errorf("container %q is %s and has no figures: %w", rec.ID, rec.State, errs.NotFound)
	}
	return stats[0], nil
}

// ListContainerStats returns figures of the containers that filter selects.
func (s *Service) ListContainerStats(ctx context.Context, filter *runtimeapi.ContainerStatsFilter) ([]*runtimeapi.ContainerStats, error) {
	return s.statsOf(ctx, s.selectContainers(&runtimeapi.ContainerFilter{
		Id: filter.GetId(), PodSandboxId: filter.GetPodSandboxId(), LabelSelector: filter.GetLabelSelector(),
	}))
}

// statsOf returns the figures of those containers that have some.
func (s *Service) statsOf(ctx context.Context, recs []*ContainerRecord) ([]*runtimeapi.ContainerStats, error) {
	ids := make([]string, 0, len(recs))
	for _, rec := range recs {
		if rec.State != ContainerExited {
			ids = append(ids, rec.ID)
		}
	}
	if len(ids) == 0 {
		return nil, nil
	}
	figures, err := s.opts.Engine.Stats(ctx, ids)
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
func (s *Service) PodSandboxStats(ctx context.Context, id string) (*runtimeapi.PodSandboxStats, error) {
	rec, err := s.readySandbox(id)
	if err != nil {
		return nil, fmt.Errorf("cannot read sandbox stats: %w", err)
	}
	all, err := s.sandboxStats(ctx, []*SandboxRecord{rec})
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
func (s *Service) ListPodSandboxStats(ctx context.Context, filter *runtimeapi.PodSandboxStatsFilter) ([]*runtimeapi.PodSandboxStats, error) {
	return s.sandboxStats(ctx, s.selectSandboxes(&runtimeapi.PodSandboxFilter{
		Id: filter.GetId(), LabelSelector: filter.GetLabelSelector(),
		State: &runtimeapi.PodSandboxStateValue{State: runtimeapi.PodSandboxState_SANDBOX_READY},
	}))
}

// sandboxStats reads everything of all of them at once.
func (s *Service) sandboxStats(ctx context.Context, recs []*SandboxRecord) ([]*runtimeapi.PodSandboxStats, error) {
	figures, err := s.opts.Engine.SandboxStats(ctx, s.sandboxRefs(recs))
	if err != nil {
		return nil, fmt.Errorf("cannot read sandbox stats: %w", err)
	}
	var containers []*ContainerRecord
	owner := map[string]string{}
	for _, c := range s.containers.All() {
		if figures[c.SandboxID] != nil && c.visible() {
			containers = append(containers, c)
			owner[c.ID] = c.SandboxID
		}
	}
	stats, err := s.statsOf(ctx, containers)
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

func (s *Service) sandboxRefs(recs []*SandboxRecord) []engine.SandboxRef {
	refs := make([]engine.SandboxRef, 0, len(recs))
	for _, rec := range recs {
		if rec.Engine != nil {
			refs = append(refs, engine.SandboxRef{Spec: s.sandboxSpec(rec), Sandbox: rec.Engine})
		}
	}
	return refs
}

// PodFigures are a READY sandbox with all that is counted of it.
type PodFigures struct {
	ID string
	// Metadata is the pod's. CreatedAt is in nanoseconds since 1970.
	Metadata   *runtimeapi.PodSandboxMetadata
	CreatedAt  int64
	Figures    *engine.Figures
	Containers []ContainerFigures
}

// ContainerFigures are a container with all that is counted of it.
type ContainerFigures struct {
	ID string
	// Name is the container's in its pod, Image what was asked for. CreatedAt is in
	// nanoseconds since 1970.
	Name, Image string
	CreatedAt   int64
	Figures     *engine.Figures
}

// Figures reads all that is counted of READY sandboxes and their containers.
// Unsupported when the engine does not count.
func (s *Service) Figures(ctx context.Context) ([]PodFigures, error) {
	meter, ok := s.opts.Engine.(engine.Meter)
	if !ok {
		return nil, fmt.Errorf("cannot read figures: the engine does not count: %w", errs.Unsupported)
	}
	sandboxes := s.selectSandboxes(&runtimeapi.PodSandboxFilter{
		State: &runtimeapi.PodSandboxStateValue{State: runtimeapi.PodSandboxState_SANDBOX_READY},
	})
	containers := map[string][]*ContainerRecord{}
	var ids []string
	for _, rec := range s.containers.All() {
		if rec.State == ContainerRunning {
			containers[rec.SandboxID] = append(containers[rec.SandboxID], rec)
			ids = append(ids, rec.ID)
		}
	}
	figures, err := meter.Figures(ctx, s.sandboxRefs(sandboxes), ids)
	if err != nil {
		return nil, fmt.Errorf("cannot read figures: %w", err)
	}
	all := make([]PodFigures, 0, len(sandboxes))
	for _, sb := range sandboxes {
		if figures[sb.ID] == nil {
			continue
		}
		one := PodFigures{ID: sb.ID, Metadata: sb.Config.Get().GetMetadata(), CreatedAt: sb.CreatedAt, Figures: figures[sb.ID]}
		for _, c := range containers[sb.ID] {
			if f := figures[c.ID]; f != nil {
				one.Containers = append(one.Containers, ContainerFigures{
					ID: c.ID, Name: c.Config.Get().GetMetadata().GetName(), Image: c.imageSpec().GetImage(), CreatedAt: c.CreatedAt, Figures: f,
				})
			}
		}
		all = append(all, one)
	}
	return all, nil
}

// Task is a sandbox or a container as tools see it that look at processes.
type Task struct {
	// SandboxID is ID for a sandbox.
	ID, SandboxID string
	Labels        map[string]string
	// Image is what was asked for, "" for a sandbox.
	Image     string
	CreatedAt time.Time
	// Pid is 0 while nothing runs. A sandbox without a process of its own has that
	// of its oldest running container, which is in its namespaces.
	Pid      int
	Exited   bool
	ExitCode int32
}

// IsSandbox tells a sandbox from a container.
func (t *Task) IsSandbox() bool { return t.ID == t.SandboxID }

// Task finds a sandbox or a container by its full id. A container is found while it
// is being made: who watches cgroups asks as soon as there is one, and only once.
func (s *Service) Task(id string) (*Task, error) {
	if rec, err := s.containers.Get(id); err == nil {
		return &Task{
			ID: rec.ID, SandboxID: rec.SandboxID, Labels: rec.Config.Get().GetLabels(), Image: rec.imageSpec().GetImage(),
			CreatedAt: time.Unix(0, rec.CreatedAt), Pid: rec.Pid, Exited: rec.State == ContainerExited, ExitCode: rec.ExitCode,
		}, nil
	}
	rec, err := s.sandboxes.Get(id)
	if err != nil {
		return nil, fmt.Errorf("neither a container nor a sandbox has the id %q: %w", id, errs.NotFound)
	}
	return &Task{
		ID: rec.ID, SandboxID: rec.ID, Labels: rec.Config.Get().GetLabels(), CreatedAt: time.Unix(0, rec.CreatedAt), Pid: s.podPid(rec),
	}, nil
}

// podPid is a process in the sandbox's namespaces, 0 for none.
func (s *Service) podPid(rec *SandboxRecord) int {
	if rec.State != SandboxReady {
		return 0
	}
	if pid := sandboxPid(rec); pid != 0 {
		return pid
	}
	var oldest *ContainerRecord
	for _, c := range s.containers.All() {
		if c.SandboxID == rec.ID && c.State == ContainerRunning && (oldest == nil || c.CreatedAt < oldest.CreatedAt) {
			oldest = c
		}
	}
	if oldest == nil {
		return 0
	}
	return oldest.Pid
}

// MarkSandbox brings the mark of a sandbox into line with its processes. Nil for an
// engine that makes no marks, and for a sandbox that has gone.
func (s *Service) MarkSandbox(ctx context.Context, id string) error {
	placeholders, ok := s.opts.Engine.(engine.Placeholders)
	if !ok {
		return nil
	}
	rec, err := s.sandboxes.Get(id)
	if err != nil || rec.Engine == nil {
		return errs.IgnoreNotFound(err)
	}
	return placeholders.MakePlaceholder(ctx, engine.SandboxRef{Spec: s.sandboxSpec(rec), Sandbox: rec.Engine}, s.podPid(rec))
}
