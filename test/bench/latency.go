package main

import (
	"context"
	"fmt"
	"os/exec"
	"path/filepath"
	"time"
)

// idleGap is how long nothing happens before each pod of the row "after idle". The kernel makes the
// first process that changes a cgroup wait once nothing has changed cgroups for a while.
const idleGap = 500 * time.Millisecond

// latency times each call of a pod's life, one pod after the other, and the floor's pod.
func latency(ctx context.Context, o options, peers []*peer, r *registry) (*table, error) {
	t := &table{Title: fmt.Sprintf("One pod after the other (%d pods)", o.pods)}
	const warmUps = 3
	for i := range o.pods + warmUps {
		for _, p := range peers {
			if err := onePod(ctx, t, p, r, fmt.Sprintf("lat-%d", i), i < warmUps); err != nil {
				return nil, fmt.Errorf("%s: %w", p.name, err)
			}
		}
		if err := floorPod(ctx, t, o, i < warmUps); err != nil {
			return nil, fmt.Errorf("floor: %w", err)
		}
	}
	for i := range o.idlePods {
		for _, p := range peers {
			if err := sleep(ctx, idleGap); err != nil {
				return nil, err
			}
			made, timed, err := p.up(ctx, r.image("bench:1"), fmt.Sprintf("idle-%d", i))
			if err != nil {
				return nil, fmt.Errorf("%s: %w", p.name, err)
			}
			t.sample(p.name, "pod up after 500 ms idle", timed.up())
			if err := p.down(ctx, made); err != nil {
				return nil, fmt.Errorf("%s: %w", p.name, err)
			}
		}
	}
	return t, nil
}

func onePod(ctx context.Context, t *table, p *peer, r *registry, name string, warmUp bool) error {
	before, err := machineCPU()
	if err != nil {
		return err
	}
	made, timed, err := p.up(ctx, r.image("bench:1"), name)
	if err != nil {
		return err
	}
	between, err := machineCPU()
	if err != nil {
		return err
	}
	if err := p.timedDown(ctx, made, &timed); err != nil {
		return err
	}
	after, err := machineCPU()
	if err != nil || warmUp {
		return err
	}
	t.sample(p.name, "pod up", timed.up())
	t.sample(p.name, "RunPodSandbox", timed.run)
	t.sample(p.name, "CreateContainer", timed.create)
	t.sample(p.name, "StartContainer", timed.start)
	t.sample(p.name, "stop", timed.stop)
	t.sample(p.name, "remove", timed.remove)
	t.mean(p.name, "CPU per pod up", "ms", milli(between-before))
	t.mean(p.name, "CPU per pod down", "ms", milli(after-between))
	return nil
}

func floorPod(ctx context.Context, t *table, o options, warmUp bool) error {
	up, stop, remove, err := o.floor.pod(ctx)
	if err != nil || warmUp {
		return err
	}
	t.sample(floorName, "pod up", up)
	t.sample(floorName, "stop", stop)
	t.sample(floorName, "remove", remove)
	begin := time.Now()
	if err := exec.CommandContext(ctx, filepath.Join(o.bin, "nothing")).Run(); err != nil {
		return err
	}
	t.sample(floorName, "start and end of an empty Go program", time.Since(begin))
	return nil
}
