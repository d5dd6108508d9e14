package job

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/berthrun/berth/internal/errs"
)

// Meeting is what a request does that finds a job of its key.
type Meeting int

// The meetings.
const (
	// Join waits for the job that is there.
	Join Meeting = iota
	// After starts a new job once the one that is there has ended.
	After
	// Replace cancels the one that is there, and is After.
	Replace
)

// Table holds the jobs that run. All methods are safe for concurrent use.
type Table struct {
	limits func(Kind) Limits
	meet   func(running *Job, next *Request) Meeting
	// unheard is called with the error of a job that nobody waited for.
	unheard func(Info, error)
	// reached is called when a job has reached a stage, Ended for its last.
	reached func(Info)
	// slow is called when a job stays in a stage for long.
	slow func(Info)

	mu     sync.Mutex
	closed bool
	// newest is the last job of each key; it runs after those before it.
	newest  map[string]*Job
	running map[*Job]struct{}
	group   sync.WaitGroup
}

// NewTable returns an empty table. limits gives a kind's limits, meet decides
// what a request does that finds a job of its key, unheard is told of failures
// that no waiter is there to hear, reached of every stage before its work begins, slow
// of a stage that has lasted for SlowStage, and each time that it has lasted twice as
// long.
func NewTable(limits func(Kind) Limits, meet func(*Job, *Request) Meeting, unheard func(Info, error), reached, slow func(Info)) *Table {
	return &Table{limits: limits, meet: meet, unheard: unheard, reached: reached, slow: slow, newest: map[string]*Job{}, running: map[*Job]struct{}{}}
}

// Do joins the job of the request's key or starts one, and waits for it: see Job.Wait.
// Values of ctx reach the job, its end does not.
func (t *Table) Do(ctx context.Context, req *Request) (string, error) {
	j, err := t.enter(ctx, req, 1)
	if err != nil {
		return "", err
	}
	defer j.waiters.Add(-1)
	return j.wait(ctx)
}

// Enter is Do for who does not wait, or not only.
func (t *Table) Enter(ctx context.Context, req *Request) (*Job, error) {
	return t.enter(ctx, req, 0)
}

// enter counts the waiters that come with the request before the job can end, so that
// a failure that they will hear is not taken for one that nobody does.
func (t *Table) enter(ctx context.Context, req *Request, waiters int32) (*Job, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		return nil, fmt.Errorf("cannot %s %s: %w", req.Kind, req.Key, ErrShutdown)
	}
	before := t.newest[req.Key]
	if before != nil {
		// A cancelled job has nothing to give to those who would join it.
		meeting := t.meet(before, req)
		if meeting == Join && !before.Cancelled() {
			before.waiters.Add(waiters)
			return before, nil
		}
		if meeting == Replace {
			before.Cancel(fmt.Errorf("the job gave way to %q: %w", req.Kind, errs.Unavailable))
		}
	}
	ctx, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	j := &Job{
		Key: req.Key, ID: req.ID, Kind: req.Kind, Want: req.Want,
		started: time.Now(), done: make(chan struct{}), cancel: cancel, limits: t.limits(req.Kind), reached: t.reached, slow: t.slow,
	}
	j.waiters.Store(waiters)
	j.Stage("begin", "nothing")
	t.newest[req.Key] = j
	t.running[j] = struct{}{}
	t.group.Go(func() { t.run(ctx, j, req, before) })
	return j, nil
}

func (t *Table) run(ctx context.Context, j *Job, req *Request, before *Job) {
	defer j.cancel(nil)
	if before != nil {
		// Also when cancelled: a later job of this key relies on j having waited.
		// What is waited for is bounded by its own limits.
		j.Stage("wait for the job before", string(before.Kind))
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
			// Why it was cancelled, to those who did not do it.
			j.err = fmt.Errorf("%w: %w", context.Cause(ctx), j.err)
		}
	}
	disarm()
	j.end()

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
	close(j.done)
	if j.err != nil && info.Waiters == 0 {
		t.unheard(info, j.err)
	}
}

// Find returns the newest job of a key, or nil.
func (t *Table) Find(key string) *Job {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.newest[key]
}

// List tells of all jobs, the oldest first.
func (t *Table) List() []Info {
	t.mu.Lock()
	all := make([]Info, 0, len(t.running))
	for j := range t.running {
		all = append(all, j.Info())
	}
	t.mu.Unlock()
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
