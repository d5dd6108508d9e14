package traces

import (
	"context"
	"sync"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/trace"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berthrun/berth/internal/pod/job"
)

// JobBegan implements job.Tracer: a span for the job below that of the request which has started it, and one for each
// stage below that.
func (t *Tracer) JobBegan(ctx context.Context, req *job.Request) (context.Context, job.Trace) {
	on := t.on.Load()
	if on == nil {
		return ctx, nil
	}
	ctx, span := on.start(ctx, string(req.Kind), trace.WithAttributes(attributesOf(req)...))
	if !span.IsRecording() {
		return ctx, nil
	}
	return ctx, &jobTrace{pipeline: on, span: span}
}

// attributesOf has the names and ids in a request for a job. Environments, arguments and annotations are not there.
func attributesOf(req *job.Request) []attribute.KeyValue {
	all := []attribute.KeyValue{attribute.String("berth.id", req.ID), attribute.String("berth.key", req.Key)}
	if req.Resumed {
		all = append(all, attribute.Bool("berth.resumed", true))
	}
	add := func(key, value string) {
		if value != "" {
			all = append(all, attribute.String(key, value))
		}
	}
	switch want := req.Want.(type) {
	case *runtimeapi.RunPodSandboxRequest:
		meta := want.GetConfig().GetMetadata()
		add("k8s.namespace.name", meta.GetNamespace())
		add("k8s.pod.name", meta.GetName())
		add("k8s.pod.uid", meta.GetUid())
		add("berth.handler", want.GetRuntimeHandler())
	case *runtimeapi.CreateContainerRequest:
		add("berth.sandbox.id", want.GetPodSandboxId())
		add("k8s.container.name", want.GetConfig().GetMetadata().GetName())
		add("container.image.name", want.GetConfig().GetImage().GetImage())
	}
	return all
}

// jobTrace is the trace of a job.
type jobTrace struct {
	*pipeline
	span trace.Span

	mu sync.Mutex
	// stage is the span of the present stage, nil before the first one.
	stage trace.Span
	// failed says that a stage has failed: the undo that follows has not, unless it says so.
	failed bool
}

// StageBegan implements job.Trace.
func (j *jobTrace) StageBegan(name, waitsFor string, at time.Time) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.endStage(at)
	_, j.stage = j.start(trace.ContextWithSpan(context.Background(), j.span), name,
		trace.WithTimestamp(at), trace.WithAttributes(attribute.String("berth.waits_for", waitsFor)))
}

// endStage ends the present stage. j.mu is held.
func (j *jobTrace) endStage(at time.Time) {
	if j.stage != nil {
		j.stage.End(trace.WithTimestamp(at))
	}
}

// StageFailed implements job.Trace.
func (j *jobTrace) StageFailed(err error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.failed = true
	if j.stage != nil {
		j.fail(j.stage, err)
	}
}

// Joined implements job.Trace. The trace of the request gets a span that leads to the job in the other trace.
func (j *jobTrace) Joined(ctx context.Context) {
	if !trace.SpanContextFromContext(ctx).IsSampled() {
		return
	}
	_, span := j.start(ctx, "join a job", trace.WithLinks(trace.Link{SpanContext: j.span.SpanContext()}))
	span.End()
}

// Ended implements job.Trace.
func (j *jobTrace) Ended(result string, err error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	now := time.Now()
	if err != nil {
		if !j.failed && j.stage != nil {
			j.fail(j.stage, err)
		}
		j.fail(j.span, err)
	}
	j.endStage(now)
	j.span.SetAttributes(attribute.String("berth.result", result))
	j.span.End(trace.WithTimestamp(now))
}
