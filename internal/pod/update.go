package pod

import (
	"context"
	"fmt"
	"maps"
	"slices"

	"google.golang.org/protobuf/proto"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/pod/job"
	"github.com/berthrun/berth/internal/store"
)

// UpdateContainer changes the limits of a created or running container. What is 0
// or "" in res stays as it is, as does oom_score_adj, which belongs to the process.
// When it returns nil the cgroup and the record say the same.
func (s *Service) UpdateContainer(ctx context.Context, id string, res *runtimeapi.LinuxContainerResources) error {
	rec, err := s.container(id)
	if err != nil {
		return fmt.Errorf("cannot update container: %w", err)
	}
	if rec.Stop != nil {
		return fmt.Errorf("cannot update container %q: it is stopping: %w", rec.ID, errs.State)
	}
	_, err = s.jobs.Do(ctx, &job.Request{
		Key: rec.name(), ID: rec.ID, Kind: kindUpdate,
		Run: func(ctx context.Context, j *job.Job) (string, error) {
			return rec.ID, s.updateContainer(ctx, j, rec.ID, res)
		},
	})
	return err
}

// updateContainer changes the cgroup first: a daemon that dies between leaves a
// status that shows the old limits, and the kubelet asks again.
func (s *Service) updateContainer(ctx context.Context, j *job.Job, id string, res *runtimeapi.LinuxContainerResources) error {
	rec, err := s.containers.Get(id)
	if err != nil {
		return fmt.Errorf("cannot update container: %w", err)
	}
	if rec.Removing || rec.State != ContainerCreated && rec.State != ContainerRunning || rec.startError() != "" {
		return fmt.Errorf("cannot update container %q: it is %s: %w", id, rec.State, errs.State)
	}
	next := mergeResources(rec.resources(), res)
	if err := s.checkUpdate("linux", next, res); err != nil {
		return err
	}
	j.Stage("update container", "the engine")
	if _, err := callFor(ctx, s.calls, id, "update container "+id, func(ctx context.Context) (struct{}, error) {
		return struct{}{}, s.opts.Engine.Update(ctx, id, next)
	}); err != nil {
		return err
	}
	j.Stage("write record", "the state directory")
	_, err = s.containers.Update(id, func(r *ContainerRecord) error {
		r.Resources = store.MessageOf(next)
		return nil
	})
	return err
}

// UpdateSandbox changes the limits of a READY sandbox's cgroup, and records them and
// the overhead that is part of them.
func (s *Service) UpdateSandbox(ctx context.Context, id string, overhead, res *runtimeapi.LinuxContainerResources) error {
	rec, err := s.readySandbox(id)
	if err != nil {
		return fmt.Errorf("cannot update sandbox: %w", err)
	}
	_, err = s.jobs.Do(ctx, &job.Request{
		Key: rec.name(), ID: rec.ID, Kind: kindUpdate,
		Run: func(ctx context.Context, j *job.Job) (string, error) {
			return rec.ID, s.updateSandbox(ctx, j, rec.ID, overhead, res)
		},
	})
	return err
}

func (s *Service) updateSandbox(ctx context.Context, j *job.Job, id string, overhead, res *runtimeapi.LinuxContainerResources) error {
	rec, err := s.readySandbox(id)
	if err != nil {
		return fmt.Errorf("cannot update sandbox: %w", err)
	}
	next := SandboxResources{
		Overhead:  store.MessageOf(mergeResources(rec.resources().Overhead.Get(), overhead)),
		Resources: store.MessageOf(mergeResources(rec.resources().Resources.Get(), res)),
	}
	if err := s.checkUpdate("overhead", next.Overhead.Get(), overhead); err != nil {
		return err
	}
	if err := s.checkUpdate("resources", next.Resources.Get(), res); err != nil {
		return err
	}
	j.Stage("update sandbox", "the engine")
	if _, err := callFor(ctx, s.calls, id, "update sandbox", func(ctx context.Context) (struct{}, error) {
		return struct{}{}, s.opts.Engine.UpdateSandbox(ctx, rec.Engine, next.Resources.Get())
	}); err != nil {
		return err
	}
	j.Stage("write record", "the state directory")
	_, err = s.sandboxes.Update(id, func(r *SandboxRecord) error {
		r.Resources = &next
		return nil
	})
	return err
}

// checkUpdate judges the limits that an update leads to, and the one that no update
// changes.
func (s *Service) checkUpdate(field string, next, change *runtimeapi.LinuxContainerResources) error {
	left := &runtimeapi.LinuxContainerResources{OomScoreAdj: change.GetOomScoreAdj()}
	if err := s.opts.Engine.CheckResources(field, left); err != nil {
		return err
	}
	return s.opts.Engine.CheckResources(field, next)
}

// mergeResources returns old with what change says in its place. Neither is
// changed; a nil one says nothing.
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

// resources are the container's limits as they are now.
func (r *ContainerRecord) resources() *runtimeapi.LinuxContainerResources {
	if updated := r.Resources.Get(); updated != nil {
		return updated
	}
	return r.Config.Get().GetLinux().GetResources()
}

// resources are the sandbox's limits as they are now.
func (r *SandboxRecord) resources() *SandboxResources {
	if r.Resources != nil {
		return r.Resources
	}
	linux := r.Config.Get().GetLinux()
	return &SandboxResources{Overhead: store.MessageOf(linux.GetOverhead()), Resources: store.MessageOf(linux.GetResources())}
}

// startError is why the program cannot be started, when that is known already.
func (r *ContainerRecord) startError() string {
	if r.Engine == nil {
		return ""
	}
	return r.Engine.StartError
}
