package churn

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// size is a container's limits.
type size struct{ cpu, memory string }

func (s size) patch() string {
	return fmt.Sprintf(`{"spec": {"containers": [{"name": "main", "resources": {"requests": {"cpu": %[1]q, "memory": %[2]q}, "limits": {"cpu": %[1]q, "memory": %[2]q}}}]}}`, s.cpu, s.memory)
}

const resizable = `
terminationGracePeriodSeconds: 0
containers:
- name: main
  args: ["exec sleep 100000"]
  resources: {requests: {cpu: 100m, memory: 64Mi}, limits: {cpu: 100m, memory: 64Mi}}
  resizePolicy: [{resourceName: cpu, restartPolicy: NotRequired}, {resourceName: memory, restartPolicy: %s}]
- {name: other, args: ["exec sleep 100000"], resources: {requests: {cpu: 10m, memory: 16Mi}, limits: {cpu: 50m, memory: 32Mi}}}
`

// resize: limits change in place, up and down; the container keeps running.
func resize(ctx context.Context, p *pod) error {
	if err := p.create(ctx, fmt.Sprintf(resizable, "NotRequired")); err != nil {
		return err
	}
	if err := p.awaitReady(ctx); err != nil {
		return err
	}
	first := statusOf(p.seen.last(p.name), "main").ContainerID
	for _, s := range []size{{"250m", "64Mi"}, {"250m", "128Mi"}, {"50m", "48Mi"}} {
		if err := p.resizeTo(ctx, s); err != nil {
			return fmt.Errorf("resize to %v: %w", s, err)
		}
	}
	if now := statusOf(p.seen.last(p.name), "main").ContainerID; now != first {
		return fmt.Errorf("the container was %s and is %s", first, now)
	}
	return nil
}

// resizeRestarts: a resize whose policy requires it restarts its container, and no other.
func resizeRestarts(ctx context.Context, p *pod) error {
	p.ordered["main"] = 1
	if err := p.create(ctx, fmt.Sprintf(resizable, "RestartContainer")); err != nil {
		return err
	}
	if err := p.awaitReady(ctx); err != nil {
		return err
	}
	if err := p.resizeTo(ctx, size{"100m", "96Mi"}); err != nil {
		return err
	}
	return p.awaitReady(ctx)
}

// resizeTo resizes the container and waits until status and cgroups have the new size.
func (p *pod) resizeTo(ctx context.Context, s size) error {
	if err := p.patch(ctx, s.patch(), "resize"); err != nil {
		return err
	}
	_, err := p.await(ctx, "the new size in the status", func(seen *corev1.Pod) bool {
		status := statusOf(seen, "main")
		for _, condition := range seen.Status.Conditions {
			if condition.Type == corev1.PodResizePending || condition.Type == corev1.PodResizeInProgress {
				return false
			}
		}
		return status != nil && status.Resources != nil && status.State.Running != nil &&
			status.Resources.Limits.Cpu().String() == s.cpu && status.Resources.Limits.Memory().String() == s.memory
	})
	if err != nil {
		return err
	}
	status, err := p.container(ctx, "main")
	if err != nil {
		return err
	}
	var info struct{ Pid int }
	if err := json.Unmarshal([]byte(status.Info["info"]), &info); err != nil {
		return err
	}
	limits := p.seen.last(p.name).Spec.Containers[0].Resources.Limits
	quota, memory, err := limitsOf(info.Pid)
	if err != nil {
		return err
	}
	if wantQuota := limits.Cpu().MilliValue() * 100; quota != wantQuota || memory != limits.Memory().Value() {
		return fmt.Errorf("its cgroup has a quota of %d and %d bytes, want %d and %d", quota, memory, wantQuota, limits.Memory().Value())
	}
	linux := status.Status.GetResources().GetLinux()
	if linux.GetCpuQuota() != quota || linux.GetMemoryLimitInBytes() != memory {
		return fmt.Errorf("the runtime reports %v, the cgroup has %d and %d", linux, quota, memory)
	}
	return nil
}

// limitsOf reads the cgroup of a process: CPU µs in each 100 ms, bytes of memory.
func limitsOf(pid int) (quota, memory int64, err error) {
	cgroups, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", pid))
	if err != nil {
		return 0, 0, err
	}
	read := func(controller, file, unified string) (int64, error) {
		for line := range strings.Lines(string(cgroups)) {
			parts := strings.SplitN(strings.TrimSpace(line), ":", 3)
			path := filepath.Join("/sys/fs/cgroup", controller, parts[2], file)
			if parts[1] == "" {
				path = filepath.Join("/sys/fs/cgroup", parts[2], unified)
			} else if parts[1] != controller && !strings.HasPrefix(parts[1], controller+",") {
				continue
			}
			if data, err := os.ReadFile(path); err == nil {
				return strconv.ParseInt(strings.Fields(string(data))[0], 10, 64)
			}
		}
		return 0, fmt.Errorf("process %d has no limit %s: %s", pid, file, cgroups)
	}
	if quota, err = read("cpu", "cpu.cfs_quota_us", "cpu.max"); err != nil {
		return 0, 0, err
	}
	memory, err = read("memory", "memory.limit_in_bytes", "memory.max")
	return quota, memory, err
}
