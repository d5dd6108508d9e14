package docker

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/moby/moby/api/types/container"
	"github.com/moby/sys/mountinfo"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berthrun/berth/internal/engine"
	"github.com/berthrun/berth/internal/engine/meter"
	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/image"
	"github.com/berthrun/berth/internal/sys/cgroup"
	"github.com/berthrun/berth/internal/sys/sysfile"
)

var _ engine.Meter = (*Engine)(nil)

// Stats reads the figures of containers from their cgroups, without a call of the Docker
// Engine.
func (e *Engine) Stats(ctx context.Context, ids []string) (map[string]*runtimeapi.ContainerStats, error) {
	return e.meter.Containers(ctx, e.containerTargets(ids))
}

// SandboxStats reads the figures of pods' cgroups and of their networks.
func (e *Engine) SandboxStats(ctx context.Context, sandboxes []engine.SandboxRef) (map[string]*runtimeapi.LinuxPodSandboxStats, error) {
	targets, err := e.sandboxTargets(sandboxes)
	if err != nil {
		return nil, err
	}
	return e.meter.Sandboxes(ctx, targets)
}

// Figures implements engine.Meter.
func (e *Engine) Figures(ctx context.Context, sandboxes []engine.SandboxRef, containers []string) (map[string]*engine.Figures, error) {
	targets := e.containerTargets(containers)
	pods, err := e.sandboxTargets(sandboxes)
	if err != nil {
		return nil, err
	}
	maps.Copy(targets, pods)
	return e.meter.Figures(ctx, targets, true)
}

func (e *Engine) sandboxTargets(sandboxes []engine.SandboxRef) (map[string]meter.Target, error) {
	targets := make(map[string]meter.Target, len(sandboxes))
	for _, ref := range sandboxes {
		var groups cgroup.Paths
		if parent := ref.Sandbox.CgroupParent; parent != "" { // an adopted sandbox may have none of its own
			var err error
			if groups, err = e.podCgroups.Paths(parent); err != nil {
				return nil, err
			}
		}
		targets[ref.Spec.ID] = meter.Target{Cgroups: groups, NetNS: ref.Sandbox.NetNS}
	}
	return targets, nil
}

// containerTargets returns the cgroups of containers whose process is known: Start and List find it. The
// others have no figures yet. The engine does not answer about a container that hangs in its start, and the
// figures of a node must not wait for it.
func (e *Engine) containerTargets(ids []string) map[string]meter.Target {
	targets := make(map[string]meter.Target, len(ids))
	for _, id := range ids {
		obj, known := e.objects.cached(id)
		switch {
		case !known:
		case obj.pid == 0:
			e.findProcess(id, obj.fate)
		default:
			targets[id] = meter.Target{Cgroups: obj.cgroups, Writes: true}
		}
	}
	return targets
}

// findPause is the pause between two looks for the process of a container.
const findPause = 30 * time.Second

// findProcess looks in the background for the process of a container that Start and List have not found, for example
// because systemd was moving it.
func (e *Engine) findProcess(id string, of *fate) {
	now, last := time.Now(), of.sought.Load()
	if now.Sub(time.Unix(0, last)) < findPause || !of.sought.CompareAndSwap(last, now.UnixNano()) {
		return
	}
	go errs.Protect("search for the process of container "+id, func() {
		if _, err := e.actualOf(context.Background(), id, &container.Summary{State: container.StateRunning}); err != nil {
			e.log.Debug("cannot find the process of a container; it has no figures", "container", id, "error", err)
		}
	})
}

// writable measures what containers write; see meter.Rootfs.
type writable struct{ objects *objects }

// WritableUsage adds up the files in the writable layer of a container.
func (w writable) WritableUsage(ctx context.Context, id string, pace sysfile.Pace) (image.Usage, error) {
	obj, _ := w.objects.cached(id)
	if obj.upper == "" {
		return image.Usage{}, fmt.Errorf("writable layer of container %s: %w", id, errs.NotFound)
	}
	used, err := sysfile.UsageOf(ctx, pace, obj.upper)
	if errors.Is(err, os.ErrNotExist) {
		return image.Usage{}, fmt.Errorf("writable layer of container %s: %w", id, errs.NotFound)
	}
	usage := image.Usage{Mountpoint: obj.upper, Bytes: used.Bytes, Inodes: used.Inodes, At: time.Now()}
	if err != nil {
		return usage, fmt.Errorf("cannot measure what container %s has written: %w", id, err)
	}
	return usage, nil
}

// upperDir returns the directory with what a container writes. Engines with graph drivers
// report it; those with the containerd image store do not, and then it is an option of the
// root mount of the container's process. "" if neither says it.
func upperDir(got *container.InspectResponse, pid int) string {
	if got.GraphDriver != nil {
		if dir := got.GraphDriver.Data["UpperDir"]; filepath.IsAbs(dir) {
			return dir
		}
	}
	if pid == 0 {
		return ""
	}
	file, err := os.Open(fmt.Sprintf("/proc/%d/mountinfo", pid))
	if err != nil {
		return ""
	}
	defer file.Close()
	mounts, err := mountinfo.GetMountsFromReader(file, mountinfo.SingleEntryFilter("/"))
	if err != nil {
		return ""
	}
	for _, m := range mounts {
		if m.FSType != "overlay" {
			continue
		}
		for option := range strings.SplitSeq(m.VFSOptions, ",") {
			if dir, ok := strings.CutPrefix(option, "upperdir="); ok && filepath.IsAbs(dir) {
				return dir
			}
		}
	}
	return ""
}
