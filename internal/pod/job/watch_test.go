package job

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"

	"github.com/berthrun/berth/internal/errs"
)

// stages reads updates until a job has ended, as "ID: STAGE" and "ID: RESULT: ERROR".
func stages(t *testing.T, w *Watch, ends int) []string {
	t.Helper()
	var all []string
	for ends > 0 {
		updates, err := w.Next(t.Context())
		if err != nil {
			t.Fatalf("after %q: %v", all, err)
		}
		for _, u := range updates {
			line := u.ID + ": " + u.Stage
			if u.Ended {
				line = fmt.Sprintf("%s: %s: %v", u.ID, u.Result, u.Err)
				ends--
			}
			all = append(all, line)
		}
	}
	return all
}

// TestWatch: a watch begins with the jobs that run, and continues with each stage and each end.
func TestWatch(t *testing.T) {
	table := newTable(func(*Job, *Request) Conflict { return After }, Limits{})
	goOn := make(chan struct{})
	reached := make(chan struct{})
	if _, err := table.Enter(t.Context(), &Request{Key: "a", ID: "1", Run: func(_ context.Context, j *Job) (string, error) {
		j.Stage("early", "")
		close(reached)
		<-goOn
		j.Stage("late", "")
		return "", nil
	}}); err != nil {
		t.Fatal(err)
	}
	<-reached
	w, err := table.Watch()
	if err != nil {
		t.Fatal(err)
	}
	defer w.Cancel()
	close(goOn)
	if got := fmt.Sprint(stages(t, w, 1)); got != "[1: early 1: late 1: ok: <nil>]" {
		t.Errorf("the updates are %s", got)
	}
	_, err = table.Do(t.Context(), &Request{Key: "b", ID: "2", Run: func(context.Context, *Job) (string, error) { return "", errs.NotFound }})
	if !errors.Is(err, errs.NotFound) {
		t.Fatal(err)
	}
	if got := fmt.Sprint(stages(t, w, 1)); got != "[2: begin 2: failed: not found]" {
		t.Errorf("the updates are %s", got)
	}
	if len(table.watches.all) != 1 {
		t.Errorf("%d watches", len(table.watches.all))
	}
	w.Cancel()
	if n := table.watches.any.Load(); n != 0 || len(table.watches.all) != 0 {
		t.Errorf("%d watches are left, %d counted", len(table.watches.all), n)
	}
}

// TestWatchEnds: a watch that reads too slowly ends, and so does each one at the end of the daemon.
func TestWatchEnds(t *testing.T) {
	table := newTable(func(*Job, *Request) Conflict { return After }, Limits{})
	slow, err := table.Watch()
	if err != nil {
		t.Fatal(err)
	}
	for range maxUpdates + 1 {
		table.watches.publish(Update{})
	}
	if _, err := slow.Next(t.Context()); !errors.Is(err, errs.Exhausted) {
		t.Errorf("the slow one: %v", err)
	}
	other, err := table.Watch()
	if err != nil {
		t.Fatal(err)
	}
	table.CloseWatches()
	if _, err := other.Next(t.Context()); !errors.Is(err, ErrShutdown) {
		t.Errorf("the other one: %v", err)
	}
	if _, err := table.Watch(); !errors.Is(err, ErrShutdown) {
		t.Errorf("a new one: %v", err)
	}
	slow.Cancel()
	if n := table.watches.any.Load(); n != 0 {
		t.Errorf("%d watches are counted", n)
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(errs.Deadline)
	if _, err := (&Watch{of: &table.watches}).Next(ctx); !errors.Is(err, errs.Deadline) {
		t.Errorf("a reader that has left: %v", err)
	}
}

// TestCancel: a job is cancelled by id, prefix or key, and its end is awaited.
func TestCancel(t *testing.T) {
	cause := fmt.Errorf("somebody: %w", errs.Unavailable)
	all := func(Info) error { return nil }
	synctest.Test(t, func(t *testing.T) {
		for name, id := range map[string]string{"id": "abc1", "prefix": "abc", "key": "default/a"} {
			table := newTable(func(*Job, *Request) Conflict { return After }, Limits{})
			undone := false
			first, err := table.Enter(t.Context(), &Request{Key: "default/a", ID: "abc1", Kind: "run", Run: func(ctx context.Context, j *Job) (string, error) {
				j.Stage("works", "the world")
				<-ctx.Done()
				undone = true
				return "", context.Cause(ctx)
			}})
			if err != nil {
				t.Fatal(err)
			}
			second, err := table.Enter(t.Context(), &Request{Key: "default/a", ID: "abc1", Kind: "start", Run: func(context.Context, *Job) (string, error) { return "", nil }})
			if err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
			before, end, err := table.Cancel(t.Context(), id, cause, all)
			if err != nil || before.Stage != "works" || before.Kind != "run" || !end.Ended || end.Result != ResultCancelled || !errors.Is(end.Err, cause) || !undone {
				t.Errorf("%s: %+v, %+v, %v, undone %v", name, before, end, err, undone)
			}
			<-first.Done()
			if <-second.Done(); second.outcome() != ResultOK {
				t.Errorf("%s: the job that waited has ended with %s", name, second.outcome())
			}
		}
	})
}

func TestCancelRefuses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		table := newTable(func(*Job, *Request) Conflict { return After }, Limits{})
		goOn := make(chan struct{})
		run := func(context.Context, *Job) (string, error) { <-goOn; return "", nil }
		for key, id := range map[string]string{"a": "abc1", "b": "abc2", "c": "x"} {
			if _, err := table.Enter(t.Context(), &Request{Key: key, ID: id, Kind: "run", Run: run}); err != nil {
				t.Fatal(err)
			}
		}
		synctest.Wait()
		no := fmt.Errorf("no: %w", errs.State)
		for id, want := range map[string]error{"abc": errs.Invalid, "": errs.Invalid, "zz": errs.NotFound, "x": no} {
			_, _, err := table.Cancel(t.Context(), id, errs.Unavailable, func(Info) error { return no })
			if !errors.Is(err, want) {
				t.Errorf("%q: %v, want %v", id, err, want)
			}
		}
		for _, j := range table.Running() {
			if j.Cancelled() {
				t.Errorf("job %s is cancelled", j.Key)
			}
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if _, _, err := table.Cancel(ctx, "x", errs.Unavailable, func(Info) error { return nil }); !errors.Is(err, errs.Deadline) {
			t.Errorf("a job that does not end: %v", err)
		}
		close(goOn)
		if err := table.Close(t.Context()); err != nil {
			t.Error(err)
		}
	})
}
