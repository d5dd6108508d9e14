package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// latency times each call of a pod's life, one pod after the other.
func latency(ctx context.Context, o options, peers []*peer, r *registry) (*table, error) {
	t := &table{title: fmt.Sprintf("One pod after the other (%d pods)", o.pods)}
	all := map[*peer][]timings{}
	cpuUp, cpuDown := map[*peer]time.Duration{}, map[*peer]time.Duration{}
	for i := range o.pods + 3 {
		for _, p := range peers {
			before, err := machineCPU()
			if err != nil {
				return nil, err
			}
			d, timed, err := p.up(ctx, r.image("bench:1"), fmt.Sprintf("lat-%d", i))
			if err != nil {
				return nil, fmt.Errorf("%s: %w", p.name, err)
			}
			between, _ := machineCPU()
			if err := p.timedDown(ctx, d, &timed); err != nil {
				return nil, fmt.Errorf("%s: %w", p.name, err)
			}
			after, _ := machineCPU()
			if i < 3 {
				continue // warm-up
			}
			all[p] = append(all[p], timed)
			cpuUp[p] += between - before
			cpuDown[p] += after - between
		}
	}
	for _, p := range peers {
		pick := func(of func(timings) time.Duration) (out []time.Duration) {
			for _, one := range all[p] {
				out = append(out, of(one))
			}
			return out
		}
		t.percentiles(p, "pod up", pick(timings.up))
		t.percentiles(p, "RunPodSandbox", pick(func(t timings) time.Duration { return t.run }))
		t.percentiles(p, "CreateContainer", pick(func(t timings) time.Duration { return t.create }))
		t.percentiles(p, "StartContainer", pick(func(t timings) time.Duration { return t.start }))
		t.percentiles(p, "stop", pick(func(t timings) time.Duration { return t.stop }))
		t.percentiles(p, "remove", pick(func(t timings) time.Duration { return t.remove }))
		t.set(p, "CPU per pod up", "ms", milli(cpuUp[p])/float64(o.pods))
		t.set(p, "CPU per pod down", "ms", milli(cpuDown[p])/float64(o.pods))
	}
	return t, nil
}

// parallelPods counts pods per second, ten at a time, up and down.
func parallelPods(ctx context.Context, o options, peers []*peer, r *registry) (*table, error) {
	t := &table{title: fmt.Sprintf("Ten at a time (%d pods)", o.parallel)}
	for _, p := range peers {
		pods := make([]pod, o.parallel)
		begin := time.Now()
		err := inParallel(o.parallel, func(i int) (err error) {
			pods[i], _, err = p.up(ctx, r.image("bench:1"), fmt.Sprintf("par-%d", i))
			return err
		})
		if err != nil {
			return nil, fmt.Errorf("%s: %w", p.name, err)
		}
		t.setRate(p, "pods up", "1/s", float64(o.parallel)/time.Since(begin).Seconds())
		begin = time.Now()
		if err := inParallel(o.parallel, func(i int) error { return p.down(ctx, pods[i]) }); err != nil {
			return nil, fmt.Errorf("%s: %w", p.name, err)
		}
		t.setRate(p, "pods down", "1/s", float64(o.parallel)/time.Since(begin).Seconds())
	}
	return t, nil
}

