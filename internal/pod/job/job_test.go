package job

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/berthrun/berth/internal/errs"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

func TestDifference(t *testing.T) {
	base := func() *runtimeapi.CreateContainerRequest {
		return &runtimeapi.CreateContainerRequest{PodSandboxId: "s", Config: &runtimeapi.ContainerConfig{
			Metadata: &runtimeapi.ContainerMetadata{Name: "main"}, Command: []string{"a", "b"},
			Envs:   []*runtimeapi.KeyValue{{Key: "K", Value: []byte("v")}},
			Labels: map[string]string{"x": "1", "y": "2"},
			Linux:  &runtimeapi.LinuxContainerConfig{Resources: &runtimeapi.LinuxContainerResources{CpuShares: 2}},
		}}
	}
	for want, change := range map[string]func(*runtimeapi.CreateContainerRequest){
		"":                        func(*runtimeapi.CreateContainerRequest) {},
		"pod_sandbox_id":          func(r *runtimeapi.CreateContainerRequest) { r.PodSandboxId = "t" },
		"config":                  func(r *runtimeapi.CreateContainerRequest) { r.Config = nil },
		"config.metadata.attempt": func(r *runtimeapi.CreateContainerRequest) { r.Config.Metadata.Attempt = 1 },
		"config.command":          func(r *runtimeapi.CreateContainerRequest) { r.Config.Command = []string{"a"} },
		"config.command[1]":       func(r *runtimeapi.CreateContainerRequest) { r.Config.Command[1] = "c" },
		"config.envs[0].value":    func(r *runtimeapi.CreateContainerRequest) { r.Config.Envs[0].Value = []byte("w") },
		`config.labels["y"]`:      func(r *runtimeapi.CreateContainerRequest) { r.Config.Labels["y"] = "3" },
		`config.labels["z"]`:      func(r *runtimeapi.CreateContainerRequest) { r.Config.Labels["z"] = "" },
		`config.labels["x"]`:      func(r *runtimeapi.CreateContainerRequest) { delete(r.Config.Labels, "x"); r.Config.Labels["zz"] = "1" },
		"config.linux.resources.cpu_shares": func(r *runtimeapi.CreateContainerRequest) {
			r.Config.Linux.Resources.CpuShares = 3
		},
	} {
		a, b := base(), base()
		change(b)
		if got := Difference(a, b); got != want {
			t.Errorf("Difference = %q, want %q", got, want)
		}
		if got := Difference(b, a); got != want {
			t.Errorf("turned round: Difference = %q, want %q", got, want)
		}
	}
	newer := base()
	newer.Config.ProtoReflect().SetUnknown([]byte{0xf8, 0x7f, 0x01})
	if got := Difference(base(), newer); got != "" {
		t.Errorf("a field that nobody knows makes a difference: %q", got)
	}
}

func newTable(meet func(*Job, *Request) Conflict, limits Limits) *Table {
	return NewTable(func(Kind) Limits { return limits }, meet, func(Info, error) {}, func(Info) {}, func(Info) {})
}

// steps returns a request whose job waits for a value on proceed.
func waiting(kind Kind, proceed <-chan struct{}) *Request {
	return &Request{Key: "k", ID: "id", Kind: kind, Run: func(ctx context.Context, j *Job) (string, error) {
		j.Stage("wait", "the test")
		select {
		case <-proceed:
			return string(kind), nil
		case <-ctx.Done():
			return "", context.Cause(ctx)
		}
	}}
}

func enter(t *testing.T, table *Table, req *Request) *Job {
	t.Helper()
	j, err := table.Enter(t.Context(), req)
	if err != nil {
		t.Fatal(err)
	}
	return j
}

