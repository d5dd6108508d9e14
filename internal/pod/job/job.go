// Package job runs durable jobs: operations that a request starts and that do not
// end with it.
//
// Every job has a key, and jobs of one key run one after the other. A request
// that finds a job of its key joins it, waits for its end or replaces it, as the
// table's owner decides. A job does not depend on its waiters: it continues,
// publishes its stage, and ends when it is done, when it is replaced, or when it
// makes no progress.
//
// The package knows nothing of sandboxes, containers or records.
package job

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/berthrun/berth/internal/errs"
	"google.golang.org/protobuf/proto"
)

// Kind says what a job does, in words for people: "run sandbox".
type Kind string

// Request asks for a job.
type Request struct {
	// Key serialises jobs, unless Beside is set; ID is the object's id, for people and logs.
	Key, ID string
	Kind    Kind
	// Beside has the job run beside others of its key, which do not see it. Else jobs of a key run one after the other.
	Beside bool
	// Want is the request's content, nil when the kind is enough.
	Want proto.Message
	// Resumed says that no request started the job: it finishes what a former daemon, or a reboot, has left.
	Resumed bool
	// Live is how far the job has come, nil for a job that does not count it.
	Live func() Live
	// Run does the work and returns the job's result. Its context ends when the
	// job is cancelled, with the cause of it, and never with a request.
	Run func(ctx context.Context, j *Job) (result string, err error)
}

// Job is one running or ended job.
type Job struct {
	Key, ID string
	Kind    Kind
	Want    proto.Message

	beside  bool
	live    func() Live // may be nil
	started time.Time
	done    chan struct{}
	result  string // result and err are set before done is closed
	err     error

	cancel  context.CancelCauseFunc
	stopped atomic.Bool
	waiters atomic.Int32
	// leftAt is when the last waiter left, in nanoseconds since 1970; 0 before.
	leftAt  atomic.Int64
	stage   atomic.Pointer[stage]
	limits  Limits
	reached func(Info)
	slow    func(Info)
	// observer and trace may be nil.
	observer Observer
	trace    Trace
	mu       sync.Mutex // guards what follows
	// watchdog ends the job when a stage lasts too long.
	watchdog *time.Timer
	// reminder reports a stage that lasts long.
	reminder *time.Timer
	over     bool
}

type stage struct {
	name, waitsFor string
	// since is when the job reached the stage, said when it last reported it.
	since, said time.Time
	slow        atomic.Bool
}

// StageWait is the name of the stage in which a job waits for the one before it of the same key.
const StageWait = "wait for the job before"

// Ended is the last stage of every job that the table reports.
const Ended = "ended"

// Stage publishes that the job has reached a stage and what it waits for there.
// It counts as progress. A job that reports its stage again stays in it.
func (j *Job) Stage(name, waitsFor string) {
	j.StageUntil(name, waitsFor, time.Now())
}

// StageUntil is Stage for a stage that lasts until then by request, such as a grace period:
// it is slow from then on only.
func (j *Job) StageUntil(name, waitsFor string, then time.Time) {
	now := time.Now()
	at := &stage{name: name, waitsFor: waitsFor, since: now, said: now}
	before := j.stage.Load()
	again := before != nil && before.name == name
	if again {
		at.since = before.since
	}
	j.stage.Store(at)
	if !again {
		j.leaveStage(before, now)
	}
	if j.trace != nil && !again {
		j.trace.StageBegan(name, waitsFor, now)
	}
	j.reached(j.Info())
	j.mu.Lock()
	defer j.mu.Unlock()
	j.remind(at, max(then.Sub(now), 0)+SlowStage)
	if j.watchdog != nil && j.limits.Stage > 0 {
		j.watchdog.Reset(j.limits.Stage)
	}
}

// leaveStage reports a stage that ended at a time; nil is the one before the first.
func (j *Job) leaveStage(before *stage, at time.Time) {
	if j.observer != nil && before != nil {
		j.observer.StageEnded(string(j.Kind), before.name, at.Sub(before.since))
	}
}

// Cancel ends the job's context. A nil job and an ended one ignore it.
func (j *Job) Cancel(cause error) {
	if j == nil {
		return
	}
	j.stopped.Store(true)
	j.cancel(cause)
}

// Cancelled reports whether the job was cancelled.
func (j *Job) Cancelled() bool { return j.stopped.Load() }

// Done is closed when the job has ended.
func (j *Job) Done() <-chan struct{} { return j.done }

// answerMargin is how long before the caller's deadline Wait answers: late
// enough to be of use, early enough to arrive.
const answerMargin = time.Second

// Wait returns the job's result when it ends. A second before ctx's deadline, or
// when ctx ends, it returns an error of kind Deadline that says where the job
// is; the job goes on.
func (j *Job) Wait(ctx context.Context) (string, error) {
	j.waiters.Add(1)
	defer j.leave()
	return j.wait(ctx)
}

func (j *Job) leave() {
	if j.waiters.Add(-1) == 0 {
		j.leftAt.Store(time.Now().UnixNano())
	}
}

// AwaitAbandoned waits for a job that all its waiters have left: until it ends, until limit after
// the last waiter left, or until ctx ends. It returns at once for another job.
func (j *Job) AwaitAbandoned(ctx context.Context, limit time.Duration) {
	left := j.leftAt.Load()
	if left == 0 || j.waiters.Load() > 0 {
		return
	}
	rest := time.NewTimer(time.Until(time.Unix(0, left).Add(limit)))
	defer rest.Stop()
	select {
	case <-j.done:
	case <-rest.C:
	case <-ctx.Done():
	}
}

