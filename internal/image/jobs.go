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
	// Fetched is how many bytes it has fetched so far, nil for work that fetches none.
	Fetched func() int64
}

// Stage reports what a job does from now on, and what it waits for there. It counts as slow some time
// after until.
type Stage func(name, waitsFor string, until time.Time)

const (
	stagePause = 3 * time.Second
	// slowStage is how long a job may be in one stage before it counts as slow.
	slowStage = 10 * time.Minute
)

// Stages reports the stages of one job, and how far each has come. It reports often enough for people. Its methods are
// not safe for concurrent use.
type Stages struct {
	at   Stage
	name string
	last time.Time
}

// NewStages returns Stages that report to at.
func NewStages(at Stage) *Stages { return &Stages{at: at} }

// Say reports a stage and what it waits for, unless it has reported that stage less than 3 s ago.
func (s *Stages) Say(name, waitsFor string) {
	now := time.Now()
	if name == s.name && now.Sub(s.last) < stagePause {
		return
	}
	s.name, s.last = name, now
	s.at(name, waitsFor, now.Add(slowStage))
}

// Unlisted runs jobs that nobody sees.
type Unlisted struct{}

var _ Jobs = Unlisted{}

// Run implements Jobs.
func (Unlisted) Run(ctx context.Context, _ Job, work func(context.Context, Stage) error) error {
	return work(ctx, func(string, string, time.Time) {})
}
