package podrun

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/berthrun/berth/internal/cli/podyaml"
)

// workloadRun is one run of the pods of a document.
type workloadRun struct {
	*group
	w      *podyaml.Workload
	cancel context.CancelCauseFunc
	job    *retries
	// ended is closed, for each pod, when nothing of it runs or will run.
	ended  []chan struct{}
	codes  []int
	failed []error
	pods   sync.WaitGroup
}

// runWorkload runs the pods of one document: all at once, one after the other is ready,
// or so many at a time.
func (g *group) runWorkload(ctx context.Context, w *podyaml.Workload) (int, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	if w.Deadline > 0 {
		over := time.AfterFunc(w.Deadline, func() { cancel(errDeadline) })
		defer over.Stop()
	}
	r := &workloadRun{
		group: g, w: w, cancel: cancel, job: &retries{left: w.Retries},
		codes: make([]int, len(w.Pods)), failed: make([]error, len(w.Pods)), ended: make([]chan struct{}, len(w.Pods)),
	}
	for i := range r.ended {
		r.ended[i] = make(chan struct{})
	}
	r.startPods(ctx)
	r.pods.Wait()
	code := 0
	for _, c := range r.codes {
		if code == 0 {
			code = c
		}
	}
	if code == 0 && errors.Is(context.Cause(ctx), errDeadline) {
		code = 1
	}
	return code, errors.Join(r.failed...)
}

// startPods starts the pods until ctx ends.
func (r *workloadRun) startPods(ctx context.Context) {
	places := make(chan struct{}, max(len(r.w.Pods), 1))
	if r.w.Parallel > 0 {
		places = make(chan struct{}, r.w.Parallel)
	}
	for i := range r.w.Pods {
		select {
		case places <- struct{}{}:
		case <-ctx.Done():
		}
		if ctx.Err() != nil {
			close(r.ended[i])
			continue
		}
		ready := make(chan struct{})
		isReady := sync.OnceFunc(func() { close(ready) })
		r.pods.Go(func() {
			defer func() { <-places }()
			defer isReady()
			r.runOne(ctx, i, isReady)
		})
		if !r.w.Ordered {
			continue
		}
		select {
		case <-ready:
			// It returns an error when ctx has ended: then no other pod starts.
			_ = sleep(ctx, r.w.MinReady)
		case <-ctx.Done():
		}
	}
}

func (r *workloadRun) runOne(ctx context.Context, i int, ready func()) {
	defer close(r.ended[i])
	stopsLater, stop := r.untilLaterPodsEnded(ctx, i)
	defer stop()
	r.codes[i], r.failed[i] = r.runPod(stopsLater, r.w, r.w.Pods[i], r.job, ready)
	if r.failed[i] != nil || (r.w.IsJob() && r.codes[i] != 0) {
		r.cancel(r.failed[i])
	}
}

// untilLaterPodsEnded returns the context of a pod. Those of an ordered workload are
// stopped in the reverse order of their start: such a context ends after ctx has and
// the later pods are gone, or when Kill is closed.
func (r *workloadRun) untilLaterPodsEnded(ctx context.Context, i int) (context.Context, func()) {
	if !r.w.Ordered {
		return ctx, func() {}
	}
	own, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	go func() {
		select {
		case <-ctx.Done():
		case <-own.Done():
			return
		}
		for _, later := range r.ended[i+1:] {
			select {
			case <-later:
			case <-r.opts.Kill:
			}
		}
		cancel(context.Cause(ctx))
	}()
	return own, func() { cancel(nil) }
}
