package image

import (
	"context"
	"time"
)

// Jobs shows work that takes long to people, who may cancel it.
type Jobs interface {
	// Run calls work and returns its error. The context of work ends with ctx, or when somebody cancels
	// the job, with the cause of it.
	Run(ctx context.Context, job Job, work func(ctx context.Context, at Stage) error) error
}

// Job describes work.
type Job struct {
	// Kind says what it does, Key to what, and ID is a short name of that, by which it can be cancelled.
	Kind, Key, ID string
	// Waited is set if a request waits for its end.
	Waited bool
	// Beside is set if it runs beside other jobs of its Key. Else it waits for them.
	Beside bool
	// Live is how far it has come, nil for work that does not count it. It may be called at any time, also in a report of
	// the work's stage.
	Live func() Live
}

// Live is how far a job has come at this moment.
type Live struct {
	// Fetched is how many of the Size bytes of layers the job has fetched. Size is 0 while unknown.
	Fetched, Size int64
	// Done is how many of the Total bytes of the stage are done. Total is 0 where the stage has no bytes.
	Done, Total int64
	// Waiters is how many requests wait for the job.
	Waiters int
}

// Stage reports what a job does from now on, and what it waits for there. It counts as slow some time
// after until.
type Stage func(name, waitsFor string, until time.Time)

const (
	stagePause = 3 * time.Second
	// slowStage is how long a job that reads or waits for others may be in one stage before it counts as slow.
	slowStage = 10 * time.Minute
)

// Stages reports the stages of one job, and how far each has come. It reports often enough for people. Its methods are
// not safe for concurrent use.
type Stages struct {
	at             Stage
	name, waitsFor string
	last           time.Time
}

// NewStages returns Stages that report to at.
func NewStages(at Stage) *Stages { return &Stages{at: at} }

// Say reports a stage and what it waits for, unless it has reported that stage less than 3 s ago.
func (s *Stages) Say(name, waitsFor string) { s.say(name, waitsFor, slowStage) }

func (s *Stages) say(name, waitsFor string, slow time.Duration) {
	now := time.Now()
	if name == s.name && now.Sub(s.last) < stagePause {
		return
	}
	s.name, s.waitsFor, s.last = name, waitsFor, now
	s.at(name, waitsFor, now.Add(slow))
}

// SayMoved reports that a job with Live has changed its stage or has moved in it. waitsFor has no numbers that grow: each
// change of it is reported at once. The stage is slow soon after the last call, later if it queues for other work.
func (s *Stages) SayMoved(name, waitsFor string, queues bool) {
	if waitsFor != s.waitsFor {
		s.name = ""
	}
	slow := time.Duration(0)
	if queues {
		slow = slowStage
	}
	s.say(name, waitsFor, slow)
}

// Unlisted runs jobs that nobody sees.
type Unlisted struct{}

var _ Jobs = Unlisted{}

// Run implements Jobs.
func (Unlisted) Run(ctx context.Context, _ Job, work func(context.Context, Stage) error) error {
	return work(ctx, func(string, string, time.Time) {})
}