func TestJobsOfOneKeyRunOneAfterTheOther(t *testing.T) {
	conflict := After
	table := newTable(func(running *Job, _ *Request) Conflict {
		if running.Kind == "first" {
			return After
		}
		return conflict
	}, Limits{})
	proceed := make(chan struct{})
	first, second := enter(t, table, waiting("first", proceed)), enter(t, table, waiting("second", proceed))
	if first == second || table.Find("k") != second || len(table.List()) != 2 {
		t.Error("the second did not get a job of its own")
	}
	conflict = Join
	if enter(t, table, waiting("third", proceed)) != second {
		t.Error("the third did not join the newest")
	}
	conflict = Replace
	last := enter(t, table, waiting("last", proceed))
	select {
	case <-last.Done():
		t.Error("the last ran before the others had ended")
	default:
	}
	close(proceed)
	if result, err := last.Wait(t.Context()); result != "last" || err != nil {
		t.Errorf("last = %q, %v", result, err)
	}
	if result, err := first.Wait(t.Context()); result != "first" || err != nil {
		t.Errorf("first = %q, %v", result, err)
	}
	if _, err := second.Wait(t.Context()); !errors.Is(err, errs.Unavailable) || !second.Cancelled() {
		t.Errorf("the replaced one: %v", err)
	}
	if err := table.Close(t.Context()); err != nil || len(table.List()) != 0 || table.Find("k") != nil {
		t.Errorf("left in the table: %v, %v", table.List(), err)
	}
	if _, err := table.Enter(t.Context(), waiting("late", proceed)); !errors.Is(err, ErrShutdown) {
		t.Errorf("a closed table: %v", err)
	}
}

// If work returns only that it was cancelled, the error has the cause: another client cancelled it.
func TestCancelledWorkHasItsCause(t *testing.T) {
	table := newTable(func(*Job, *Request) Conflict { return Replace }, Limits{})
	first := enter(t, table, &Request{Key: "k", Kind: "first", Run: func(ctx context.Context, _ *Job) (string, error) {
		<-ctx.Done()
		return "", fmt.Errorf("cannot work: %w", ctx.Err())
	}})
	proceed := make(chan struct{})
	close(proceed)
	enter(t, table, waiting("second", proceed))
	if _, err := first.Wait(t.Context()); !errors.Is(errs.Kind(err), errs.Unavailable) || !strings.Contains(err.Error(), "gave way") {
		t.Errorf("the first: %v", err)
	}
	if err := table.Close(t.Context()); err != nil {
		t.Error(err)
	}
}

// A request that arrives after a job was cancelled never gets the job's error.
func TestCancelledJobCannotBeJoined(t *testing.T) {
	table := newTable(func(*Job, *Request) Conflict { return Join }, Limits{})
	proceed := make(chan struct{})
	first := enter(t, table, waiting("first", proceed))
	first.Cancel(errors.New("no more"))
	second := enter(t, table, waiting("second", proceed))
	if first == second {
		t.Fatal("joined a cancelled job")
	}
	close(proceed)
	if _, err := second.Wait(t.Context()); err != nil {
		t.Error(err)
	}
}

func TestCloseCancelsWithItsOwnCause(t *testing.T) {
	table := newTable(func(*Job, *Request) Conflict { return After }, Limits{})
	j := enter(t, table, waiting("first", nil))
	deaf, begun := make(chan struct{}), make(chan struct{})
	enter(t, table, &Request{Key: "other", Kind: "deaf", Run: func(context.Context, *Job) (string, error) {
		close(begun)
		<-deaf
		return "", nil
	}})
	<-begun
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	if err := table.Close(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("Close with a deaf job: %v", err)
	}
	if _, err := j.Wait(t.Context()); !errors.Is(err, ErrShutdown) {
		t.Errorf("cause %v", err)
	}
	close(deaf)
	if err := table.Close(t.Context()); err != nil {
		t.Error(err)
	}
}

