package native

import (
	"context"
	"sync/atomic"
	"testing"

	"github.com/berthrun/berth/internal/supervisor"
	"github.com/berthrun/berth/internal/sys/cgroup"
)

// TestCgroupsAreReadOnce: for a container without a cgroup the engine does not list all containers
// of the supervisor at every poll.
func TestCgroupsAreReadOnce(t *testing.T) {
	lists := 0
	c := &cgroups{
		list: func(context.Context) ([]supervisor.Container, error) {
			lists++
			return []supervisor.Container{{ID: "runs", CgroupPaths: map[string]string{"": "/runs"}}, {ID: "ended"}}, nil
		},
		exists: func(id string) bool { return id != "removed" },
		known:  map[string]cgroup.Paths{},
	}
	for range 3 {
		groups, err := c.of(t.Context(), []string{"runs", "ended", "cannot start"})
		if err != nil || len(groups) != 1 || groups["runs"][""] != "/runs" {
			t.Fatalf("%v, %v", groups, err)
		}
	}
	if lists != 1 {
		t.Errorf("the supervisor was asked %d times", lists)
	}
	if _, err := c.of(t.Context(), []string{"removed"}); err != nil {
		t.Fatal(err)
	}
	for _, id := range []string{"runs", "ended", "cannot start"} {
		c.forget(id)
	}
	if len(c.known) != 0 {
		t.Errorf("known of nobody: %v", c.known)
	}
}

// TestCgroupsOfContainersRemovedMeanwhile: an answer from before the removal does not add the
// container again.
func TestCgroupsOfContainersRemovedMeanwhile(t *testing.T) {
	var gone atomic.Bool
	c := &cgroups{exists: func(string) bool { return !gone.Load() }, known: map[string]cgroup.Paths{}}
	c.list = func(context.Context) ([]supervisor.Container, error) {
		answer := []supervisor.Container{{ID: "c", CgroupPaths: map[string]string{"": "/c"}}}
		gone.Store(true)
		c.forget("c")
		return answer, nil
	}
	groups, err := c.of(t.Context(), []string{"c"})
	if err != nil || len(groups) != 0 || len(c.known) != 0 {
		t.Errorf("%v, %v; known %v", groups, err, c.known)
	}
}
