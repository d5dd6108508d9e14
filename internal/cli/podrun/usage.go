package podrun

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	corev1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berthrun/berth/internal/cli/podyaml/resources"
	"github.com/berthrun/berth/internal/sys/sysfile"
)

// errEvicted says that the pod wrote more to disk than it may.
var errEvicted = errors.New("the pod is evicted")

// watchUsage ends a pod that writes more than its limits to disk, as a kubelet evicts it.
func (k *podRun) watchUsage(ctx context.Context, end context.CancelCauseFunc) {
	if !k.isLimited() {
		return
	}
	for sleep(ctx, k.Timings.Usage) == nil {
		why := k.exceededLimit(ctx)
		if why == "" || ctx.Err() != nil {
			continue
		}
		k.evicted.Store(true)
		end(fmt.Errorf("%w: %s", errEvicted, why))
		return
	}
}

func (k *podRun) isLimited() bool {
	for i := range k.pod.Spec.Volumes {
		if diskLimit(&k.pod.Spec.Volumes[i]) > 0 {
			return true
		}
	}
	for i := range k.pod.Spec.Containers {
		if resources.StorageLimit(&k.pod.Spec.Containers[i]) > 0 {
			return true
		}
	}
	return false
}

// diskLimit of an emptyDir that no file system of its own limits; 0 for none.
func diskLimit(v *corev1.Volume) int64 {
	if v.EmptyDir == nil || v.EmptyDir.SizeLimit == nil || v.EmptyDir.Medium != corev1.StorageMediumDefault {
		return 0
	}
	return v.EmptyDir.SizeLimit.Value()
}

// exceededLimit says what is over its limit, "" for nothing. Usage that cannot be read is not over.
func (k *podRun) exceededLimit(ctx context.Context) string {
	for i := range k.pod.Spec.Volumes {
		v := &k.pod.Spec.Volumes[i]
		limit := diskLimit(v)
		if limit == 0 {
			continue
		}
		used, err := sysfile.UsageOf(ctx, nil, filepath.Join(k.facts.Dir, "volumes", v.Name))
		if err == nil && used.Bytes > limit {
			return fmt.Sprintf("emptyDir %s has %d bytes of %s", v.Name, used.Bytes, v.EmptyDir.SizeLimit)
		}
	}
	for i := range k.pod.Spec.Containers {
		c := &k.pod.Spec.Containers[i]
		limit, a := resources.StorageLimit(c), k.latest(c.Name)
		if limit == 0 || a == nil {
			continue
		}
		if used := k.diskUsage(ctx, a); used > limit {
			return fmt.Sprintf("container %s has written %d bytes of its %d of ephemeral-storage", c.Name, used, limit)
		}
	}
	return ""
}

// diskUsage is what a container has in its root filesystem and its logs.
func (k *podRun) diskUsage(ctx context.Context, a *attempt) int64 {
	var total int64
	stats, err := k.Conn.Runtime.ContainerStats(ctx, &runtimeapi.ContainerStatsRequest{ContainerId: a.id})
	if err == nil {
		total = int64(stats.GetStats().GetWritableLayer().GetUsedBytes().GetValue())
	}
	logs, err := os.ReadDir(filepath.Join(k.facts.LogDir, a.spec.Name))
	if err != nil {
		return total
	}
	for _, entry := range logs {
		if info, err := entry.Info(); err == nil {
			total += info.Size()
		}
	}
	return total
}
