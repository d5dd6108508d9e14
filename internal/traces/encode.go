package traces

import (
	"math"
	"strings"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"
	"google.golang.org/protobuf/encoding/protowire"
)

// message is a message of protobuf in its encoding. The numbers of fields are those of OTLP's .proto files, which
// never change; a test compares them with OTLP's own module.
type message []byte

func (m *message) embed(field protowire.Number, inner message) {
	*m = protowire.AppendBytes(protowire.AppendTag(*m, field, protowire.BytesType), inner)
}

// text leaves out what is empty, as proto3 does.
func (m *message) text(field protowire.Number, s string) {
	if s != "" {
		m.characters(field, s)
	}
}

// characters replaces what is not UTF-8, as texts of programs and names of files may have it, and texts that are cut: a
// receiver may refuse all spans of the request.
func (m *message) characters(field protowire.Number, s string) {
	*m = protowire.AppendString(protowire.AppendTag(*m, field, protowire.BytesType), strings.ToValidUTF8(s, "\uFFFD"))
}

func (m *message) number(field protowire.Number, n uint64) {
	if n != 0 {
		*m = protowire.AppendVarint(protowire.AppendTag(*m, field, protowire.VarintType), n)
	}
}

func (m *message) time(field protowire.Number, at time.Time) {
	*m = protowire.AppendFixed64(protowire.AppendTag(*m, field, protowire.Fixed64Type), uint64(max(at.UnixNano(), 0))) //nolint:gosec // not negative
}

func (m *message) flags(field protowire.Number, flags uint32) {
	*m = protowire.AppendFixed32(protowire.AppendTag(*m, field, protowire.Fixed32Type), flags)
}

func (m *message) attributes(field protowire.Number, all []attribute.KeyValue) {
	for _, kv := range all {
		var pair message
		pair.text(1, string(kv.Key))
		pair.embed(2, valueOf(kv.Value))
		m.embed(field, pair)
	}
}

// valueOf is a value as AnyValue. The types that berth's spans have keep their type, others become text.
func valueOf(v attribute.Value) message {
	var m message
	switch v.Type() {
	case attribute.BOOL:
		m = protowire.AppendVarint(protowire.AppendTag(m, 2, protowire.VarintType), protowire.EncodeBool(v.AsBool()))
	case attribute.INT64:
		m = protowire.AppendVarint(protowire.AppendTag(m, 3, protowire.VarintType), uint64(v.AsInt64())) //nolint:gosec // protobuf's int64
	case attribute.FLOAT64:
		m = protowire.AppendFixed64(protowire.AppendTag(m, 4, protowire.Fixed64Type), math.Float64bits(v.AsFloat64()))
	default:
		m.characters(1, v.String())
	}
	return m
}

// encode makes an ExportTraceServiceRequest of spans, which are all of one resource and one scope.
func encode(spans []sdktrace.ReadOnlySpan) []byte {
	if len(spans) == 0 {
		return nil
	}
	var of, scoped, inScope, all, request message
	of.attributes(1, spans[0].Resource().Attributes())
	scoped.text(1, spans[0].InstrumentationScope().Name)
	scoped.text(2, spans[0].InstrumentationScope().Version)
	inScope.embed(1, scoped)
	for _, span := range spans {
		inScope.embed(2, spanOf(span))
	}
	all.embed(1, of)
	all.embed(2, inScope)
	request.embed(1, all)
	return request
}

func spanOf(span sdktrace.ReadOnlySpan) message {
	var m message
	identity, parent := span.SpanContext(), span.Parent()
	traceID, spanID := identity.TraceID(), identity.SpanID()
	m.embed(1, traceID[:])
	m.embed(2, spanID[:])
	m.text(3, identity.TraceState().String())
	if id := parent.SpanID(); id.IsValid() {
		m.embed(4, id[:])
	}
	m.text(5, span.Name())
	m.number(6, kindOf(span.SpanKind()))
	m.time(7, span.StartTime())
	m.time(8, span.EndTime())
	m.attributes(9, span.Attributes())
	m.number(10, uint64(max(span.DroppedAttributes(), 0))) //nolint:gosec // not negative
	for _, link := range span.Links() {
		m.embed(13, linkOf(link))
	}
	m.number(14, uint64(max(span.DroppedLinks(), 0))) //nolint:gosec // not negative
	if status := span.Status(); status.Code != codes.Unset {
		m.embed(15, statusOf(status))
	}
	m.flags(16, flagsOf(identity, parent))
	return m
}

func linkOf(link sdktrace.Link) message {
	var m message
	traceID, spanID := link.SpanContext.TraceID(), link.SpanContext.SpanID()
	m.embed(1, traceID[:])
	m.embed(2, spanID[:])
	m.text(3, link.SpanContext.TraceState().String())
	m.attributes(4, link.Attributes)
	m.flags(6, flagsOf(link.SpanContext, link.SpanContext))
	return m
}

func statusOf(status sdktrace.Status) message {
	var m message
	m.text(2, status.Description)
	switch status.Code {
	case codes.Ok:
		m.number(3, 1)
	case codes.Error:
		m.number(3, 2)
	}
	return m
}

// kindOf is a SpanKind of OTLP.
func kindOf(kind trace.SpanKind) uint64 {
	if kind == trace.SpanKindServer {
		return 2
	}
	return 1 // internal
}

// flagsOf has the flags of W3C, and whether the parent is of another process.
func flagsOf(identity, parent trace.SpanContext) uint32 {
	const isKnown, isRemote = 1 << 8, 1 << 9
	flags := uint32(identity.TraceFlags()) | isKnown
	if parent.IsRemote() {
		flags |= isRemote
	}
	return flags
}

// rejectedSpans reads the partial success in an ExportTraceServiceResponse. What cannot be read says nothing.
func rejectedSpans(reply []byte) (spans int64, why string) {
	partial, _ := protowireField(reply, 1, protowire.BytesType)
	_, count := protowireField(partial, 1, protowire.VarintType)
	text, _ := protowireField(partial, 2, protowire.BytesType)
	return int64(count), string(text) //nolint:gosec // protobuf's int64
}

// protowireField finds a field of a message.
func protowireField(m []byte, number protowire.Number, kind protowire.Type) (content []byte, value uint64) {
	for len(m) > 0 {
		field, fieldKind, n := protowire.ConsumeTag(m)
		if n < 0 {
			return nil, 0
		}
		m = m[n:]
		size := protowire.ConsumeFieldValue(field, fieldKind, m)
		if size < 0 {
			return nil, 0
		}
		if field == number && fieldKind == kind {
			if kind == protowire.VarintType {
				value, _ = protowire.ConsumeVarint(m)
				return nil, value
			}
			content, _ = protowire.ConsumeBytes(m)
			return content, 0
		}
		m = m[size:]
	}
	return nil, 0
}
