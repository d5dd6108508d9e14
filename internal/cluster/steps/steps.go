// Package steps runs a list of steps, some of them in the background, and reports them to the user.
package steps

import (
	"context"
	"sync"

	"github.com/berthrun/berth/internal/cluster/report"
)

// Step is one part of a list of steps. Steps start in the order of the list. A step without a job
// ends before the next one starts. A step with a job runs in the background, beside the next steps.
type Step struct {
	// Title is shown to the user. A step without one belongs to the titled step before it.
	Title string
	// Job is the step as what others depend on; nil is a step in the foreground.
	Job *Job
	// After are jobs that have to succeed before the step runs. They come earlier in the list.
	After []*Job
	// Run is what the step does. A step in the foreground without it waits for After only.
	Run func(context.Context) error
	// Skip leaves the step out.
	Skip bool
}

// Job is a step that runs in the background.
type Job struct {
	ended chan struct{}
	err   error // once it has ended
}

// NewJob returns a job that has not started.
func NewJob() *Job { return &Job{ended: make(chan struct{})} }

// Ended reports whether the job has ended.
func (j *Job) Ended() bool {
	select {
	case <-j.ended:
		return true
	default:
		return false
	}
}

// Wait waits for the end of the job, or of ctx, and returns its error.
func (j *Job) Wait(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-j.ended:
		return j.err
	}
}

// During returns a context that ends when the job does.
func (j *Job) During(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(ctx)
	go func() {
		_ = j.Wait(ctx)
		cancel()
	}()
	return ctx, cancel
}

// Run runs a list of steps, until one in the foreground fails. A job that fails stops the steps
// that come after it, and nothing else. When Run returns, all jobs have ended.
func Run(ctx context.Context, r report.Reporter, steps []Step) error {
	ctx, cancel := context.WithCancel(ctx)
	var jobs sync.WaitGroup
	defer jobs.Wait()
	defer cancel()
	for _, titled := range byTitle(steps) {
		err := r.RunStep(titled[0].Title, func() error {
			for _, s := range titled {
				if ctx.Err() != nil {
					return context.Cause(ctx)
				}
				if s.Job != nil {
					jobs.Go(func() { s.start(ctx) })
					continue
				}
				if err := s.finish(ctx); err != nil {
					return err
				}
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// byTitle groups each step that has a title with those that belong to it, without those to skip.
func byTitle(steps []Step) [][]Step {
	var all [][]Step
	for _, s := range steps {
		switch {
		case s.Skip:
		case s.Title != "":
			all = append(all, []Step{s})
		default:
			all[len(all)-1] = append(all[len(all)-1], s)
		}
	}
	return all
}

// start runs a step in the background.
func (s Step) start(ctx context.Context) {
	defer close(s.Job.ended)
	for _, j := range s.After {
		if s.Job.err = j.Wait(ctx); s.Job.err != nil {
			return
		}
	}
	s.Job.err = s.Run(ctx)
}

// finish runs a step in the foreground, once all jobs that it depends on have ended.
func (s Step) finish(ctx context.Context) error {
	for _, j := range s.After {
		<-j.ended
	}
	for _, j := range s.After {
		if j.err != nil {
			return j.err
		}
	}
	if s.Run == nil {
		return nil
	}
	return s.Run(ctx)
}
