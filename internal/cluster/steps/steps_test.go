package steps

import (
	"context"
	"errors"
	"slices"
	"testing"

	"github.com/berthrun/berth/internal/cluster/clustertest"
)

// TestRun: steps run in their order, with jobs in parallel. A step waits for the jobs that it
// depends on.
func TestRun(t *testing.T) {
	f := clustertest.New(t)
	reporter, shown := f.Reporter()
	var ran []string
	note := func(name string) func(context.Context) error {
		return func(context.Context) error { f.Say(&ran, name); return nil }
	}
	begun, first, second := make(chan struct{}), NewJob(), NewJob()
	err := Run(t.Context(), reporter, []Step{
		{Title: "A", Run: note("a")},
		{Job: first, Run: func(context.Context) error { <-begun; f.Say(&ran, "first"); return nil }},
		{Job: second, After: []*Job{first}, Run: note("second")},
		{Title: "skipped", Run: note("skipped"), Skip: true},
		{Title: "B", Run: func(context.Context) error { f.Say(&ran, "b"); close(begun); return nil }},
		{After: []*Job{first, second}, Run: note("c")},
	})
	if err != nil || !slices.Equal(ran, []string{"a", "b", "first", "second", "c"}) || !slices.Equal(*shown, []string{"A", "B"}) {
		t.Errorf("%v, ran %q, shown %q", err, ran, *shown)
	}
}

// TestJobFails: a job that fails stops the steps that depend on it. A step that fails ends all
// jobs.
func TestJobFails(t *testing.T) {
	f := clustertest.New(t)
	reporter, _ := f.Reporter()
	failing, dependent, endless := NewJob(), NewJob(), NewJob()
	why := errors.New("it cannot")
	unwanted := func(context.Context) error { t.Error("a step runs whose job has failed"); return nil }
	err := Run(t.Context(), reporter, []Step{
		{Title: "A", Job: failing, Run: func(context.Context) error { return why }},
		{Job: dependent, After: []*Job{failing}, Run: unwanted},
		{Job: endless, Run: func(ctx context.Context) error { <-ctx.Done(); return context.Cause(ctx) }},
		{Title: "B", After: []*Job{dependent}, Run: unwanted},
	})
	if !errors.Is(err, why) || !endless.Ended() || !errors.Is(endless.err, context.Canceled) {
		t.Errorf("%v; the endless job is over: %v", err, endless.Ended())
	}
}
