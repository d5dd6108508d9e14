package traces

import (
	"context"
	"log/slog"
	"strings"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"
	"google.golang.org/grpc/metadata"
)

// RequestBegan implements cri.Tracer. It continues the trace of a client, which comes in the metadata (W3C Trace
// Context).
func (t *Tracer) RequestBegan(ctx context.Context, fullMethod string, reads bool) (context.Context, func(code, message string, about []slog.Attr)) {
	on := t.on.Load()
	if on == nil {
		return ctx, nil
	}
	if md, ok := metadata.FromIncomingContext(ctx); ok {
		ctx = propagation.TraceContext{}.Extract(ctx, carrier(md))
	}
	if reads && !trace.SpanContextFromContext(ctx).IsSampled() {
		return ctx, nil // a kubelet reads every second
	}
	method := strings.TrimPrefix(fullMethod, "/")
	ctx, span := on.start(ctx, method, trace.WithSpanKind(trace.SpanKindServer), trace.WithAttributes(
		attribute.String("rpc.system.name", "grpc"), attribute.String("rpc.method", method)))
	if !span.IsRecording() {
		return ctx, nil
	}
	return ctx, func(code, message string, about []slog.Attr) {
		span.SetAttributes(attribute.String("rpc.response.status_code", code))
		span.SetAttributes(described(about)...)
		if isFault(code) {
			span.SetStatus(codes.Error, message)
		}
		span.End()
	}
}

// described has the objects of a request in the names that OpenTelemetry has for them.
func described(about []slog.Attr) []attribute.KeyValue {
	var all []attribute.KeyValue
	for _, attr := range about {
		value := attr.Value.String()
		switch attr.Key {
		case "pod":
			namespace, name, _ := strings.Cut(value, "/")
			all = append(all, attribute.String("k8s.namespace.name", namespace), attribute.String("k8s.pod.name", name))
		case "sandbox":
			all = append(all, attribute.String("berth.sandbox.id", value))
		case "container":
			all = append(all, attribute.String("container.id", value))
		case "name":
			all = append(all, attribute.String("k8s.container.name", value))
		case "image":
			all = append(all, attribute.String("container.image.name", value))
		case "id":
			all = append(all, attribute.String("container.image.id", value))
		}
	}
	return all
}

// isFault reports whether a code means that the server has failed, as OpenTelemetry's conventions have it: a client
// that asks for what does not exist gets an answer.
func isFault(code string) bool {
	switch code {
	case "Unknown", "DeadlineExceeded", "Unimplemented", "Internal", "Unavailable", "DataLoss":
		return true
	}
	return false
}

// carrier reads the metadata of a request.
type carrier metadata.MD

// Get implements propagation.TextMapCarrier.
func (c carrier) Get(key string) string {
	if values := metadata.MD(c).Get(key); len(values) > 0 {
		return values[0]
	}
	return ""
}

// Set implements propagation.TextMapCarrier.
func (c carrier) Set(key, value string) { metadata.MD(c).Set(key, value) }

// Keys implements propagation.TextMapCarrier.
func (c carrier) Keys() []string {
	keys := make([]string, 0, len(c))
	for key := range c {
		keys = append(keys, key)
	}
	return keys
}
