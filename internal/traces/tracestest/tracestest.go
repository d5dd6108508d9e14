// Package tracestest has a receiver of OTLP for tests. It decodes with OTLP's own module.
package tracestest

import (
	"encoding/hex"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	collector "go.opentelemetry.io/proto/slim/otlp/collector/trace/v1"
	common "go.opentelemetry.io/proto/slim/otlp/common/v1"
	otlp "go.opentelemetry.io/proto/slim/otlp/trace/v1"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
)

// Span is a received span. IDs are in hexadecimal.
type Span struct {
	Name, TraceID, ID string
	// Parent is "" for the root of a trace.
	Parent string
	Kind   otlp.Span_SpanKind
	// Failed says that the status is an error, with Message.
	Failed     bool
	Message    string
	Attributes map[string]string
	// Resource are the attributes of what has made the span, Scope is its library.
	Resource map[string]string
	Scope    string
	// Links are the ids of other spans.
	Links      []string
	Start, End time.Time
	Flags      uint32
}

// Receiver keeps what it receives.
type Receiver struct {
	mu      sync.Mutex
	spans   []Span
	arrived chan struct{}
	// refuse is how many requests are still answered with an error.
	refuse int
}

// ServeHTTP serves OTLP over HTTP on a listener for the test's time.
func ServeHTTP(t testing.TB, listener net.Listener) *Receiver {
	t.Helper()
	r := &Receiver{arrived: make(chan struct{}, 1)}
	server := &http.Server{Handler: http.HandlerFunc(r.post), ReadHeaderTimeout: time.Minute}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		server.Serve(listener) //nolint:errcheck // it ends with the test
	}()
	t.Cleanup(func() {
		server.Close()
		<-ended
	})
	return r
}

// ServeGRPC serves OTLP over gRPC on a listener for the test's time.
func ServeGRPC(t testing.TB, listener net.Listener, opts ...grpc.ServerOption) *Receiver {
	t.Helper()
	r := &Receiver{arrived: make(chan struct{}, 1)}
	server := grpc.NewServer(append(opts, grpc.UnknownServiceHandler(r.call))...)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		server.Serve(listener) //nolint:errcheck // it ends with the test
	}()
	t.Cleanup(func() {
		server.Stop()
		<-ended
	})
	return r
}

// Refuse has the receiver answer the next requests with an error that may be tried again.
func (r *Receiver) Refuse(requests int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.refuse = requests
}

func (r *Receiver) post(w http.ResponseWriter, req *http.Request) {
	body, err := io.ReadAll(req.Body)
	switch {
	case err != nil || req.URL.Path != "/v1/traces" || req.Header.Get("Content-Type") != "application/x-protobuf":
		http.Error(w, fmt.Sprint("not OTLP: ", req.URL, req.Header, err), http.StatusBadRequest)
		return
	case r.refuses():
		http.Error(w, "later", http.StatusServiceUnavailable)
		return
	}
	message := &collector.ExportTraceServiceRequest{}
	if err := proto.Unmarshal(body, message); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	r.take(message)
}

func (r *Receiver) call(_ any, stream grpc.ServerStream) error {
	method, _ := grpc.MethodFromServerStream(stream)
	message := &collector.ExportTraceServiceRequest{}
	if err := stream.RecvMsg(message); err != nil {
		return err
	}
	if method != "/opentelemetry.proto.collector.trace.v1.TraceService/Export" {
		return fmt.Errorf("not OTLP: %s", method)
	}
	r.take(message)
	return stream.SendMsg(&collector.ExportTraceServiceResponse{})
}

func (r *Receiver) refuses() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.refuse--
	return r.refuse >= 0
}

func (r *Receiver) take(message *collector.ExportTraceServiceRequest) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, of := range message.GetResourceSpans() {
		for _, scope := range of.GetScopeSpans() {
			for _, span := range scope.GetSpans() {
				taken := spanOf(span)
				taken.Resource, taken.Scope = attributesOf(of.GetResource().GetAttributes()), scope.GetScope().GetName()
				r.spans = append(r.spans, taken)
			}
		}
	}
	select {
	case r.arrived <- struct{}{}:
	default:
	}
}

func spanOf(span *otlp.Span) Span {
	made := Span{
		Name: span.GetName(), TraceID: hex.EncodeToString(span.GetTraceId()), ID: hex.EncodeToString(span.GetSpanId()),
		Parent: hex.EncodeToString(span.GetParentSpanId()), Kind: span.GetKind(), Flags: span.GetFlags(),
		Failed: span.GetStatus().GetCode() == otlp.Status_STATUS_CODE_ERROR, Message: span.GetStatus().GetMessage(),
		Attributes: attributesOf(span.GetAttributes()),
		Start:      time.Unix(0, int64(span.GetStartTimeUnixNano())), //nolint:gosec // a time of today
		End:        time.Unix(0, int64(span.GetEndTimeUnixNano())),   //nolint:gosec // a time of today
	}
	for _, link := range span.GetLinks() {
		made.Links = append(made.Links, hex.EncodeToString(link.GetSpanId()))
	}
	return made
}

func attributesOf(all []*common.KeyValue) map[string]string {
	texts := map[string]string{}
	for _, kv := range all {
		switch value := kv.GetValue().GetValue().(type) {
		case *common.AnyValue_StringValue:
			texts[kv.GetKey()] = value.StringValue
		case *common.AnyValue_IntValue:
			texts[kv.GetKey()] = fmt.Sprint(value.IntValue)
		case *common.AnyValue_BoolValue:
			texts[kv.GetKey()] = fmt.Sprint(value.BoolValue)
		case *common.AnyValue_DoubleValue:
			texts[kv.GetKey()] = fmt.Sprint(value.DoubleValue)
		default:
			texts[kv.GetKey()] = fmt.Sprintf("%T", value)
		}
	}
	return texts
}

// Spans returns what has come so far, in the order of the starts.
func (r *Receiver) Spans() []Span {
	r.mu.Lock()
	defer r.mu.Unlock()
	all := slices.Clone(r.spans)
	slices.SortStableFunc(all, func(a, b Span) int { return a.Start.Compare(b.Start) })
	return all
}

// Await waits until the spans that have come are enough, and returns them.
func (r *Receiver) Await(t testing.TB, what string, enough func([]Span) bool) []Span {
	t.Helper()
	limit := time.After(time.Minute)
	for {
		if spans := r.Spans(); enough(spans) {
			return spans
		}
		select {
		case <-r.arrived:
		case <-limit:
			t.Fatalf("%s: not there after a minute; spans:\n%s", what, Tree(r.Spans()))
		}
	}
}

// Find returns the spans of a name.
func Find(spans []Span, name string) []Span {
	return slices.DeleteFunc(slices.Clone(spans), func(s Span) bool { return s.Name != name })
}

// Tree shows spans as lines, each below its parent. Spans without a parent among them come first.
func Tree(spans []Span) string {
	var b strings.Builder
	known := map[string]bool{}
	for _, s := range spans {
		known[s.ID] = true
	}
	var show func(s Span, depth int)
	show = func(s Span, depth int) {
		b.WriteString(strings.Repeat("  ", depth) + s.Name)
		if s.Failed {
			b.WriteString(" (failed)")
		}
		b.WriteByte('\n')
		for _, child := range spans {
			if child.Parent == s.ID {
				show(child, depth+1)
			}
		}
	}
	for _, s := range spans {
		if !known[s.Parent] {
			show(s, 0)
		}
	}
	return b.String()
}
