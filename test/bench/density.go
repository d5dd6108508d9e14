package main

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// settle is how long runtimes have to release the resources of earlier work, so that these do not
// count for the pods, or against them.
const settle = 15 * time.Second

// density measures memory per pod, lists, exec probes and a restart with many pods. At each number of
// pods every runtime has its turn, alone on the machine.
func density(count int) sectionFunc {
	return func(ctx context.Context, _ options, peers []*peer, r *registry) (*table, error) {
		t := &table{Title: fmt.Sprintf("With %d pods", count), Pods: count}
		for _, p := range peers {
			if err := dense(ctx, t, p, r, count); err != nil {
				return nil, fmt.Errorf("%s: %w", p.name, err)
			}
		}
		return t, nil
	}
}

func dense(ctx context.Context, t *table, p *peer, r *registry, count int) error {
	if err := sleep(ctx, settle); err != nil {
		return err
	}
	empty, err := p.memory()
	if err != nil {
		return err
	}
	pods := make([]pod, count)
	begin := time.Now()
	err = inParallel(count, func(i int) (err error) {
		pods[i], _, err = p.up(ctx, r.image("bench:1"), fmt.Sprintf("mem-%d-%d", count, i))
		return err
	})
	if err != nil {
		return err
	}
	t.rate(p.name, "pods up, ten at a time", "1/s", float64(count)/time.Since(begin).Seconds())
	if err := sleep(ctx, settle); err != nil {
		return err
	}
	full, err := p.memory()
	if err != nil {
		return err
	}
	t.mean(p.name, "PSS before the first of these pods", "MiB", float64(empty)/(1<<20))
	t.mean(p.name, "PSS with all", "MiB", float64(full)/(1<<20))
	t.mean(p.name, "PSS per pod", "MiB", float64(full-empty)/(1<<20)/float64(count))
	if err := listTimes(ctx, t, p); err != nil {
		return err
	}
	if err := probes(ctx, t, p, pods); err != nil {
		return err
	}
	if err := p.stop(); err != nil {
		return err
	}
	begin = time.Now()
	if err := p.launch(); err != nil {
		return err
	}
	if err := p.firstList(ctx, count); err != nil {
		return fmt.Errorf("after restart: %w", err)
	}
	t.mean(p.name, "restart to first ListPodSandbox", "ms", milli(time.Since(begin)))
	return inParallel(count, func(i int) error { return p.down(ctx, pods[i]) })
}

// A list is called mostLists times, or as often as listTime allows, and leastLists times at least.
const (
	leastLists = 11
	mostLists  = 201
	listTime   = 2 * time.Second
)

func listTimes(ctx context.Context, t *table, p *peer) error {
	calls := []struct {
		name string
		call func() error
	}{
		// It does nothing, so its time is that of gRPC and the client, which is part of the other calls, too.
		{"Version", func() error {
			_, err := p.runtime.Version(ctx, &runtimeapi.VersionRequest{})
			return err
		}},
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
		first := time.Now()
		for i := 0; i < leastLists || i < mostLists && time.Since(first) < listTime; i++ {
			begin := time.Now()
			err := c.call()
			if status.Code(err) == codes.Unimplemented {
				break // the row shows "-"
			}
			if err != nil {
				return fmt.Errorf("%s: %w", c.name, err)
			}
			t.sample(p.name, c.name, time.Since(begin))
		}
	}
	return nil
}

// probeSeconds is how long pods are probed.
const probeSeconds = 10

// probes runs one command in each pod every second, as a kubelet's exec probes do. A probe that is due
// while the last one of its pod still runs is left out.
func probes(ctx context.Context, t *table, p *peer, pods []pod) error {
	before, err := machineCPU()
	if err != nil {
		return err
	}
	begin := time.Now()
	var done atomic.Int64
	var all sync.WaitGroup
	failed := make(chan error, len(pods))
	for i, d := range pods {
		all.Go(func() {
			next := begin.Add(time.Duration(i) * time.Second / time.Duration(len(pods)))
			for time.Since(begin) < probeSeconds*time.Second {
				if err := sleep(ctx, time.Until(next)); err != nil {
					failed <- err
					return
				}
				if err := p.exec(ctx, d, "/bin/busybox", "true"); err != nil {
					failed <- err
					return
				}
				done.Add(1)
				for next = next.Add(time.Second); time.Until(next) < 0; {
					next = next.Add(time.Second)
				}
			}
		})
	}
	all.Wait()
	close(failed)
	if err := <-failed; err != nil {
		return fmt.Errorf("probe: %w", err)
	}
	after, err := machineCPU()
	if err != nil {
		return err
	}
	t.rate(p.name, "exec probes, one a second and pod", "1/s", float64(done.Load())/time.Since(begin).Seconds())
	t.mean(p.name, "CPU per exec probe", "ms", milli(after-before)/float64(max(done.Load(), 1)))
	return nil
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
