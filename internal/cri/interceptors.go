package cri

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path"
	"runtime/debug"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	crierrors "k8s.io/cri-api/pkg/errors"

	"github.com/berthrun/berth/internal/cri/scrub"
	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/image"
)

// kindCode pairs a kind of error with its gRPC code.
type kindCode struct {
	kind error
	code codes.Code
}

// kindCodes is the one table from kinds to codes. The first that an error wraps
// decides.
func kindCodes() []kindCode {
	return []kindCode{
		{errs.NotFound, codes.NotFound},
		{errs.Exists, codes.AlreadyExists},
		{errs.Invalid, codes.InvalidArgument},
		{errs.State, codes.FailedPrecondition},
		{errs.Unavailable, codes.Unavailable},
		{errs.Unsupported, codes.Unimplemented},
		{errs.Exhausted, codes.ResourceExhausted},
		{errs.Deadline, codes.DeadlineExceeded},
		{errs.Denied, codes.PermissionDenied},
		{context.DeadlineExceeded, codes.DeadlineExceeded},
		{context.Canceled, codes.Canceled},
	}
}

// toStatus gives err its code and removes credentials from its text.
func (i interceptors) toStatus(err error) error {
	if err == nil {
		return nil
	}
	// The kubelet knows these words only at the beginning of the text, and only if the code is Unknown.
	var refused *image.RefusedError
	if errors.As(err, &refused) {
		return status.Error(codes.Unknown, i.text(crierrors.ErrSignatureValidationFailed.Error()+": "+err.Error()))
	}
	if errors.Is(err, crierrors.ErrRegistryUnavailable) {
		return status.Error(codes.Unknown, i.text(err.Error()))
	}
	cause := errs.Kind(err)
	if cause == nil {
		cause = err
	}
	for _, row := range kindCodes() {
		if errors.Is(cause, row.kind) {
			return status.Error(row.code, i.text(err.Error()))
		}
	}
	if s, ok := status.FromError(err); ok {
		return status.Error(s.Code(), i.text(s.Message()))
	}
	return status.Error(codes.Internal, i.text(err.Error()))
}

// maxMessage is the longest error text that is sent, in bytes. It is sent in a header, and clients
// close the connection if a header is too long.
const maxMessage = 4 << 10

// text returns an error's text without credentials, and without its middle if it is longer than
// maxMessage.
func (i interceptors) text(message string) string {
	message = i.scrub.Text(message)
	if len(message) <= maxMessage {
		return message
	}
	const half = maxMessage/2 - 32
	head, tail := message[:half], message[len(message)-half:]
	return strings.ToValidUTF8(fmt.Sprintf("%s... (%d bytes more) ...%s", head, len(message)-2*half, tail), "?")
}

// Observer counts requests. It must not block.
type Observer interface {
	// RequestBegan is called before a request is served, RequestEnded with the code of its answer, as package
	// codes prints it. fullMethod is "/SERVICE/METHOD", of a method that a service has.
	RequestBegan(fullMethod string)
	RequestEnded(fullMethod, code string, took time.Duration)
}

// Tracer follows requests in traces. It must not block.
type Tracer interface {
	// RequestBegan is called before a request is served; reads says that it changes nothing. It returns the context
	// of the request, and what to call at its end: with the code and the text of its answer, and the ids and names
	// of what it is about. The function is nil for a request that is not traced.
	RequestBegan(ctx context.Context, fullMethod string, reads bool) (context.Context, func(code, message string, about []slog.Attr))
}

// interceptors wrap every request.
type interceptors struct {
	log   *slog.Logger
	scrub *scrub.Scrubber
	// observer and tracer may be nil.
	observer Observer
	tracer   Tracer
}

// unary wraps every request that has one answer. It does not handle deadlines: a request that
// waits for a job returns before its caller's deadline and names the job's stage.
func (i interceptors) unary(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
	began := i.begin(info.FullMethod)
	ctx, traced := i.trace(ctx, info.FullMethod)
	resp, cause := i.recovered(ctx, info.FullMethod, func() (any, error) { return handler(ctx, req) })
	err := i.toStatus(cause)
	i.end(info.FullMethod, began, err)
	i.logRequest(ctx, info.FullMethod, began, cause, req, resp)
	if traced != nil {
		traced(status.Code(err).String(), status.Convert(err).Message(), append(i.identify(req), i.identify(resp)...))
	}
	if err != nil {
		return nil, err
	}
	return resp, nil
}

// stream wraps every request that has many messages.
func (i interceptors) stream(srv any, ss grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
	began := i.begin(info.FullMethod)
	ctx, traced := i.trace(ss.Context(), info.FullMethod)
	if traced != nil {
		ss = &tracedStream{ss, ctx}
	}
	_, cause := i.recovered(ss.Context(), info.FullMethod, func() (any, error) { return nil, handler(srv, ss) })
	err := i.toStatus(cause)
	i.end(info.FullMethod, began, err)
	i.logRequest(ss.Context(), info.FullMethod, began, cause)
	if traced != nil {
		traced(status.Code(err).String(), status.Convert(err).Message(), nil)
	}
	return err
}

