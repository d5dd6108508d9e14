package pod

import (
	"context"
	"fmt"
	"maps"
	"slices"

	"google.golang.org/protobuf/proto"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/pod/call"
	"github.com/berthrun/berth/internal/pod/job"
	"github.com/berthrun/berth/internal/pod/record"
	"github.com/berthrun/berth/internal/store"
)

// UpdateContainer changes the limits of a created or running container. What is 0
// or "" in res stays as it is, as does oom_score_adj, which belongs to the process.
// When it returns nil the cgroup and the record say the same.
func (c *Containers) UpdateContainer(ctx context.Context, id string, res *runtimeapi.LinuxContainerResources) error {
	rec, err := c.records.Container(id)
	if err != nil {
		return fmt.Errorf("cannot update container: %w", err)
	}
	if rec.Stop != nil {
		return fmt.Errorf("cannot update container %q: it is stopping: %w", rec.ID, errs.State)
	}
	_, err = c.jobs.Do(ctx, &job.Request{
		Key: rec.Name(), ID: rec.ID, Kind: kindUpdate,
		Run: func(ctx context.Context, j *job.Job) (string, error) {
			return rec.ID, c.updateContainer(ctx, j, rec.ID, res)
		},
	})
	return err
}

// updateContainer changes the cgroup first: when the daemon is killed in between, the
// status shows the old limits, and the kubelet repeats the request.
func (c *Containers) updateContainer(ctx context.Context, j *job.Job, id string, res *runtimeapi.LinuxContainerResources) error {
	rec, err := c.updatable(id)
	if err != nil {
		return fmt.Errorf("cannot update container %q: %w", id, err)
	}
	if err := c.checkUpdate("linux", mergeResources(rec.CurrentResources(), res), res); err != nil {
		return err
	}
	j.Stage("ask plugins", "the NRI plugins")
	changed, err := c.plugins.UpdateContainer(ctx, rec, res)
	if err != nil {
		return fmt.Errorf("cannot update container %q: %w", id, err)
	}
	j.Stage("update container", "the engine")
	rec, err = c.changeLimits(ctx, id, changed)
	if err != nil {
		return err
	}
	c.plugins.UpdatedContainer(ctx, rec)
	return nil
}

// updatable returns the record of a container whose limits can be changed.
func (c *Containers) updatable(id string) (*record.Container, error) {
	rec, err := c.records.Containers.Get(id)
	if err != nil {
		return nil, err
	}
	if rec.Removing || rec.State != record.ContainerCreated && rec.State != record.ContainerRunning || rec.StartError() != "" {
		return nil, fmt.Errorf("it is %s: %w", rec.State, errs.State)
	}
	return rec, nil
}

// changeLimits changes the limits that change has, in the cgroup and in the record, and returns the
// record. All of it is one call: a kubelet and a plugin may change the limits at the same time, and
// neither may undo what the other has changed.
func (c *Containers) changeLimits(ctx context.Context, id string, change *runtimeapi.LinuxContainerResources) (*record.Container, error) {
	return call.Get(ctx, c.calls, id, "update container "+id, func(ctx context.Context) (*record.Container, error) {
		rec, err := c.updatable(id)
		if err != nil {
			return nil, err
		}
		next := mergeResources(rec.CurrentResources(), change)
		if err := c.checkUpdate("linux", next, change); err != nil {
			return nil, err
		}
		if err := c.engine.Update(ctx, id, next); err != nil {
			return nil, err
		}
		return c.records.Containers.Update(id, func(r *record.Container) error {
			r.Resources = store.MessageOf(next)
			return nil
		})
	})
}

// UpdateLimits changes the limits of a container for an NRI plugin. It is no job: a plugin may ask
// for it while the job of another container waits for that plugin, and so on in a circle.
func (c *Containers) UpdateLimits(ctx context.Context, id string, change *runtimeapi.LinuxContainerResources) error {
	// Before the call, too: one that is created has a call under way, which may wait for this one.
	if _, err := c.updatable(id); err != nil {
		return fmt.Errorf("cannot update container %q: %w", id, err)
	}
	ctx, cancel := context.WithTimeout(ctx, c.limits.Kill)
	defer cancel()
	_, err := c.changeLimits(ctx, id, change)
	return err
}

// Evict begins to stop a container for an NRI plugin.
func (c *Containers) Evict(ctx context.Context, id, reason string) error {
	rec, err := c.records.Container(id)
	if err != nil {
		return err
	}
	c.log.Warn("an NRI plugin evicts a container", "container", id, "reason", reason)
	c.startDetached(context.WithoutCancel(ctx), c.stopContainerRequest(rec, 0))
	return nil
}

