package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// pod is one pod with at most one container.
type pod struct {
	sandbox, container string
	// name is unique in the run.
	name string
}

// timings of one pod, by call.
type timings struct {
	run, create, start, stop, remove time.Duration
}

func (t timings) up() time.Duration { return t.run + t.create + t.start }

// up creates a pod with one container that runs command, with a kubelet's request for an ordinary
// pod: CNI network, own PID namespace, RuntimeDefault seccomp.
func (p *peer) up(ctx context.Context, image, name string, command ...string) (pod, timings, error) {
	var t timings
	made := pod{name: name}
	seccomp := &runtimeapi.SecurityProfile{ProfileType: runtimeapi.SecurityProfile_RuntimeDefault}
	sandbox := &runtimeapi.PodSandboxConfig{
		Metadata:     &runtimeapi.PodSandboxMetadata{Name: name, Namespace: "bench", Uid: name},
		LogDirectory: filepath.Join(p.logs, name),
		Linux: &runtimeapi.LinuxPodSandboxConfig{
			CgroupParent: cgroupOf(p),
			SecurityContext: &runtimeapi.LinuxSandboxSecurityContext{
				NamespaceOptions: &runtimeapi.NamespaceOption{Pid: runtimeapi.NamespaceMode_CONTAINER},
				Seccomp:          seccomp,
			},
		},
	}
	// A kubelet makes the directory of a container's log; cri-dockerd relies on it.
	if err := os.MkdirAll(filepath.Join(p.logs, name, "c"), 0o755); err != nil {
		return made, t, err
	}
	begin := time.Now()
	ran, err := p.runtime.RunPodSandbox(ctx, &runtimeapi.RunPodSandboxRequest{Config: sandbox})
	if err != nil {
		return made, t, fmt.Errorf("RunPodSandbox: %w", err)
	}
	t.run = time.Since(begin)
	made.sandbox = ran.PodSandboxId
	begin = time.Now()
	created, err := p.runtime.CreateContainer(ctx, &runtimeapi.CreateContainerRequest{
		PodSandboxId:  made.sandbox,
		SandboxConfig: sandbox,
		Config: &runtimeapi.ContainerConfig{
			Metadata: &runtimeapi.ContainerMetadata{Name: "c"},
			Image:    &runtimeapi.ImageSpec{Image: image, UserSpecifiedImage: image},
			Command:  command,
			LogPath:  "c/0.log",
			Linux: &runtimeapi.LinuxContainerConfig{
				Resources: &runtimeapi.LinuxContainerResources{CpuShares: 102, MemoryLimitInBytes: 1 << 30, OomScoreAdj: 1000},
				SecurityContext: &runtimeapi.LinuxContainerSecurityContext{
					NamespaceOptions: &runtimeapi.NamespaceOption{Pid: runtimeapi.NamespaceMode_CONTAINER},
					Seccomp:          seccomp,
					MaskedPaths:      []string{"/proc/asound", "/proc/acpi", "/proc/kcore", "/proc/keys", "/proc/latency_stats", "/proc/timer_list", "/proc/timer_stats", "/proc/sched_debug", "/proc/scsi", "/sys/firmware", "/sys/devices/virtual/powercap"},
					ReadonlyPaths:    []string{"/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"},
				},
			},
		},
	})
	if err != nil {
		return made, t, fmt.Errorf("CreateContainer: %w", err)
	}
	t.create = time.Since(begin)
	made.container = created.ContainerId
	begin = time.Now()
	if _, err := p.runtime.StartContainer(ctx, &runtimeapi.StartContainerRequest{ContainerId: made.container}); err != nil {
		return made, t, fmt.Errorf("StartContainer: %w", err)
	}
	t.start = time.Since(begin)
	return made, t, nil
}

// timedDown stops and removes a pod as a kubelet does.
func (p *peer) timedDown(ctx context.Context, d pod, t *timings) error {
	begin := time.Now()
	if d.container != "" {
		if _, err := p.runtime.StopContainer(ctx, &runtimeapi.StopContainerRequest{ContainerId: d.container}); err != nil {
			return fmt.Errorf("StopContainer: %w", err)
		}
	}
	if _, err := p.runtime.StopPodSandbox(ctx, &runtimeapi.StopPodSandboxRequest{PodSandboxId: d.sandbox}); err != nil {
		return fmt.Errorf("StopPodSandbox: %w", err)
	}
	t.stop = time.Since(begin)
	begin = time.Now()
	if _, err := p.runtime.RemovePodSandbox(ctx, &runtimeapi.RemovePodSandboxRequest{PodSandboxId: d.sandbox}); err != nil {
		return fmt.Errorf("RemovePodSandbox: %w", err)
	}
	t.remove = time.Since(begin)
	return nil
}

func (p *peer) down(ctx context.Context, d pod) error {
	var t timings
	return p.timedDown(ctx, d, &t)
}

func (p *peer) pull(ctx context.Context, image string) error {
	_, err := p.images.PullImage(ctx, &runtimeapi.PullImageRequest{Image: &runtimeapi.ImageSpec{Image: image}})
	return err
}

// exec runs a command and requires exit code 0.
func (p *peer) exec(ctx context.Context, d pod, command ...string) error {
	answer, err := p.runtime.ExecSync(ctx, &runtimeapi.ExecSyncRequest{ContainerId: d.container, Cmd: command, Timeout: 30})
	if err == nil && answer.ExitCode != 0 {
		err = fmt.Errorf("exit code %d: %s", answer.ExitCode, answer.Stderr)
	}
	return err
}

// inParallel calls do for 0..n-1, ten at a time, and joins the errors.
func inParallel(n int, do func(i int) error) error {
	const workers = 10
	next, results := make(chan int), make(chan error, workers)
	for range workers {
		go func() {
			var errList []error
			for i := range next {
				if err := do(i); err != nil {
					errList = append(errList, err)
				}
			}
			results <- errors.Join(errList...)
		}()
	}
	for i := range n {
		next <- i
	}
	close(next)
	var all []error
	for range workers {
		all = append(all, <-results)
	}
	return errors.Join(all...)
}