func TestFailuresWithoutWaitersAreReported(t *testing.T) {
	told := make(chan error, 2)
	table := NewTable(func(Kind) Limits { return Limits{} }, func(*Job, *Request) Conflict { return After },
		func(_ Info, err error) { told <- err }, func(Info) {}, func(Info) {})
	failing := func(key string, after <-chan struct{}) *Request {
		return &Request{Key: key, Kind: "fail", Run: func(context.Context, *Job) (string, error) {
			<-after
			return "", errors.New(key)
		}}
	}
	heard := make(chan struct{})
	j := enter(t, table, failing("heard", heard))
	got := make(chan error, 1)
	go func() { _, err := j.Wait(t.Context()); got <- err }()
	for j.Info().Waiters == 0 {
		time.Sleep(time.Millisecond)
	}
	close(heard)
	if err := <-got; err == nil {
		t.Error("no error")
	}
	enter(t, table, failing("unheard", heard))
	if err := <-told; err.Error() != "unheard" {
		t.Errorf("told of %v", err)
	}
}

func TestProgressExtendsTheStageLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		table := newTable(nil, Limits{Stage: time.Minute, Total: time.Hour})
		j := enter(t, table, &Request{Key: "k", Kind: "crawl", Run: func(ctx context.Context, j *Job) (string, error) {
			for i := range 100 {
				j.Stage(fmt.Sprint("stage ", i), "time")
				select {
				case <-time.After(50 * time.Second):
				case <-ctx.Done():
					return "", context.Cause(ctx)
				}
			}
			return "", nil
		}})
		begin := time.Now()
		_, err := j.Wait(t.Context())
		if took := time.Since(begin); took != time.Hour || !errors.Is(err, errs.Deadline) || !strings.Contains(err.Error(), "now at stage") {
			t.Errorf("ended after %s: %v", took, err)
		}
	})
}

func TestShortDeadlineLeavesTimeForTheWork(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		table := newTable(nil, Limits{})
		proceed := make(chan struct{})
		time.AfterFunc(700*time.Millisecond, func() { close(proceed) })
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := enter(t, table, waiting("quick", proceed)).Wait(ctx); err != nil {
			t.Errorf("a job that ends in time: %v", err)
		}
	})
}

func TestEveryStageIsReported(t *testing.T) {
	var stages []string
	table := NewTable(func(Kind) Limits { return Limits{} }, func(*Job, *Request) Conflict { return After },
		func(Info, error) {}, func(i Info) { stages = append(stages, i.Key+": "+i.Stage) }, func(Info) {})
	j := enter(t, table, &Request{Key: "a", Kind: "make", Run: func(_ context.Context, j *Job) (string, error) {
		j.Stage("work", "nothing")
		return "", errors.New("failed")
	}})
	<-j.Done()
	if got := strings.Join(stages, ", "); got != "a: begin, a: work, a: ended" {
		t.Errorf("told of %s", got)
	}
}

// A stage is reported after half a minute, and again each time that its age has doubled. A stage
// that is expected to take longer is reported after that time. A stage with progress is not
// reported.
func TestSlowStagesAreReported(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		var told []string
		table := NewTable(func(Kind) Limits { return Limits{} }, func(*Job, *Request) Conflict { return After },
			func(Info, error) {}, func(Info) {}, func(i Info) {
				told = append(told, fmt.Sprintf("%s: %s %s at %s", i.ID, i.Stage, i.StageAge, time.Since(began)))
			})
		j := enter(t, table, &Request{Key: "k", ID: "pod", Kind: "make", Run: func(_ context.Context, j *Job) (string, error) {
			for range 10 { // a stage that reports progress
				j.Stage("relabel", "files")
				time.Sleep(29 * time.Second)
			}
			j.Stage("attach", "a plugin")
			time.Sleep(130 * time.Second)
			j.StageUntil("wait", "a grace period", time.Now().Add(time.Hour))
			time.Sleep(time.Hour + 31*time.Second)
			j.Stage("publish", "nothing")
			return "", nil
		}})
		if _, err := j.Wait(t.Context()); err != nil {
			t.Error(err)
		}
		time.Sleep(24 * time.Hour) // a stage that has ended is not reported
		want := "pod: attach 30s at 5m20s, pod: attach 1m0s at 5m50s, pod: attach 2m0s at 6m50s, pod: wait 1h0m30s at 1h7m30s"
		if got := strings.Join(told, ", "); got != want {
			t.Errorf("told of %s\nwant    %s", got, want)
		}
	})
}

