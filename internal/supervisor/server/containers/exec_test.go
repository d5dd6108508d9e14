package containers

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sync/semaphore"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/supervisor/server/heldfiles"
	"github.com/berthrun/berth/internal/supervisor/server/ociruntime"
	"github.com/berthrun/berth/internal/supervisor/server/record"
)

// TestCancelledCreateClaimsNothing: a Remove that follows the cancellation of a create has found nothing, so the create
// makes nothing.
func TestCancelledCreateClaimsNothing(t *testing.T) {
	log := slog.New(slog.DiscardHandler)
	s := &Set{opts: Options{StateDir: t.TempDir()}, log: log, held: heldfiles.New(nil, log), containers: map[string]*Container{}}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := s.claimFor(ctx, record.Container{ID: "box"}); !errors.Is(err, context.Canceled) {
		t.Errorf("a cancelled create claims its ID: %v", err)
	}
	if _, err := s.Find("box"); !errors.Is(err, errs.NotFound) {
		t.Errorf("a container that nobody creates: %v", err)
	}
	if _, err := s.claimFor(t.Context(), record.Container{ID: "box"}); err != nil {
		t.Errorf("the next create: %v", err)
	}
}

// TestIDOfAnExecThatWasNotStarted: the caller gets an error and retries with the same id while the
// supervisor still completes the first request. Both use the same record.
func TestIDOfAnExecThatWasNotStarted(t *testing.T) {
	log := slog.New(slog.DiscardHandler)
	s := &Set{opts: Options{StateDir: t.TempDir()}, log: log, held: heldfiles.New(nil, log)}
	c := &Container{id: "box", set: s, execs: map[string]*Execution{}}
	if err := os.MkdirAll(s.dir(c.id), 0o700); err != nil {
		t.Fatal(err)
	}
	for range 200 {
		old := c.newExecution("one")
		old.err = fmt.Errorf("it did not begin: %w", errs.NotFound)
		close(old.done)
		c.execs[old.id] = old
		if err := old.write(); err != nil {
			t.Fatal(err)
		}
		var answered sync.WaitGroup
		answered.Go(old.remove)
		e, err := c.claimExec("one")
		if err != nil {
			t.Fatalf("the id is not free: %v", err)
		}
		if err := e.write(); err != nil {
			t.Fatal(err)
		}
		answered.Wait()
		if _, err := os.Stat(e.path()); err != nil {
			t.Fatalf("the record of the second went with the first: %v", err)
		}
		if _, err := c.claimExec("one"); !errors.Is(err, errs.Exists) {
			t.Fatalf("an exec under way is begun again: %v", err)
		}
		e.remove()
		if _, err := os.Stat(e.path()); !errors.Is(err, os.ErrNotExist) || len(c.execs) != 0 {
			t.Fatalf("left behind: %v, %v", err, c.execs)
		}
	}
}

// TestOpenExecThatItsRuntimeReaps: a shim reaps a short command at any time, also between the two steps with which the
// supervisor opens it. That does not fail the exec.
func TestOpenExecThatItsRuntimeReaps(t *testing.T) {
	c := &Container{id: "box"}
	for range 100 {
		command := exec.CommandContext(t.Context(), "true")
		if err := command.Start(); err != nil {
			t.Fatal(err)
		}
		reaped := make(chan error, 1)
		go func() { reaped <- command.Wait() }()
		for open := true; open; {
			e := c.newExecution("one")
			if err := e.open(command.Process.Pid); err != nil {
				t.Fatal(err)
			}
			if open = e.pidfd != nil; open {
				e.pidfd.Close()
			} else if e.init != nil {
				t.Fatal("an identity without a process")
			}
		}
		if err := <-reaped; err != nil {
			t.Fatal(err)
		}
	}
}

