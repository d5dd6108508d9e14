package main

import (
	"context"
	"fmt"
	"time"
)

// execs times ExecSync of a command that does nothing.
func execs(ctx context.Context, o options, peers []*peer, r *registry) (*table, error) {
	t := &table{Title: fmt.Sprintf("ExecSync (%d)", o.execs)}
	pods := map[*peer]pod{}
	for _, p := range peers {
		made, _, err := p.up(ctx, r.image("bench:1"), "exec")
		if err != nil {
			return nil, fmt.Errorf("%s: %w", p.name, err)
		}
		pods[p] = made
	}
	for i := range o.execs + 3 {
		for _, p := range peers {
			took, err := p.timedExec(ctx, pods[p])
			if err != nil {
				return nil, fmt.Errorf("%s: %w", p.name, err)
			}
			if i >= 3 { // the first ones warm up
				t.sample(p.name, "ExecSync", took)
			}
		}
	}
	for range o.idlePods {
		for _, p := range peers {
			if err := sleep(ctx, idleGap); err != nil {
				return nil, err
			}
			took, err := p.timedExec(ctx, pods[p])
			if err != nil {
				return nil, fmt.Errorf("%s: %w", p.name, err)
			}
			t.sample(p.name, "ExecSync after 500 ms idle", took)
		}
	}
	for range parallelRounds {
		for _, p := range peers {
			if err := execsTogether(ctx, t, p, pods[p], max(o.execs/parallelRounds, 1)); err != nil {
				return nil, fmt.Errorf("%s: %w", p.name, err)
			}
		}
	}
	for _, p := range peers {
		if err := p.down(ctx, pods[p]); err != nil {
			return nil, fmt.Errorf("%s: %w", p.name, err)
		}
	}
	return t, nil
}

func (p *peer) timedExec(ctx context.Context, d pod) (time.Duration, error) {
	begin := time.Now()
	err := p.exec(ctx, d, "/bin/busybox", "true")
	return time.Since(begin), err
}

func execsTogether(ctx context.Context, t *table, p *peer, d pod, n int) error {
	before, err := machineCPU()
	if err != nil {
		return err
	}
	begin := time.Now()
	if err := inParallel(n, func(int) error { return p.exec(ctx, d, "/bin/busybox", "true") }); err != nil {
		return err
	}
	t.rate(p.name, "ExecSync, ten at a time", "1/s", float64(n)/time.Since(begin).Seconds())
	after, err := machineCPU()
	if err != nil {
		return err
	}
	t.mean(p.name, "CPU per ExecSync", "ms", milli(after-before)/float64(n))
	return nil
}
