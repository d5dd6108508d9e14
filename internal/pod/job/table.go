package job

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/berthrun/berth/internal/errs"
)

// Conflict is how a request deals with a running job of its key.
type Conflict int

// The ways to deal with a running job.
const (
	// Join waits for the running job.
	Join Conflict = iota
	// After starts a new job once the running one has ended.
	After
	// Replace cancels the running job, and those before it that resolve replaces, too. A new one starts after them.
	Replace
)

// Table holds the jobs that run. All methods are safe for concurrent use.
type Table struct {
	limits func(Kind) Limits
	// resolve decides how a request deals with a running job of its key.
	resolve func(running *Job, next *Request) Conflict
	// failed is called with the error of a job without waiters.
	failed func(Info, error)
	// reached is called when a job has reached a stage, Ended for its last.
	reached func(Info)
	// slow is called when a job stays in a stage for long.
	slow func(Info)
	// onStage is stageReached, made once and not for each job.
	onStage func(Info)
	// observer and tracer may be nil.
	observer Observer
	tracer   Tracer
	watches  watches

	mu     sync.Mutex
	closed bool
	// newest is the last job of each key; it runs after those before it.
	newest  map[string]*Job
	running map[*Job]struct{}
	group   sync.WaitGroup
}

// NewTable returns an empty table. limits returns a kind's limits; resolve decides how a
// request deals with a running job of its key; failed is called with a failure that no waiter
// gets, reached with every stage before its work begins, and slow with a stage that has lasted
// for SlowStage, and again each time that it has lasted twice as long.
func NewTable(
	limits func(Kind) Limits, resolve func(*Job, *Request) Conflict, failed func(Info, error), reached, slow func(Info),
) *Table {
	t := &Table{
		limits: limits, resolve: resolve, failed: failed, reached: reached, slow: slow,
		newest: map[string]*Job{}, running: map[*Job]struct{}{},
	}
	t.onStage = t.stageReached
	return t
}

// Observe has the observer count the jobs. Call it before the first one.
func (t *Table) Observe(observer Observer) { t.observer = observer }

// Do joins the job of the request's key or starts one, and waits for it: see Job.Wait.
// Values of ctx reach the job, its end does not.
func (t *Table) Do(ctx context.Context, req *Request) (string, error) {
	j, err := t.enter(ctx, req, 1)
	if err != nil {
		return "", err
	}
	defer j.leave()
	return j.wait(ctx)
}

// Enter is Do without the wait.
func (t *Table) Enter(ctx context.Context, req *Request) (*Job, error) {
	return t.enter(ctx, req, 0)
}

// enter counts the waiters of the request before the job can end, so that a failure that
// they get does not count as one without waiters.
func (t *Table) enter(ctx context.Context, req *Request, waiters int32) (*Job, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		return nil, fmt.Errorf("cannot %s %s: %w", req.Kind, req.Key, ErrShutdown)
	}
	before := t.newest[req.Key]
	if req.Beside {
		before = nil
	}
	if before != nil {
		// A request never joins a cancelled job: it would get that job's failure.
		conflict := t.resolve(before, req)
		if conflict == Join && !before.Cancelled() {
			before.waiters.Add(waiters)
			before.traceJoin(ctx)
			return before, nil
		}
		if conflict == Replace {
			t.replace(req)
		}
	}
	ctx, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	j := &Job{
		Key: req.Key, ID: req.ID, Kind: req.Kind, Want: req.Want, beside: req.Beside, live: req.Live,
		started: time.Now(), done: make(chan struct{}), cancel: cancel, limits: t.limits(req.Kind), reached: t.onStage, slow: t.slow,
		observer: t.observer,
	}
	j.waiters.Store(waiters)
	ctx = t.traceNew(ctx, j, req)
	j.Stage("begin", "nothing")
	if !req.Beside {
		t.newest[req.Key] = j
	}
	t.running[j] = struct{}{}
	t.group.Go(func() { t.run(ctx, j, req, before) })
	return j, nil
}