// TestAdoptExecWithoutACode: an exec that has ended with a code that could not be found out is not watched again:
// its runtime has forgotten it.
func TestAdoptExecWithoutACode(t *testing.T) {
	log := slog.New(slog.DiscardHandler)
	s := &Set{opts: Options{StateDir: t.TempDir()}, log: log, held: heldfiles.New(nil, log)}
	if err := os.MkdirAll(s.dir("box"), 0o700); err != nil {
		t.Fatal(err)
	}
	ended := (&Container{id: "box", set: s}).newExecution("one")
	ended.unknown, ended.began = true, true
	if err := ended.write(); err != nil {
		t.Fatal(err)
	}
	c := &Container{id: "box", set: s, execs: map[string]*Execution{}}
	c.adoptExecs(t.Context())
	e := c.execs["one"]
	if e == nil || !isClosed(e.done) || !errors.Is(e.err, errs.Unavailable) {
		t.Fatalf("adopted: %+v", e)
	}
	if err := e.write(); err != nil {
		t.Fatal(err)
	}
	var r record.Exec
	if err := record.ReadJSON(e.path(), &r); err != nil || !r.Unknown || r.Code != nil {
		t.Errorf("record: %+v %v", r, err)
	}
	e.remove()
}

// distant is a runtime that knows more of exits than the kernel.
type distant struct {
	runtime
	flushed time.Time
}

func (*distant) Local() bool { return false }

func (d *distant) Flush(context.Context, *ociruntime.Watched) (*ociruntime.Ended, error) {
	d.flushed = time.Now()
	return &ociruntime.Ended{}, nil
}

// TestEndWaitsForExecs: a shim forgets the execs of a container with the init. The end of the container waits until their
// codes are recorded, and not for one that does not end.
func TestEndWaitsForExecs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := &Container{id: "box", set: &Set{stopping: t.Context()}, execs: map[string]*Execution{}}
		for i := range 3 {
			e := c.newExecution(fmt.Sprint("exec", i))
			c.execs[e.id] = e
			time.AfterFunc(time.Duration(i)*time.Second, func() { close(e.done) })
		}
		for _, want := range []time.Duration{2 * time.Second, execsTimeout} {
			runtime, began := &distant{}, time.Now()
			if _, err := c.flush(runtime); err != nil {
				t.Fatal(err)
			}
			if waited := runtime.flushed.Sub(began); waited != want {
				t.Errorf("waited %v for execs, want %v", waited, want)
			}
			c.execs["stuck"] = c.newExecution("stuck")
		}
	})
}

func TestExecIDs(t *testing.T) {
	for id, valid := range map[string]bool{
		"": false, "a": true, "Az09_-": true, strings.Repeat("a", 128): true, strings.Repeat("a", 129): false,
		"a/b": false, "..": false, "a b": false, "a\n": false, "é": false,
	} {
		if validExecID(id) != valid {
			t.Errorf("%q: valid is %v", id, !valid)
		}
	}
}

// TestExecTurns: an exec waits until one that is starting has begun. One that does not begin, for example in a frozen
// container, keeps the others waiting for a bounded time.
func TestExecTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &Set{execs: semaphore.NewWeighted(1)}
		turn := func() (end func(), waited time.Duration) {
			t.Helper()
			asked := time.Now()
			end, err := s.execTurn(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			return end, time.Since(asked)
		}
		endFirst, waited := turn()
		if waited != 0 {
			t.Errorf("the first waited for %v", waited)
		}
		time.AfterFunc(execTurnTime/4, endFirst)
		endSlow, waited := turn()
		if waited != execTurnTime/4 {
			t.Errorf("the second waited for %v, want until the first has begun", waited)
		}
		endThird, waited := turn()
		if waited != execTurnTime {
			t.Errorf("the third waited for %v, want %v", waited, execTurnTime)
		}
		endSlow() // late: its place has another already
		gone, cancel := context.WithCancel(t.Context())
		cancel()
		if _, err := s.execTurn(gone); !errors.Is(err, context.Canceled) {
			t.Errorf("a caller that is gone gets %v", err)
		}
		endThird()
		endLast, waited := turn()
		if waited != 0 {
			t.Errorf("the last waited for %v", waited)
		}
		endLast()
	})
}