// execs times ExecSync of a command that does nothing.
func execs(ctx context.Context, o options, peers []*peer, r *registry) (*table, error) {
	t := &table{title: fmt.Sprintf("ExecSync (%d)", o.execs)}
	pods := map[*peer]pod{}
	for _, p := range peers {
		d, _, err := p.up(ctx, r.image("bench:1"), "exec")
		if err != nil {
			return nil, fmt.Errorf("%s: %w", p.name, err)
		}
		pods[p] = d
	}
	samples := map[*peer][]time.Duration{}
	for i := range o.execs + 3 {
		for _, p := range peers {
			begin := time.Now()
			if err := p.exec(ctx, pods[p], "/bin/busybox", "true"); err != nil {
				return nil, fmt.Errorf("%s: %w", p.name, err)
			}
			if i >= 3 {
				samples[p] = append(samples[p], time.Since(begin))
			}
		}
	}
	for _, p := range peers {
		t.percentiles(p, "ExecSync", samples[p])
		before, err := machineCPU()
		if err != nil {
			return nil, err
		}
		begin := time.Now()
		if err := inParallel(o.execs, func(int) error { return p.exec(ctx, pods[p], "/bin/busybox", "true") }); err != nil {
			return nil, fmt.Errorf("%s: %w", p.name, err)
		}
		t.setRate(p, "ExecSync, ten at a time", "1/s", float64(o.execs)/time.Since(begin).Seconds())
		after, err := machineCPU()
		if err != nil {
			return nil, err
		}
		t.set(p, "CPU per ExecSync", "ms", milli(after-before)/float64(o.execs))
		if err := p.down(ctx, pods[p]); err != nil {
			return nil, fmt.Errorf("%s: %w", p.name, err)
		}
	}
	return t, nil
}

// logThroughput times a container that writes 128-byte lines until its log is complete.
func logThroughput(ctx context.Context, o options, peers []*peer, r *registry) (*table, error) {
	t := &table{title: fmt.Sprintf("Log of %d MiB in lines of 128 bytes", o.logMiB)}
	line := "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcde"
	script := fmt.Sprintf("/bin/busybox yes %s | /bin/busybox head -c %d", line, o.logMiB<<20)
	for _, p := range peers {
		begin := time.Now()
		d, _, err := p.up(ctx, r.image("bench:1"), "log", "/bin/busybox", "sh", "-c", script)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", p.name, err)
		}
		if err := p.awaitExit(ctx, d); err != nil {
			return nil, fmt.Errorf("%s: %w", p.name, err)
		}
		took := time.Since(begin)
		file := filepath.Join(p.logs, "log", "c", "0.log")
		info, err := os.Stat(file)
		if err != nil {
			return nil, err
		}
		if info.Size() < int64(o.logMiB)<<20 {
			return nil, fmt.Errorf("%s: the log has %d bytes, want more than were written", p.name, info.Size())
		}
		t.setRate(p, "log", "MiB/s", float64(o.logMiB)/took.Seconds())
		if err := p.down(ctx, d); err != nil {
			return nil, fmt.Errorf("%s: %w", p.name, err)
		}
		if err := os.Remove(file); err != nil {
			return nil, err
		}
	}
	return t, nil
}

func (p *peer) awaitExit(ctx context.Context, d pod) error {
	for {
		status, err := p.runtime.ContainerStatus(ctx, &runtimeapi.ContainerStatusRequest{ContainerId: d.container})
		if err != nil {
			return err
		}
		if status.Status.State == runtimeapi.ContainerState_CONTAINER_EXITED {
			if status.Status.ExitCode != 0 {
				return fmt.Errorf("the container ended with code %d", status.Status.ExitCode)
			}
			return nil
		}
		if err := sleep(ctx, 10*time.Millisecond); err != nil {
			return err
		}
	}
}

// pulls times the pull of a large image from the loopback registry.
func pulls(ctx context.Context, o options, peers []*peer, r *registry) (*table, error) {
	t := &table{title: fmt.Sprintf("Pull of %d MiB, 6 gzip layers (median of 3)", o.pullMiB)}
	samples := map[*peer][]time.Duration{}
	for range 3 {
		for _, p := range peers {
			begin := time.Now()
			if err := p.pull(ctx, r.image("big:1")); err != nil {
				return nil, fmt.Errorf("%s: %w", p.name, err)
			}
			samples[p] = append(samples[p], time.Since(begin))
			_, err := p.images.RemoveImage(ctx, &runtimeapi.RemoveImageRequest{Image: &runtimeapi.ImageSpec{Image: r.image("big:1")}})
			if err != nil {
				return nil, fmt.Errorf("%s: RemoveImage: %w", p.name, err)
			}
		}
	}
	for _, p := range peers {
		middle := max(min(samples[p][0], samples[p][1]), min(max(samples[p][0], samples[p][1]), samples[p][2]))
		t.set(p, "pull", "s", middle.Seconds())
	}
	return t, nil
}