// replace cancels the jobs that a request replaces. The newest of its key may still wait for others: the request
// would have to wait for them, too. t.mu is held.
func (t *Table) replace(req *Request) {
	cause := fmt.Errorf("the job gave way to %q: %w", req.Kind, errs.Unavailable)
	for j := range t.running {
		if j.Key == req.Key && !j.beside && t.resolve(j, req) == Replace {
			j.Cancel(cause)
		}
	}
}

func (t *Table) run(ctx context.Context, j *Job, req *Request, before *Job) {
	defer j.cancel(nil)
	if before != nil {
		// Also when cancelled: a later job of this key relies on j having waited.
		// What is waited for is bounded by its own limits.
		j.Stage(StageWait, string(before.Kind))
		<-before.done
	}
	disarm := j.watch()
	switch {
	case ctx.Err() != nil:
		j.err = fmt.Errorf("cannot %s %s: %w", j.Kind, j.Key, context.Cause(ctx))
	default:
		j.err = errs.Guard(fmt.Sprintf("%s %s", j.Kind, j.Key), func() (err error) {
			j.result, err = req.Run(ctx, j)
			return err
		})
		if j.err != nil && ctx.Err() != nil && !errors.Is(j.err, context.Cause(ctx)) {
			// A waiter that did not cancel the job gets the cause of the cancellation.
			j.err = fmt.Errorf("%w: %w", context.Cause(ctx), j.err)
		}
	}
	disarm()
	j.end()
	result := j.outcome()
	t.count(j, result)

	t.mu.Lock()
	delete(t.running, j)
	if t.newest[j.Key] == j {
		delete(t.newest, j.Key)
	}
	t.mu.Unlock()
	info := j.Info()
	last := info
	last.Stage, last.WaitsFor = Ended, ""
	t.reached(last)
	t.watches.publish(Update{Info: last, Ended: true, Result: result, Err: j.err})
	close(j.done)
	if j.err != nil && info.Waiters == 0 {
		t.failed(info, j.err)
	}
}

// stageReached reports a stage of a job that runs.
func (t *Table) stageReached(info Info) {
	t.reached(info)
	t.watches.publish(Update{Info: info})
}

// outcome is the result of a job that has ended.
func (j *Job) outcome() string {
	switch {
	case j.err != nil && j.Cancelled():
		return ResultCancelled
	case j.err != nil:
		return ResultFailed
	}
	return ResultOK
}

// count reports the end of a job.
func (t *Table) count(j *Job, result string) {
	now := time.Now()
	if t.observer != nil {
		j.leaveStage(j.stage.Load(), now)
		t.observer.JobEnded(string(j.Kind), result, now.Sub(j.started))
	}
	if j.trace != nil {
		j.trace.Ended(result, j.err)
	}
}

// Find returns the newest job of a key, or nil.
func (t *Table) Find(key string) *Job {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.newest[key]
}

// Running returns all jobs, in no order.
func (t *Table) Running() []*Job {
	t.mu.Lock()
	defer t.mu.Unlock()
	return slices.Collect(maps.Keys(t.running))
}

// List returns all jobs, the oldest first.
func (t *Table) List() []Info {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.list()
}

// list is List. t.mu is held.
func (t *Table) list() []Info {
	all := make([]Info, 0, len(t.running))
	for j := range t.running {
		all = append(all, j.Info())
	}
	slices.SortFunc(all, func(a, b Info) int { return cmp.Or(cmp.Compare(b.Age, a.Age), cmp.Compare(a.Key, b.Key)) })
	return all
}

// Close refuses new jobs, cancels those that run with ErrShutdown, and waits for
// them until ctx ends.
func (t *Table) Close(ctx context.Context) error {
	t.mu.Lock()
	t.closed = true
	for j := range t.running {
		j.Cancel(ErrShutdown)
	}
	t.mu.Unlock()
	ended := make(chan struct{})
	go func() {
		t.group.Wait()
		close(ended)
	}()
	select {
	case <-ended:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("cannot wait for %d jobs to end: %w", len(t.List()), context.Cause(ctx))
	}
}
