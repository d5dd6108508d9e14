package job

import (
	"context"
	"time"
)

// Tracer follows jobs in traces. It must not block.
type Tracer interface {
	// JobBegan is called with each new job and the context of the request that has started it. It returns the
	// context of the job's work and its trace, which is nil for a job that is not traced.
	JobBegan(ctx context.Context, req *Request) (context.Context, Trace)
}

// Trace is the trace of one job. Its methods are safe for concurrent use.
type Trace interface {
	// StageBegan is called with each stage, and ends the one before it.
	StageBegan(name, waitsFor string, at time.Time)
	// StageFailed is called with the error of the present stage.
	StageFailed(err error)
	// Joined is called with the context of each request that joins the job.
	Joined(ctx context.Context)
	// Ended is called once, at the end, with a result of JobEnded and the job's error.
	Ended(result string, err error)
}

// StageFailed publishes that the present stage has failed, where the job does not end with it: it goes on
// with the undo of what it has done. The stage in which a job ends with an error has failed anyway.
func (j *Job) StageFailed(err error) {
	if j.trace != nil && err != nil {
		j.trace.StageFailed(err)
	}
}

// Trace has the tracer follow the jobs. Call it before the first one.
func (t *Table) Trace(tracer Tracer) { t.tracer = tracer }

// traceNew begins the trace of a new job. It returns the context of the job's work.
func (t *Table) traceNew(ctx context.Context, j *Job, req *Request) context.Context {
	if t.tracer != nil {
		ctx, j.trace = t.tracer.JobBegan(ctx, req)
	}
	return ctx
}

// traceJoin adds a request to the trace of the job that it joins.
func (j *Job) traceJoin(ctx context.Context) {
	if j.trace != nil {
		j.trace.Joined(ctx)
	}
}