func (j *Job) wait(ctx context.Context) (string, error) {
	var early <-chan time.Time
	if deadline, ok := ctx.Deadline(); ok {
		left := time.Until(deadline)
		timer := time.NewTimer(left - min(answerMargin, left/4))
		defer timer.Stop()
		early = timer.C
	}
	select {
	case <-j.done:
		return j.result, j.err
	case <-early:
	case <-ctx.Done():
	}
	select {
	case <-j.done: // it ended in the same instant
		return j.result, j.err
	default:
		return "", j.late()
	}
}

func (j *Job) late() error {
	info := j.Info()
	return fmt.Errorf("cannot %s %s yet: %w: at stage %q for %s, waiting for %s, in all %s; the work goes on and the same request joins it",
		j.Kind, j.Key, errs.Deadline, info.Stage, info.StageAge.Round(time.Millisecond), info.WaitsFor, info.Age.Round(time.Millisecond))
}

// Info describes a job to people.
type Info struct {
	Key      string
	Kind     Kind
	ID       string
	Stage    string
	WaitsFor string
	StageAge time.Duration
	Age      time.Duration
	Waiters  int
	// Cancelled is set once the job was cancelled; it may be cleaning up.
	Cancelled bool
	// Slow is set once the job was reported for the time in its stage.
	Slow bool
	// Live is how far it has come. WaitsFor has Done and Total, too.
	Live Live
}

// Live is how far a job has come at this moment.
type Live struct {
	// Fetched is how many of the Size bytes of an image's layers the job has fetched. Size is 0 while unknown.
	Fetched, Size int64
	// Done is how many of the Total bytes of the stage are done. Total is 0 where the stage has no bytes.
	Done, Total int64
	// Waiters is how many requests wait for the job, where it counts them itself.
	Waiters int
}

// Info returns where the job is.
func (j *Job) Info() Info {
	now, at := time.Now(), j.stage.Load()
	info := Info{
		Key: j.Key, Kind: j.Kind, ID: j.ID,
		Stage: at.name, WaitsFor: at.waitsFor, StageAge: now.Sub(at.since),
		Age: now.Sub(j.started), Waiters: int(j.waiters.Load()), Cancelled: j.Cancelled(), Slow: at.slow.Load(),
	}
	if j.live == nil {
		return info
	}
	info.Live = j.live()
	info.Waiters = max(info.Waiters, info.Live.Waiters)
	if info.Live.Total > 0 {
		info.WaitsFor += fmt.Sprintf(", %d of %d bytes", info.Live.Done, info.Live.Total)
	}
	return info
}

// Limits bound a job. Zero means no limit.
type Limits struct {
	// Stage is how long a job may stay in one stage.
	Stage time.Duration
	// Total is how long it may take in all.
	Total time.Duration
}

// Observer counts jobs and measures their stages. It must not block. job is a Kind.
type Observer interface {
	// StageEnded is called with each stage that a job has left.
	StageEnded(job, stage string, took time.Duration)
	// StageSlow is called each time that a job is reported for the time in its stage; see SlowStage.
	StageSlow(job, stage string)
	// JobEnded is called at the end of a job with one of the results below.
	JobEnded(job, result string, took time.Duration)
}

// The results of jobs. A cancelled one has failed because another request or the end of the daemon cancelled it.
const (
	ResultOK        = "ok"
	ResultFailed    = "failed"
	ResultCancelled = "cancelled"
)

// ErrShutdown is the cause with which Table.Close cancels jobs. Work that sees it
// leaves everything as it is, for the next start.
var ErrShutdown = fmt.Errorf("berth is shutting down: %w", errs.Unavailable)

// SlowStage is how long a stage lasts before it is reported. It is reported again each time
// that it has lasted twice as long.
const SlowStage = 30 * time.Second

// remind reports a stage after a while, unless the job has left it by then. j.mu is held.
func (j *Job) remind(at *stage, after time.Duration) {
	if j.reminder != nil {
		j.reminder.Stop()
	}
	if j.over {
		return
	}
	j.reminder = time.AfterFunc(after, func() {
		j.mu.Lock()
		defer j.mu.Unlock()
		if j.stage.Load() == at && !j.over {
			at.slow.Store(true)
			if j.observer != nil {
				j.observer.StageSlow(string(j.Kind), at.name)
			}
			j.slow(j.Info())
			j.remind(at, time.Since(at.said))
		}
	})
}

// end stops the reports: no stage follows.
func (j *Job) end() {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.over = true
	j.reminder.Stop()
}

// watch arms the two limits and returns how to disarm them.
func (j *Job) watch() (stop func()) {
	j.mu.Lock()
	defer j.mu.Unlock()
	total := time.NewTimer(time.Hour)
	total.Stop()
	if j.limits.Total > 0 {
		total = time.AfterFunc(j.limits.Total, func() {
			j.Cancel(fmt.Errorf("not done after %s, now at stage %q: %w", j.limits.Total, j.Info().Stage, errs.Deadline))
		})
	}
	if j.limits.Stage > 0 {
		j.watchdog = time.AfterFunc(j.limits.Stage, func() {
			at := j.Info()
			j.Cancel(fmt.Errorf("no progress for %s in stage %q, waiting for %s: %w", j.limits.Stage, at.Stage, at.WaitsFor, errs.Deadline))
		})
	}
	return func() {
		total.Stop()
		j.mu.Lock()
		defer j.mu.Unlock()
		if j.watchdog != nil {
			j.watchdog.Stop()
			j.watchdog = nil
		}
	}
}
