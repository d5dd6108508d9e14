package view

import (
	"context"
	"fmt"
	"time"

	"github.com/berthrun/berth/internal/engine"
	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/pod/record"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

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

// CAdvisor has the data that cAdvisor requests of a runtime: figures by pod, and the owner of a
// cgroup.
type CAdvisor struct {
	engine  engine.Engine
	records *record.Store
}

// NewCAdvisor returns a CAdvisor.
func NewCAdvisor(eng engine.Engine, records *record.Store) *CAdvisor {
	return &CAdvisor{engine: eng, records: records}
}

// Figures reads all that is counted of READY sandboxes and their containers.
// Unsupported when the engine does not count.
func (c *CAdvisor) Figures(ctx context.Context) ([]PodFigures, error) {
	meter, ok := c.engine.(engine.Meter)
	if !ok {
		return nil, fmt.Errorf("cannot read figures: the engine does not count: %w", errs.Unsupported)
	}
	sandboxes := selectSandboxes(c.records, &runtimeapi.PodSandboxFilter{
		State: &runtimeapi.PodSandboxStateValue{State: runtimeapi.PodSandboxState_SANDBOX_READY},
	})
	containers := map[string][]*record.Container{}
	var ids []string
	for _, rec := range c.records.Containers.All() {
		if rec.State == record.ContainerRunning {
			containers[rec.SandboxID] = append(containers[rec.SandboxID], rec)
			ids = append(ids, rec.ID)
		}
	}
	figures, err := meter.Figures(ctx, sandboxRefs(c.records, sandboxes), ids)
	if err != nil {
		return nil, fmt.Errorf("cannot read figures: %w", err)
	}
	all := make([]PodFigures, 0, len(sandboxes))
	for _, sb := range sandboxes {
		if figures[sb.ID] == nil {
			continue
		}
		one := PodFigures{ID: sb.ID, Metadata: sb.Config.Get().GetMetadata(), CreatedAt: sb.CreatedAt, Figures: figures[sb.ID]}
		for _, rec := range containers[sb.ID] {
			if f := figures[rec.ID]; f != nil {
				one.Containers = append(one.Containers, ContainerFigures{
					ID: rec.ID, Name: rec.Config.Get().GetMetadata().GetName(), Image: imageSpec(rec).GetImage(), CreatedAt: rec.CreatedAt, Figures: f,
				})
			}
		}
		all = append(all, one)
	}
	return all, nil
}

// Task is a sandbox or a container for tools that look at processes.
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

// IsSandbox reports whether the task is a sandbox, not a container.
func (t *Task) IsSandbox() bool { return t.ID == t.SandboxID }

// Task finds a sandbox or a container by its full id. It finds a container
// that is being created, too: cAdvisor asks once, as soon as it sees the cgroup.
func (c *CAdvisor) Task(id string) (*Task, error) {
	if rec, err := c.records.Containers.Get(id); err == nil {
		return &Task{
			ID: rec.ID, SandboxID: rec.SandboxID, Labels: rec.Config.Get().GetLabels(), Image: imageSpec(rec).GetImage(),
			CreatedAt: time.Unix(0, rec.CreatedAt), Pid: rec.Pid, Exited: rec.State == record.ContainerExited, ExitCode: rec.ExitCode,
		}, nil
	}
	rec, err := c.records.Sandboxes.Get(id)
	if err != nil {
		return nil, fmt.Errorf("neither a container nor a sandbox has the id %q: %w", id, errs.NotFound)
	}
	return &Task{
		ID: rec.ID, SandboxID: rec.ID, Labels: rec.Config.Get().GetLabels(), CreatedAt: time.Unix(0, rec.CreatedAt), Pid: podPid(c.records, rec),
	}, nil
}

// MakePlaceholder updates the placeholder cgroup of a sandbox to its processes; see
// engine.Placeholders. Nil for an engine that has none, and for a sandbox that was removed.
func (c *CAdvisor) MakePlaceholder(ctx context.Context, id string) error {
	placeholders, ok := c.engine.(engine.Placeholders)
	if !ok {
		return nil
	}
	rec, err := c.records.Sandboxes.Get(id)
	if err != nil || rec.Engine == nil {
		return errs.IgnoreNotFound(err)
	}
	return placeholders.MakePlaceholder(ctx, engine.SandboxRef{Spec: c.records.SandboxSpec(rec), Sandbox: rec.Engine}, podPid(c.records, rec))
}

// podPid is a process in the sandbox's namespaces, 0 for none.
func podPid(records *record.Store, rec *record.Sandbox) int {
	if rec.State != record.SandboxReady {
		return 0
	}
	if pid := sandboxPid(rec); pid != 0 {
		return pid
	}
	var oldest *record.Container
	for _, c := range records.Containers.InGroup(rec.ID) {
		if c.State == record.ContainerRunning && (oldest == nil || c.CreatedAt < oldest.CreatedAt) {
			oldest = c
		}
	}
	if oldest == nil {
		return 0
	}
	return oldest.Pid
}