// A request that waits for another job with its key is reported, too.
func TestWaitingForAJobIsReported(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		told := map[string]int{}
		table := NewTable(func(Kind) Limits { return Limits{} }, func(*Job, *Request) Conflict { return After },
			func(Info, error) {}, func(Info) {}, func(i Info) {
				mu.Lock()
				defer mu.Unlock()
				told[i.Stage]++
			})
		proceed := make(chan struct{})
		enter(t, table, waiting("first", proceed))
		second := enter(t, table, waiting("second", proceed))
		time.Sleep(45 * time.Second)
		close(proceed)
		if _, err := second.Wait(t.Context()); err != nil {
			t.Error(err)
		}
		if told["wait"] != 1 || told["wait for the job before"] != 1 {
			t.Errorf("told of %v", told)
		}
	})
}

// TestWaitersAreRegisteredBeforeTheWork: if a job fails at once, both the request that began it and
// the requests that joined it count as waiters.
func TestWaitersAreRegisteredBeforeTheWork(t *testing.T) {
	var unheard atomic.Int32
	none := func(Info) {}
	table := NewTable(func(Kind) Limits { return Limits{} }, func(*Job, *Request) Conflict { return Join },
		func(Info, error) { unheard.Add(1) }, none, none)
	for range 200 {
		var waiters int
		_, err := table.Do(t.Context(), &Request{Key: "k", ID: "id", Kind: "fail", Run: func(_ context.Context, j *Job) (string, error) {
			waiters = j.Info().Waiters
			return "", errs.State
		}})
		if waiters != 1 || !errors.Is(err, errs.State) {
			t.Fatalf("%d waiters, %v", waiters, err)
		}
	}
	if err := table.Close(t.Context()); err != nil || unheard.Load() != 0 {
		t.Errorf("%d failures unheard, %v", unheard.Load(), err)
	}
}

// A panic in one job is that job's error. The next job with its key runs.
func TestPanicOfAJobIsItsError(t *testing.T) {
	table := newTable(nil, Limits{})
	j := enter(t, table, &Request{Key: "k", ID: "id", Kind: "create", Run: func(context.Context, *Job) (string, error) { panic("oh no") }})
	if _, err := j.Wait(t.Context()); err == nil || errs.Kind(err) != nil || !strings.Contains(err.Error(), "create k") || !strings.Contains(err.Error(), "oh no") {
		t.Errorf("the job that panicked: %v", err)
	}
	proceed := make(chan struct{})
	close(proceed)
	if result, err := enter(t, table, waiting("create", proceed)).Wait(t.Context()); err != nil || result != "create" {
		t.Errorf("the next job: %q, %v", result, err)
	}
}

func TestAbandonedJobIsAwaited(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		jobs := newTable(func(*Job, *Request) Conflict { return Join }, Limits{})
		end := make(chan struct{})
		ctx, leave := context.WithCancel(t.Context())
		left := make(chan error, 1)
		go func() {
			_, err := jobs.Do(ctx, &Request{Key: "k", Run: func(context.Context, *Job) (string, error) {
				<-end
				return "", nil
			}})
			left <- err
		}()
		synctest.Wait()
		j := jobs.Find("k")
		const limit = 10 * time.Second
		waited := func() time.Duration {
			begin := time.Now()
			j.AwaitAbandoned(t.Context(), limit)
			return time.Since(begin)
		}
		if took := waited(); took != 0 {
			t.Errorf("waited %s for a job that has a waiter", took)
		}
		leave()
		<-left
		time.Sleep(3 * time.Second)
		if took := waited(); took != limit-3*time.Second {
			t.Errorf("waited %s for a job that was left 3 s ago, want the rest of %s", took, limit)
		}
		if took := waited(); took != 0 {
			t.Errorf("waited %s after the limit", took)
		}
		close(end)
		synctest.Wait()
		if len(jobs.Running()) != 0 {
			t.Error("the job has not ended")
		}
	})
}
