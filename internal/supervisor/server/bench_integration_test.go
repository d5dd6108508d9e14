//go:build integration

package server_test

import (
	"bytes"
	"slices"
	"testing"
	"time"

	"github.com/berthrun/berth/internal/supervisor"
)

// TestMeasure prints how long the parts of a container's life take. It checks only the order of
// magnitude.
func TestMeasure(t *testing.T) {
	h := newHost(t).keep()
	var create, start, execs, remove []time.Duration
	timed := func(to *[]time.Duration, fn func() error) {
		t.Helper()
		before := time.Now()
		if err := fn(); err != nil {
			t.Fatal(err)
		}
		*to = append(*to, time.Since(before))
	}
	req := h.bundle("measured", []string{"/bin/sleep", "1000"})
	const rounds = 100
	for range rounds {
		timed(&create, func() error { _, err := h.client.Create(h.ctx(), req); return err })
		timed(&start, func() error { _, err := h.client.Start(h.ctx(), "measured"); return err })
		timed(&execs, func() error {
			var out bytes.Buffer
			_, err := h.client.Exec(h.ctx(), execRequest("measured", "echo hi"), supervisor.Streams{Stdout: &out})
			return err
		})
		timed(&remove, func() error { return h.client.Remove(h.ctx(), "measured") })
	}
	for name, all := range map[string][]time.Duration{"create": create, "start": start, "exec": execs, "remove": remove} {
		slices.Sort(all)
		t.Logf("%s: p50 %v, p99 %v", name, all[len(all)/2].Round(10*time.Microsecond), all[len(all)*99/100].Round(10*time.Microsecond))
		if all[len(all)/2] > time.Second {
			t.Errorf("%s takes a second", name)
		}
	}
	pid := h.pid()
	t.Logf("supervisor after %d rounds: %s", rounds, memory(t, pid))
	time.Sleep(5 * time.Second) // it returns memory when idle
	t.Logf("and when quiet: %s", memory(t, pid))
}
