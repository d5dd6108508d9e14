// Package traces makes spans of requests, jobs and pulls, and sends them to an OTLP receiver.
//
// It is the only package with OpenTelemetry's SDK. While no endpoint is set there is no goroutine, and each call
// costs one atomic load. It sets none of the SDK's globals, and no library gets its provider: the spans of
// libraries would have the URLs of registries, which may carry credentials.
package traces

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"

	"github.com/berthrun/berth/internal/errs"
)

// The protocols of OTLP.
const (
	GRPC = "grpc"
	HTTP = "http"
)

// million is the sampling rate at which every trace is kept.
const million = 1_000_000

// Settings say where spans go, and which.
type Settings struct {
	// Endpoint is http://HOST:PORT or https://HOST:PORT, "" for no traces.
	Endpoint string
	// Protocol is GRPC or HTTP.
	Protocol string
	// RatePerMillion is how many of a million traces are kept that begin here. A trace that a client has begun is
	// kept if the client keeps it.
	RatePerMillion int
	// CAFile has the authorities that verify the receiver, "" for those of the system. CertFile and KeyFile are
	// the certificate that the daemon shows to it, "" for none.
	CAFile, CertFile, KeyFile string
}

// Options configure a Tracer.
type Options struct {
	// Version is berth's. Instance distinguishes it from others on the host.
	Version, Instance string
	// Scrub removes credentials from the texts of errors; nil keeps them as they are.
	Scrub func(string) string
	Log   *slog.Logger
}

// Tracer makes spans. It implements the tracers of packages cri, pod/job and image. All methods are safe for
// concurrent use.
type Tracer struct {
	opts Options
	// on is nil while no spans are made.
	on atomic.Pointer[pipeline]

	mu       sync.Mutex
	closed   bool
	settings Settings
}

// pipeline makes spans and sends them with one configuration.
type pipeline struct {
	provider *sdktrace.TracerProvider
	tracer   trace.Tracer
	scrub    func(string) string
}

// scope names what makes the spans.
const scope = "github.com/berthrun/berth"

// Limits of what waits to be sent, and of the end of a pipeline.
const (
	maxQueue     = 8192
	maxBatch     = 512
	batchDelay   = 2 * time.Second
	closeTimeout = 3 * time.Second
)

// New makes a Tracer that makes no spans yet.
func New(opts Options) *Tracer {
	if opts.Log == nil {
		opts.Log = slog.New(slog.DiscardHandler)
	}
	if opts.Scrub == nil {
		opts.Scrub = func(text string) string { return text }
	}
	return &Tracer{opts: opts}
}

// Apply makes spans with other settings from now on. It reads the files of the settings again. It does not connect:
// a receiver may come later. When it returns an error, the former settings stay in force.
func (t *Tracer) Apply(settings Settings) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed || settings == t.settings && settings.CAFile == "" && settings.CertFile == "" {
		return nil
	}
	var next *pipeline
	if settings.Endpoint != "" {
		sender, err := newSender(settings)
		if err != nil {
			return fmt.Errorf("cannot send traces to %s (traces.endpoint): %w", settings.Endpoint, err)
		}
		next = t.open(settings, sender)
	}
	former := t.on.Swap(next)
	t.settings = settings
	if former != nil {
		go t.end(context.Background(), former)
	}
	if next != nil {
		t.opts.Log.Info("sending traces", "endpoint", settings.Endpoint, "protocol", settings.Protocol, "rate_per_million", settings.RatePerMillion)
	}
	return nil
}

// open makes a pipeline.
func (t *Tracer) open(settings Settings, to sender) *pipeline {
	attributes := []attribute.KeyValue{
		attribute.String("service.name", "berth"), attribute.String("service.version", t.opts.Version),
		attribute.String("service.instance.id", cmp.Or(t.opts.Instance, "default")),
	}
	if name, err := os.Hostname(); err == nil {
		attributes = append(attributes, attribute.String("host.name", name))
	}
	provider := sdktrace.NewTracerProvider(
		sdktrace.WithSampler(sdktrace.ParentBased(sdktrace.TraceIDRatioBased(float64(settings.RatePerMillion)/million))),
		sdktrace.WithResource(resource.NewSchemaless(attributes...)),
		sdktrace.WithBatcher(&exporter{sender: to, endpoint: settings.Endpoint, log: t.opts.Log},
			sdktrace.WithMaxQueueSize(maxQueue), sdktrace.WithMaxExportBatchSize(maxBatch), sdktrace.WithBatchTimeout(batchDelay)),
	)
	return &pipeline{provider: provider, tracer: provider.Tracer(scope, trace.WithInstrumentationVersion(t.opts.Version)), scrub: t.opts.Scrub}
}

// end sends what waits, within closeTimeout.
func (t *Tracer) end(ctx context.Context, p *pipeline) {
	ctx, cancel := context.WithTimeout(ctx, closeTimeout)
	defer cancel()
	if err := p.provider.Shutdown(ctx); err != nil {
		t.opts.Log.Warn("cannot send the last spans", "error", err)
	}
}

// Close sends the spans that wait, as far as closeTimeout and ctx let it. Apply does nothing afterwards.
func (t *Tracer) Close(ctx context.Context) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.closed = true
	if p := t.on.Swap(nil); p != nil {
		t.end(ctx, p)
	}
}

// start begins a span below that of a context. The context that it returns has the identity of the span, and not
// the span: libraries look for a provider in it.
func (p *pipeline) start(ctx context.Context, name string, opts ...trace.SpanStartOption) (context.Context, trace.Span) {
	_, span := p.tracer.Start(ctx, name, opts...)
	return trace.ContextWithSpanContext(ctx, span.SpanContext()), span
}

// maxMessage is the longest text of an error in a span, in bytes.
const maxMessage = 2 << 10

// fail gives a span the status of an error.
func (p *pipeline) fail(span trace.Span, err error) {
	message := p.scrub(err.Error())
	if len(message) > maxMessage {
		message = message[:maxMessage] + "..."
	}
	span.SetStatus(codes.Error, message)
	if kind := errs.Kind(err); kind != nil {
		span.SetAttributes(attribute.String("error.type", kind.Error()))
	}
}
