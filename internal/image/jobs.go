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
}

// Stage reports what a job does from now on, and what it waits for there. It counts as slow some time
// after until.
type Stage func(name, waitsFor string, until time.Time)

// Unlisted runs jobs that nobody sees.
type Unlisted struct{}

var _ Jobs = Unlisted{}

// Run implements Jobs.
func (Unlisted) Run(ctx context.Context, _ Job, work func(context.Context, Stage) error) error {
	return work(ctx, func(string, string, time.Time) {})
}
