package traces

import (
	"context"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/trace"
)

// PullTraced implements image.PullTracer: a span for the pull below that of the request which has started it, and one
// for each stage below that.
func (t *Tracer) PullTraced(ctx context.Context, ref string) (context.Context, func(stage string), func(bytes int64, err error)) {
	on := t.on.Load()
	if on == nil {
		return ctx, nil, nil
	}
	ctx, span := on.start(ctx, "pull image", trace.WithAttributes(attribute.String("container.image.name", ref)))
	if !span.IsRecording() {
		return ctx, nil, nil
	}
	pull := &jobTrace{pipeline: on, span: span}
	return ctx, func(stage string) { pull.StageBegan(stage, "the registry", time.Now()) }, func(bytes int64, err error) {
		result := "ok"
		if err != nil {
			result = "failed"
		}
		span.SetAttributes(attribute.Int64("berth.pull.bytes", bytes))
		pull.Ended(result, err)
	}
}
