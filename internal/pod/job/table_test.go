package job

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/berthrun/berth/internal/errs"
)

// TestReplaceCancelsAllBefore: the job that a request replaces waits for another one. The request replaces that one, too,
// and begins at once.
func TestReplaceCancelsAllBefore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		table := newTable(func(_ *Job, next *Request) Conflict {
			if next.Kind == "stop" {
				return Replace
			}
			return After
		}, Limits{})
		checkpoint, update := enter(t, table, waiting("checkpoint", nil)), enter(t, table, waiting("update", nil))
		beside := waiting("beside", nil)
		beside.Beside = true
		other := enter(t, table, beside)
		proceed := make(chan struct{})
		close(proceed)
		began := time.Now()
		result, err := enter(t, table, waiting("stop", proceed)).Wait(t.Context())
		if took := time.Since(began); result != "stop" || err != nil || took != 0 {
			t.Errorf("the stop: %q, %v after %s", result, err, took)
		}
		for _, j := range []*Job{checkpoint, update} {
			if _, err := j.Wait(t.Context()); !j.Cancelled() || !errors.Is(err, errs.Unavailable) {
				t.Errorf("the %s: %v, cancelled %v", j.Kind, err, j.Cancelled())
			}
		}
		if other.Cancelled() {
			t.Error("the stop has cancelled a job beside it")
		}
		if err := table.Close(t.Context()); err != nil {
			t.Error(err)
		}
	})
}

// TestRandomRequests: requests of random kinds come at random times, by a random rule. Jobs of a key run one at a time in
// the order of their requests. A request cancels what the rule has it replace, and nothing else; it joins the newest job
// or none. BERTH_JOBS_SEED repeats a run.
func TestRandomRequests(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	if text := os.Getenv("BERTH_JOBS_SEED"); text != "" {
		var err error
		if seed, err = strconv.ParseUint(text, 10, 64); err != nil {
			t.Fatal(err)
		}
	}
	t.Logf("BERTH_JOBS_SEED=%d", seed)
	rnd := rand.New(rand.NewPCG(seed, 1))
	for range 100 {
		synctest.Test(t, func(t *testing.T) { newRandomRun(t, rnd).run() })
		if t.Failed() {
			return
		}
	}
}

// randomRun is a table, and a model of it: the jobs of each key in the order in which they must run.
type randomRun struct {
	*testing.T
	rnd   *rand.Rand
	rule  map[[2]Kind]Conflict
	table *Table
	queue map[string][]*Job
	// begun are the jobs that ran, by key. The goroutines of one key write it one after the other; the test reads it
	// when all have ended.
	begun map[string]*[]*Job
	busy  map[string]*bool
}

// randomKinds returns kinds of jobs. Work of the kind deaf does not end when it is cancelled.
func randomKinds() []Kind { return []Kind{"make", "start", "stop", "deaf"} }

func newRandomRun(t *testing.T, rnd *rand.Rand) *randomRun {
	r := &randomRun{
		T: t, rnd: rnd, rule: map[[2]Kind]Conflict{}, queue: map[string][]*Job{},
		begun: map[string]*[]*Job{"a": {}, "b": {}}, busy: map[string]*bool{"a": new(bool), "b": new(bool)},
	}
	for _, running := range randomKinds() {
		for _, next := range randomKinds() {
			r.rule[[2]Kind{running, next}] = Conflict(rnd.IntN(3))
		}
	}
	r.table = newTable(func(running *Job, next *Request) Conflict { return r.rule[[2]Kind{running.Kind, next.Kind}] }, Limits{})
	return r
}

func (r *randomRun) run() {
	for range 30 {
		r.request()
		if r.rnd.IntN(2) == 0 {
			time.Sleep(time.Duration(r.rnd.IntN(20)) * time.Second)
		}
		synctest.Wait() // what could begin or end has done so
	}
	if r.rnd.IntN(2) == 0 { // else the end of the table cancels what is left
		time.Sleep(time.Hour)
		synctest.Wait()
	}
	if err := r.table.Close(r.Context()); err != nil {
		r.Error(err)
	}
	if len(r.table.running) != 0 || len(r.table.newest) != 0 {
		r.Errorf("left in the table: %v, %v", r.table.running, r.table.newest)
	}
	for key, all := range r.queue {
		// A job that was cancelled before its turn has no work to do.
		ran := *r.begun[key]
		want := slices.DeleteFunc(slices.Clone(all), func(j *Job) bool { return j.Cancelled() && !slices.Contains(ran, j) })
		if !slices.Equal(ran, want) {
			r.Errorf("jobs of %s: %s have run, want %s", key, names(ran), names(want))
		}
	}
}

// request enters a request, and compares what the table does with what the rule says.
func (r *randomRun) request() {
	key := []string{"a", "b"}[r.rnd.IntN(2)]
	kind := randomKinds()[r.rnd.IntN(len(randomKinds()))]
	takes := time.Duration(r.rnd.IntN(30)) * time.Second
	req := &Request{Key: key, ID: strconv.Itoa(len(r.queue[key])), Kind: kind, Run: func(ctx context.Context, j *Job) (string, error) {
		return "", r.work(ctx, j, takes)
	}}
	running := slices.DeleteFunc(slices.Clone(r.queue[key]), isDone)
	var before []bool
	for _, j := range running {
		before = append(before, j.Cancelled())
	}
	newest := Join
	if n := len(running); n > 0 {
		newest = r.rule[[2]Kind{running[n-1].Kind, kind}]
	}
	got := enter(r.T, r.table, req)
	switch n := len(running); {
	case n > 0 && newest == Join && !before[n-1]:
		if got != running[n-1] {
			r.Errorf("%s did not join the newest of %s", kind, names(running))
		}
	default:
		if slices.Contains(r.queue[key], got) {
			r.Errorf("%s joined a job of %s", kind, names(running))
		}
		r.queue[key] = append(r.queue[key], got)
	}
	for i, j := range running {
		want := before[i] || newest == Replace && r.rule[[2]Kind{j.Kind, kind}] == Replace
		if j.Cancelled() != want {
			r.Errorf("%s meets %s: job %s is cancelled: %v, want %v", kind, names(running), j.ID, j.Cancelled(), want)
		}
	}
}

func (r *randomRun) work(ctx context.Context, j *Job, takes time.Duration) error {
	busy := r.busy[j.Key]
	if *busy {
		r.Errorf("job %s of %s runs beside another one", j.ID, j.Key)
	}
	*busy = true
	defer func() { *busy = false }()
	*r.begun[j.Key] = append(*r.begun[j.Key], j)
	ended := ctx.Done()
	if j.Kind == "deaf" {
		ended = nil
	}
	select {
	case <-time.After(takes):
		return nil
	case <-ended:
		return context.Cause(ctx)
	}
}

// isDone reports whether a job has ended.
func isDone(j *Job) bool {
	select {
	case <-j.Done():
		return true
	default:
		return false
	}
}

func names(jobs []*Job) (all []string) {
	for _, j := range jobs {
		all = append(all, fmt.Sprintf("%s %s", j.ID, j.Kind))
	}
	return all
}
