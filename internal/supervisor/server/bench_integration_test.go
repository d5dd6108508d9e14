//go:build integration

package server_test

import (
	"bytes"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/berthrun/berth/internal/supervisor"
)

// TestMeasure prints how long the parts of a container's life take, with berth's own init and with
// libcontainer, one after the other. It checks only the order of magnitude.
func TestMeasure(t *testing.T) {
	h := newHost(t).keep()
	took := make(map[string][]time.Duration)
	timed := func(name string, fn func() error) {
		t.Helper()
		before := time.Now()
		if err := fn(); err != nil {
			t.Fatal(err)
		}
		took[name] = append(took[name], time.Since(before))
	}
	requests := map[string]*supervisor.CreateRequest{
		"own":          h.bundle("own", []string{"/bin/sleep", "1000"}),
		"libcontainer": h.bundle("libcontainer", []string{"/bin/sleep", "1000"}, withoutOwnInit),
	}
	const rounds = 50
	for range rounds {
		for id, req := range requests {
			timed("create "+id, func() error { _, err := h.client.Create(h.ctx(), req); return err })
			timed("start "+id, func() error { _, err := h.client.Start(h.ctx(), id); return err })
			timed("exec "+id, func() error {
				var out bytes.Buffer
				_, err := h.client.Exec(h.ctx(), execRequest(id, "echo hi"), supervisor.Streams{Stdout: &out})
				return err
			})
			timed("remove "+id, func() error { return h.client.Remove(h.ctx(), id) })
		}
	}
	for _, name := range slices.Sorted(maps.Keys(took)) {
		all := took[name]
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
