package cluster

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/berthrun/berth/internal/cluster/clustertest"
)

// TestRunSteps: steps run in their order, jobs beside them, and a step waits for the jobs that it
// depends on.
func TestRunSteps(t *testing.T) {
	f := clustertest.New(t)
	reporter, shown := f.Reporter()
	var ran []string
	note := func(name string) func(context.Context) error {
		return func(context.Context) error { f.Say(&ran, name); return nil }
	}
	begun, first, second := make(chan struct{}), newJob(), newJob()
	err := runSteps(t.Context(), reporter, []step{
		{title: "A", run: note("a")},
		{job: first, run: func(context.Context) error { <-begun; f.Say(&ran, "first"); return nil }},
		{job: second, after: []*job{first}, run: note("second")},
		{title: "skipped", run: note("skipped"), skip: true},
		{title: "B", run: func(context.Context) error { f.Say(&ran, "b"); close(begun); return nil }},
		{after: []*job{first, second}, run: note("c")},
	})
	if err != nil || !slices.Equal(ran, []string{"a", "b", "first", "second", "c"}) || !slices.Equal(*shown, []string{"A", "B"}) {
		t.Errorf("%v, ran %q, shown %q", err, ran, *shown)
	}
}

// TestJobFails: a job that fails stops what depends on it, and a step that fails ends all jobs.
func TestJobFails(t *testing.T) {
	f := clustertest.New(t)
	reporter, _ := f.Reporter()
	failing, dependent, endless := newJob(), newJob(), newJob()
	why := errors.New("it cannot")
	unwanted := func(context.Context) error { t.Error("a step runs whose job has failed"); return nil }
	err := runSteps(t.Context(), reporter, []step{
		{title: "A", job: failing, run: func(context.Context) error { return why }},
		{job: dependent, after: []*job{failing}, run: unwanted},
		{job: endless, run: func(ctx context.Context) error { <-ctx.Done(); return context.Cause(ctx) }},
		{title: "B", after: []*job{dependent}, run: unwanted},
	})
	if !errors.Is(err, why) || !endless.over() || !errors.Is(endless.err, context.Canceled) {
		t.Errorf("%v; the endless job is over: %v", err, endless.over())
	}
}

// TestStepsOfCreate: each job comes before the steps that depend on it, whatever is left out.
func TestStepsOfCreate(t *testing.T) {
	for _, text := range []string{"", twoWorkers, threePlanes, "networking: {disableDefaultCNI: true}\n", "registry: {enabled: true, port: 0}\n"} {
		c, _ := clusters(clustertest.New(t))
		m := &createRun{builder: c.newBuilder(clustertest.Describe(t, text))}
		before := map[*job]bool{}
		for i, s := range m.steps() {
			if s.skip {
				continue
			}
			for _, j := range s.after {
				if !before[j] {
					t.Errorf("%q: step %d, %q, depends on a job that does not come before it", strings.TrimSpace(text), i, s.title)
				}
			}
			before[s.job] = true
		}
	}
}