// UpdateSandbox changes the limits of a READY sandbox's cgroup, and records them and
// the overhead that is part of them.
func (s *Sandboxes) UpdateSandbox(ctx context.Context, id string, overhead, res *runtimeapi.LinuxContainerResources) error {
	rec, err := s.records.ReadySandbox(id)
	if err != nil {
		return fmt.Errorf("cannot update sandbox: %w", err)
	}
	_, err = s.jobs.Do(ctx, &job.Request{
		Key: rec.Name(), ID: rec.ID, Kind: kindUpdate,
		Run: func(ctx context.Context, j *job.Job) (string, error) {
			return rec.ID, s.updateSandbox(ctx, j, rec.ID, overhead, res)
		},
	})
	return err
}

func (s *Sandboxes) updateSandbox(ctx context.Context, j *job.Job, id string, overhead, res *runtimeapi.LinuxContainerResources) error {
	rec, err := s.records.ReadySandbox(id)
	if err != nil {
		return fmt.Errorf("cannot update sandbox: %w", err)
	}
	next := record.SandboxResources{
		Overhead:  store.MessageOf(mergeResources(rec.CurrentResources().Overhead.Get(), overhead)),
		Resources: store.MessageOf(mergeResources(rec.CurrentResources().Resources.Get(), res)),
	}
	if err := s.checkUpdate("overhead", next.Overhead.Get(), overhead); err != nil {
		return err
	}
	if err := s.checkUpdate("resources", next.Resources.Get(), res); err != nil {
		return err
	}
	j.Stage("ask plugins", "the NRI plugins")
	if err := s.plugins.UpdateSandbox(ctx, rec, overhead, res); err != nil {
		return fmt.Errorf("cannot update sandbox %q: %w", id, err)
	}
	j.Stage("update sandbox", "the engine")
	if err := call.Run(ctx, s.calls, id, "update sandbox", func(ctx context.Context) error {
		return s.engine.UpdateSandbox(ctx, rec.Engine, next.Resources.Get())
	}); err != nil {
		return err
	}
	j.Stage("write record", "the state directory")
	rec, err = s.records.Sandboxes.Update(id, func(r *record.Sandbox) error {
		r.Resources = &next
		return nil
	})
	if err != nil {
		return err
	}
	s.plugins.UpdatedSandbox(ctx, rec)
	return nil
}

// checkUpdate checks the limits after an update, and refuses a change of the limit that no
// update can change.
func (w *worker) checkUpdate(field string, next, change *runtimeapi.LinuxContainerResources) error {
	left := &runtimeapi.LinuxContainerResources{OomScoreAdj: change.GetOomScoreAdj()}
	if err := w.engine.CheckResources(field, left); err != nil {
		return err
	}
	return w.engine.CheckResources(field, next)
}

// mergeResources returns old with the values that change has. It changes neither; both may
// be nil.
func mergeResources(old, change *runtimeapi.LinuxContainerResources) *runtimeapi.LinuxContainerResources {
	next := &runtimeapi.LinuxContainerResources{}
	if old != nil {
		proto.Merge(next, old)
	}
	overwrite(&next.CpuPeriod, change.GetCpuPeriod())
	overwrite(&next.CpuQuota, change.GetCpuQuota())
	overwrite(&next.CpuShares, change.GetCpuShares())
	overwrite(&next.MemoryLimitInBytes, change.GetMemoryLimitInBytes())
	overwrite(&next.CpusetCpus, change.GetCpusetCpus())
	overwrite(&next.CpusetMems, change.GetCpusetMems())
	if swap := change.GetMemorySwapLimitInBytes(); swap != 0 {
		next.MemorySwapLimitInBytes = swap
	} else if old.GetMemorySwapLimitInBytes() == old.GetMemoryLimitInBytes() || next.MemoryLimitInBytes == -1 {
		next.MemorySwapLimitInBytes = 0 // no swap, or no limit: it follows the memory
	}
	next.HugepageLimits = mergePages(next.HugepageLimits, change.GetHugepageLimits())
	if len(change.GetUnified()) > 0 {
		unified := maps.Clone(next.Unified)
		if unified == nil {
			unified = map[string]string{}
		}
		maps.Copy(unified, change.GetUnified())
		next.Unified = unified
	}
	return next
}

// mergePages returns old with the limits of the sizes that change has in their places.
func mergePages(old, change []*runtimeapi.HugepageLimit) []*runtimeapi.HugepageLimit {
	next := slices.DeleteFunc(slices.Clone(old), func(limit *runtimeapi.HugepageLimit) bool {
		return slices.ContainsFunc(change, func(c *runtimeapi.HugepageLimit) bool { return c.GetPageSize() == limit.GetPageSize() })
	})
	return append(next, change...)
}

func overwrite[T comparable](to *T, with T) {
	var unsaid T
	if with != unsaid {
		*to = with
	}
}