// settle is how long runtimes have to release the resources of earlier work, so that these do not
// count for the pods, or against them.
const settle = 30 * time.Second

// density measures memory per pod, lists, and a restart with many pods.
func density(ctx context.Context, o options, peers []*peer, r *registry) (*table, error) {
	t := &table{title: fmt.Sprintf("With %d pods", o.density)}
	for _, p := range peers {
		if err := sleep(ctx, settle); err != nil {
			return nil, err
		}
		empty, err := p.memory()
		if err != nil {
			return nil, err
		}
		pods := make([]pod, o.density)
		err = inParallel(o.density, func(i int) (err error) {
			pods[i], _, err = p.up(ctx, r.image("bench:1"), fmt.Sprintf("mem-%d", i))
			return err
		})
		if err != nil {
			return nil, fmt.Errorf("%s: %w", p.name, err)
		}
		if err := sleep(ctx, settle); err != nil {
			return nil, err
		}
		full, err := p.memory()
		if err != nil {
			return nil, err
		}
		t.set(p, "PSS before the first of these pods", "MiB", float64(empty)/(1<<20))
		t.set(p, "PSS with all", "MiB", float64(full)/(1<<20))
		t.set(p, "PSS per pod", "MiB", float64(full-empty)/(1<<20)/float64(o.density))
		if err := listTimes(ctx, t, p); err != nil {
			return nil, err
		}
		if err := p.stop(); err != nil {
			return nil, err
		}
		begin := time.Now()
		if err := p.launch(); err != nil {
			return nil, err
		}
		if err := p.firstList(ctx, o.density); err != nil {
			return nil, fmt.Errorf("%s after restart: %w", p.name, err)
		}
		t.set(p, "restart to first ListPodSandbox", "ms", milli(time.Since(begin)))
		if err := inParallel(o.density, func(i int) error { return p.down(ctx, pods[i]) }); err != nil {
			return nil, fmt.Errorf("%s: %w", p.name, err)
		}
	}
	return t, nil
}

func listTimes(ctx context.Context, t *table, p *peer) error {
	calls := []struct {
		name string
		call func() error
	}{
		{"ListPodSandbox", func() error {
			_, err := p.runtime.ListPodSandbox(ctx, &runtimeapi.ListPodSandboxRequest{})
			return err
		}},
		{"ListContainers", func() error {
			_, err := p.runtime.ListContainers(ctx, &runtimeapi.ListContainersRequest{})
			return err
		}},
		{"ListContainerStats", func() error {
			_, err := p.runtime.ListContainerStats(ctx, &runtimeapi.ListContainerStatsRequest{})
			return err
		}},
		{"ListPodSandboxStats", func() error {
			_, err := p.runtime.ListPodSandboxStats(ctx, &runtimeapi.ListPodSandboxStatsRequest{})
			return err
		}},
	}
	for _, c := range calls {
		samples, err := timesOf(c.call)
		if status.Code(err) == codes.Unimplemented {
			continue
		}
		if err != nil {
			return fmt.Errorf("%s: %s: %w", p.name, c.name, err)
		}
		t.percentiles(p, c.name, samples)
	}
	return nil
}

func timesOf(call func() error) (samples []time.Duration, err error) {
	for range 11 {
		begin := time.Now()
		if err := call(); err != nil {
			return nil, err
		}
		samples = append(samples, time.Since(begin))
	}
	return samples, nil
}

// firstList waits for the first list that answers, and requires all pods in it.
func (p *peer) firstList(ctx context.Context, want int) error {
	for {
		list, err := p.runtime.ListPodSandbox(ctx, &runtimeapi.ListPodSandboxRequest{})
		if err != nil {
			if err := sleep(ctx, 5*time.Millisecond); err != nil {
				return err
			}
			continue
		}
		if len(list.Items) < want {
			return fmt.Errorf("%d pods listed, want %d", len(list.Items), want)
		}
		return nil
	}
}

func milli(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }
