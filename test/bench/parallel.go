package main

import (
	"context"
	"fmt"
	"time"
)

// parallelRounds is how often the runtimes take turns in sections whose work is split.
const parallelRounds = 5

// parallelPods counts pods per second, ten at a time, up and down.
func parallelPods(ctx context.Context, o options, peers []*peer, r *registry) (*table, error) {
	t := &table{Title: fmt.Sprintf("Ten at a time (%d pods)", o.parallel)}
	n := max(o.parallel/parallelRounds, 1)
	for round := range parallelRounds {
		for _, p := range peers {
			pods := make([]pod, n)
			begin := time.Now()
			err := inParallel(n, func(i int) (err error) {
				pods[i], _, err = p.up(ctx, r.image("bench:1"), fmt.Sprintf("par-%d-%d", round, i))
				return err
			})
			if err != nil {
				return nil, fmt.Errorf("%s: %w", p.name, err)
			}
			t.rate(p.name, "pods up", "1/s", float64(n)/time.Since(begin).Seconds())
			begin = time.Now()
			if err := inParallel(n, func(i int) error { return p.down(ctx, pods[i]) }); err != nil {
				return nil, fmt.Errorf("%s: %w", p.name, err)
			}
			t.rate(p.name, "pods down", "1/s", float64(n)/time.Since(begin).Seconds())
		}
	}
	return t, nil
}
