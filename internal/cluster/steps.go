package cluster

import (
	"context"
	"sync"

	"github.com/berthrun/berth/internal/cluster/report"
)

// step is one part of a list of steps. Steps start in the order of the list. A step without a job
// ends before the next one starts. A step with a job runs in the background, beside the next steps.
type step struct {
	// title is shown to the user. A step without one belongs to the titled step before it.
	title string
	// job is the step as what others depend on; nil is a step in the foreground.
	job *job
	// after are jobs that have to succeed before the step runs. They come earlier in the list.
	after []*job
	// run is what the step does. A step in the foreground without it waits for after only.
	run func(context.Context) error
	// skip leaves the step out.
	skip bool
}

// job is a step that runs in the background.
type job struct {
	ended chan struct{}
	err   error // once it has ended
}

func newJob() *job { return &job{ended: make(chan struct{})} }

// over reports whether the job has ended.
func (j *job) over() bool {
	select {
	case <-j.ended:
		return true
	default:
		return false
	}
}

// wait waits for the end of the job, or of ctx, and returns its error.
func (j *job) wait(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-j.ended:
		return j.err
	}
}

// during returns a context that ends when the job does.
func (j *job) during(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(ctx)
	go func() {
		_ = j.wait(ctx)
		cancel()
	}()
	return ctx, cancel
}

// runSteps runs a list of steps, until one in the foreground fails. A job that fails stops the steps
// that come after it, and nothing else. When runSteps returns, all jobs have ended.
func runSteps(ctx context.Context, r report.Reporter, steps []step) error {
	ctx, cancel := context.WithCancel(ctx)
	var jobs sync.WaitGroup
	defer jobs.Wait()
	defer cancel()
	for _, titled := range byTitle(steps) {
		err := r.RunStep(titled[0].title, func() error {
			for _, s := range titled {
				if ctx.Err() != nil {
					return context.Cause(ctx)
				}
				if s.job != nil {
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
func byTitle(steps []step) [][]step {
	var all [][]step
	for _, s := range steps {
		switch {
		case s.skip:
		case s.title != "":
			all = append(all, []step{s})
		default:
			all[len(all)-1] = append(all[len(all)-1], s)
		}
	}
	return all
}

// start runs a step in the background.
func (s step) start(ctx context.Context) {
	defer close(s.job.ended)
	for _, j := range s.after {
		if s.job.err = j.wait(ctx); s.job.err != nil {
			return
		}
	}
	s.job.err = s.run(ctx)
}

// finish runs a step in the foreground, once all jobs that it depends on have ended.
func (s step) finish(ctx context.Context) error {
	for _, j := range s.after {
		<-j.ended
	}
	for _, j := range s.after {
		if j.err != nil {
			return j.err
		}
	}
	if s.run == nil {
		return nil
	}
	return s.run(ctx)
}