// tracedStream has the context of a traced request.
type tracedStream struct {
	grpc.ServerStream
	ctx context.Context //nolint:containedctx // it replaces that of the stream
}

// Context implements grpc.ServerStream.
func (s *tracedStream) Context() context.Context { return s.ctx }

// trace begins the trace of a request.
func (i interceptors) trace(ctx context.Context, method string) (context.Context, func(code, message string, about []slog.Attr)) {
	if i.tracer == nil {
		return ctx, nil
	}
	return i.tracer.RequestBegan(ctx, method, reads(path.Base(method)))
}

// begin reports a request to the observer.
func (i interceptors) begin(method string) time.Time {
	if i.observer != nil {
		i.observer.RequestBegan(method)
	}
	return time.Now()
}

// end reports the end of a request to the observer. err has a status, or is nil.
func (i interceptors) end(method string, began time.Time, err error) {
	if i.observer != nil {
		i.observer.RequestEnded(method, status.Code(err).String(), time.Since(began))
	}
}

// recovered turns a panic into an error. It writes the stack to the log; the client does not get it.
func (i interceptors) recovered(ctx context.Context, method string, call func() (any, error)) (resp any, err error) {
	defer func() {
		if p := recover(); p != nil {
			i.log.ErrorContext(ctx, "request panicked", "method", path.Base(method), "panic", fmt.Sprint(p), "stack", string(debug.Stack()))
			resp, err = nil, status.Errorf(codes.Internal, "%s failed because of a fault in berth; its log has the stack", path.Base(method))
		}
	}()
	return call()
}

// logRequest writes the one log line of a request, with the ids in its messages: at debug level if
// the request only read and succeeded, so that a kubelet's polling does not fill the log.
func (i interceptors) logRequest(ctx context.Context, method string, began time.Time, err error, messages ...any) {
	took, name := time.Since(began), path.Base(method)
	level := slog.LevelInfo
	if reads(name) {
		level = slog.LevelDebug
	}
	var failure []slog.Attr
	if err != nil {
		s := status.Convert(i.toStatus(err))
		text := s.Message()
		if text == i.text(err.Error()) {
			text = i.text(errs.Message(err)) // the code has the kind
		}
		failure = []slog.Attr{slog.String("code", s.Code().String()), slog.String("error", text)}
		if s.Code() != codes.NotFound && s.Code() != codes.Unimplemented {
			level = slog.LevelWarn
		}
		if s.Code() == codes.Internal {
			level = slog.LevelError
		}
	}
	if !i.log.Enabled(ctx, level) {
		return
	}
	attrs := []slog.Attr{slog.String("method", name), slog.String("took", took.Round(time.Microsecond).String())}
	for _, message := range messages {
		attrs = append(attrs, i.identify(message)...)
	}
	i.log.LogAttrs(ctx, level, "request", append(attrs, failure...)...)
}

// reads reports whether the method changes nothing.
func reads(method string) bool {
	switch method {
	case "Get", "GetMetrics", "Version", "Status", "RuntimeConfig", "ExecSync", "ImageFsInfo", "GetContainerEvents", "WatchJobs":
		return true
	}
	return strings.HasPrefix(method, "List") || strings.HasPrefix(method, "Stream") ||
		strings.HasSuffix(method, "Status") || strings.HasSuffix(method, "Stats")
}

// identify returns the ids and names in a request or response, for the log.
func (i interceptors) identify(msg any) []slog.Attr {
	var attrs []slog.Attr
	add := func(key, value string) {
		if value != "" {
			attrs = append(attrs, slog.String(key, i.text(value)))
		}
	}
	if m, ok := msg.(interface{ GetPodSandboxId() string }); ok {
		add("sandbox", m.GetPodSandboxId())
	}
	if m, ok := msg.(interface{ GetContainerId() string }); ok {
		add("container", m.GetContainerId())
	}
	switch m := msg.(type) {
	case *runtimeapi.RunPodSandboxRequest:
		meta := m.GetConfig().GetMetadata()
		add("pod", meta.GetNamespace()+"/"+meta.GetName())
	case *runtimeapi.RestorePodRequest:
		meta := m.GetConfig().GetMetadata()
		add("pod", meta.GetNamespace()+"/"+meta.GetName())
	case *runtimeapi.CreateContainerRequest:
		add("name", m.GetConfig().GetMetadata().GetName())
		meta := m.GetSandboxConfig().GetMetadata()
		add("pod", meta.GetNamespace()+"/"+meta.GetName())
	}
	if m, ok := msg.(interface{ GetImage() *runtimeapi.ImageSpec }); ok {
		add("image", m.GetImage().GetImage())
	}
	if m, ok := msg.(interface{ GetImageRef() string }); ok {
		add("id", m.GetImageRef())
	}
	return attrs
}
