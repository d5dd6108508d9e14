package traces

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	otlp "go.opentelemetry.io/proto/slim/otlp/trace/v1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"
	"k8s.io/client-go/util/cert"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/pod/job"
	"github.com/berthrun/berth/internal/tlsfiles/tlstest"
	"github.com/berthrun/berth/internal/traces/tracestest"
)

const (
	clientTrace = "0af7651916cd43dd8448eb211c80319c"
	clientSpan  = "b7ad6b7169203331"
)

func listen(t *testing.T) net.Listener {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// receive has a tracer send to a receiver of a protocol.
func receive(t *testing.T, protocol string, rate int) (*Tracer, *tracestest.Receiver, *bytes.Buffer) {
	t.Helper()
	l := listen(t)
	serve := map[string]func() *tracestest.Receiver{
		HTTP: func() *tracestest.Receiver { return tracestest.ServeHTTP(t, l) },
		GRPC: func() *tracestest.Receiver { return tracestest.ServeGRPC(t, l) },
	}[protocol]
	receiver := serve()
	var log bytes.Buffer
	tracer := New(Options{Version: "1.2.3", Instance: "ab12", Log: slog.New(slog.NewTextHandler(&log, nil)), Scrub: func(text string) string {
		return strings.ReplaceAll(text, "hunter2", "[hidden]")
	}})
	if err := tracer.Apply(Settings{Endpoint: "http://" + l.Addr().String(), Protocol: protocol, RatePerMillion: rate}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { tracer.Close(context.Background()) })
	return tracer, receiver, &log
}

// table has jobs that are traced.
func table(tracer *Tracer) *job.Table {
	jobs := job.NewTable(func(job.Kind) job.Limits { return job.Limits{} }, func(*job.Job, *job.Request) job.Conflict { return job.Join },
		func(job.Info, error) {}, func(job.Info) {}, func(job.Info) {})
	jobs.Trace(tracer)
	return jobs
}

// fromClient is the context of a request of a client with a trace, kept or not.
func fromClient(ctx context.Context, flags string) context.Context {
	return metadata.NewIncomingContext(ctx, metadata.Pairs("traceparent", "00-"+clientTrace+"-"+clientSpan+"-"+flags))
}

func sandboxRequest(run func(context.Context, *job.Job) (string, error)) *job.Request {
	return &job.Request{
		Key: "default/web/1/0", ID: "5a4db0", Kind: "run sandbox", Run: run,
		Want: &runtimeapi.RunPodSandboxRequest{RuntimeHandler: "runc", Config: &runtimeapi.PodSandboxConfig{
			Metadata:    &runtimeapi.PodSandboxMetadata{Namespace: "default", Name: "web", Uid: "1"},
			Annotations: map[string]string{"token": "hunter2"},
		}},
	}
}

// TestTraceOfARequest: the client's trace goes on with a span for the request, one for the job below it, and one for
// each stage below that, over both protocols.
func TestTraceOfARequest(t *testing.T) {
	for _, protocol := range []string{GRPC, HTTP} {
		t.Run(protocol, func(t *testing.T) {
			tracer, receiver, _ := receive(t, protocol, 0)
			ctx, ended := tracer.RequestBegan(fromClient(t.Context(), "01"), "/runtime.v1.RuntimeService/RunPodSandbox", false)
			id, err := table(tracer).Do(ctx, sandboxRequest(func(_ context.Context, j *job.Job) (string, error) {
				j.Stage("create sandbox", "the engine")
				j.Stage("publish", "the state directory")
				return j.ID, nil
			}))
			if err != nil || id != "5a4db0" {
				t.Fatal(id, err)
			}
			ended("OK", "", []slog.Attr{slog.String("pod", "default/web"), slog.String("sandbox", id)})
			tracer.Close(t.Context())

			spans := receiver.Spans()
			want := "runtime.v1.RuntimeService/RunPodSandbox\n  run sandbox\n    begin\n    create sandbox\n    publish\n"
			if tree := tracestest.Tree(spans); tree != want {
				t.Fatalf("the trace is\n%s, want\n%s", tree, want)
			}
			for _, span := range spans {
				if span.TraceID != clientTrace || span.Failed || span.End.Before(span.Start) || span.Scope != scope ||
					span.Resource["service.name"] != "berth" || span.Resource["service.version"] != "1.2.3" || span.Resource["service.instance.id"] != "ab12" {
					t.Errorf("span %+v", span)
				}
			}
			request, made := spans[0], spans[1]
			if request.Parent != clientSpan || request.Kind != otlp.Span_SPAN_KIND_SERVER || request.Flags != 0x301 ||
				request.Attributes["k8s.pod.name"] != "web" || request.Attributes["berth.sandbox.id"] != id || request.Attributes["rpc.response.status_code"] != "OK" {
				t.Errorf("the request's span %+v", request)
			}
			if made.Kind != otlp.Span_SPAN_KIND_INTERNAL || made.Flags != 0x101 || made.Attributes["k8s.namespace.name"] != "default" ||
				made.Attributes["k8s.pod.uid"] != "1" || made.Attributes["berth.handler"] != "runc" || made.Attributes["berth.result"] != "ok" {
				t.Errorf("the job's span %+v", made)
			}
			if strings.Contains(fmt.Sprint(spans), "hunter2") {
				t.Error("a span has an annotation")
			}
		})
	}
}

// TestFailedStage: the stage that has failed has the status of an error, as the job has. The undo after it has none.
func TestFailedStage(t *testing.T) {
	tracer, receiver, _ := receive(t, HTTP, million)
	fault := fmt.Errorf("cannot attach \xff with password hunter2: %w", errs.Unavailable)
	_, err := table(tracer).Do(t.Context(), sandboxRequest(func(_ context.Context, j *job.Job) (string, error) {
		j.Stage("attach network", "the plugins")
		j.StageFailed(fault)
		j.Stage("remove sandbox", "the engine")
		return "", fault
	}))
	if !errors.Is(err, fault) {
		t.Fatal(err)
	}
	_, err = table(tracer).Do(t.Context(), &job.Request{Key: "k", Kind: "stop", Resumed: true, Run: func(_ context.Context, j *job.Job) (string, error) {
		j.Stage("kill", "the engine")
		return "", fault
	}})
	if !errors.Is(err, fault) {
		t.Fatal(err)
	}
	tracer.Close(t.Context())
	want := "run sandbox (failed)\n  begin\n  attach network (failed)\n  remove sandbox\nstop (failed)\n  begin\n  kill (failed)\n"
	spans := receiver.Spans()
	if tree := tracestest.Tree(spans); tree != want {
		t.Fatalf("the traces are\n%s, want\n%s", tree, want)
	}
	for _, span := range spans {
		if span.Failed && (span.Message != "cannot attach \uFFFD with password [hidden]: unavailable" || span.Attributes["error.type"] != "unavailable") {
			t.Errorf("the status of %s is %q, of type %q", span.Name, span.Message, span.Attributes["error.type"])
		}
	}
	stopped := tracestest.Find(spans, "stop")[0]
	if stopped.Attributes["berth.resumed"] != "true" || stopped.TraceID == spans[0].TraceID || spans[0].Attributes["berth.resumed"] != "" {
		t.Errorf("the resumed job is %+v", stopped)
	}
}

// TestSampling: a client decides about its traces, the rate about those that begin here, and reads begin none.
func TestSampling(t *testing.T) {
	for name, test := range map[string]struct {
		rate         int
		flags        string
		reads, wants bool
	}{
		"kept by the client":     {0, "01", false, true},
		"a read of the client":   {0, "01", true, true},
		"dropped by the client":  {million, "00", false, false},
		"begins here":            {million, "", false, true},
		"begins here, rate 0":    {0, "", false, false},
		"a read that begins one": {million, "", true, false},
	} {
		t.Run(name, func(t *testing.T) {
			tracer, receiver, _ := receive(t, HTTP, test.rate)
			ctx := t.Context()
			if test.flags != "" {
				ctx = fromClient(ctx, test.flags)
			}
			ctx, ended := tracer.RequestBegan(ctx, "/runtime.v1.RuntimeService/Call", test.reads)
			if !test.reads {
				if _, err := table(tracer).Do(ctx, sandboxRequest(func(context.Context, *job.Job) (string, error) { return "", nil })); err != nil {
					t.Fatal(err)
				}
			}
			if ended != nil {
				ended("OK", "", nil)
			}
			tracer.Close(t.Context())
			if got := len(receiver.Spans()) > 0; got != test.wants {
				t.Errorf("spans: %v, want %v\n%s", got, test.wants, tracestest.Tree(receiver.Spans()))
			}
		})
	}
}

// TestStatusOfRequests: what a client asks for in vain is no fault of the server.
func TestStatusOfRequests(t *testing.T) {
	tracer, receiver, _ := receive(t, HTTP, million)
	for _, code := range []string{"OK", "NotFound", "Internal"} {
		_, ended := tracer.RequestBegan(t.Context(), "/s/"+code, false)
		ended(code, "why", nil)
	}
	tracer.Close(t.Context())
	if tree := tracestest.Tree(receiver.Spans()); tree != "s/OK\ns/NotFound\ns/Internal (failed)\n" {
		t.Error(tree)
	}
}

// TestJoin: the trace of a request that joins a job leads to the job's span.
func TestJoin(t *testing.T) {
	tracer, receiver, _ := receive(t, GRPC, million)
	jobs, goOn := table(tracer), make(chan struct{})
	request := sandboxRequest(func(context.Context, *job.Job) (string, error) { <-goOn; return "", nil })
	first, err := jobs.Enter(t.Context(), request)
	if err != nil {
		t.Fatal(err)
	}
	ctx, ended := tracer.RequestBegan(fromClient(t.Context(), "01"), "/runtime.v1.RuntimeService/RunPodSandbox", false)
	if joined, err := jobs.Enter(ctx, request); err != nil || joined != first {
		t.Fatal(joined, err)
	}
	close(goOn)
	<-first.Done()
	ended("OK", "", nil)
	tracer.Close(t.Context())
	spans := receiver.Spans()
	join, made := tracestest.Find(spans, "join a job"), tracestest.Find(spans, "run sandbox")
	if len(join) != 1 || len(made) != 1 || join[0].TraceID != clientTrace || len(join[0].Links) != 1 || join[0].Links[0] != made[0].ID {
		t.Errorf("the traces are\n%s%+v", tracestest.Tree(spans), join)
	}
}

// TestPull: a pull has a span for each stage.
func TestPull(t *testing.T) {
	tracer, receiver, _ := receive(t, HTTP, million)
	_, stage, ended := tracer.PullTraced(t.Context(), "example.org/app:1")
	stage("resolving")
	stage("fetching")
	ended(42, errs.NotFound)
	tracer.Close(t.Context())
	spans := receiver.Spans()
	if tree := tracestest.Tree(spans); tree != "pull image (failed)\n  resolving\n  fetching (failed)\n" {
		t.Error(tree)
	}
	if pull := spans[0]; pull.Attributes["berth.pull.bytes"] != "42" || pull.Attributes["container.image.name"] != "example.org/app:1" {
		t.Errorf("%+v", pull)
	}
}

// TestReceiverFails: a batch is tried again, and a receiver that fails is logged once, and once when it works again.
func TestReceiverFails(t *testing.T) {
	l := listen(t)
	receiver := tracestest.ServeHTTP(t, l)
	var log bytes.Buffer
	to, err := newSender(Settings{Endpoint: "http://" + l.Addr().String(), Protocol: HTTP})
	if err != nil {
		t.Fatal(err)
	}
	e := &exporter{sender: to, endpoint: "http://r", log: slog.New(slog.NewTextHandler(&log, nil))}
	receiver.Refuse(1)
	if err := e.ExportSpans(t.Context(), nil); err != nil || log.Len() > 0 {
		t.Errorf("a receiver that refuses once: %v, %s", err, &log)
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	for range 3 {
		if err := e.ExportSpans(ended, nil); err != nil {
			t.Error(err)
		}
		e.lost++ // no spans were sent
	}
	if n := strings.Count(log.String(), "cannot send traces"); n != 1 {
		t.Errorf("the log has the fault %d times:\n%s", n, &log)
	}
	if err := e.ExportSpans(t.Context(), nil); err != nil || !strings.Contains(log.String(), "sending traces again") || e.lost != 0 {
		t.Errorf("%v, %d lost, log:\n%s", err, e.lost, &log)
	}
}

// TestTLS: the receiver is verified, and gets the daemon's certificate.
func TestTLS(t *testing.T) {
	dir := t.TempDir()
	pair := tlstest.ClientCertificate(t)
	chain, serverKey, err := cert.GenerateSelfSignedCertKey("localhost", nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	server, err := tls.X509KeyPair(chain, serverKey)
	if err != nil {
		t.Fatal(err)
	}
	files := map[string][]byte{
		"ca":   chain,
		"cert": pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: pair.Certificate[0]}),
	}
	key, err := x509.MarshalPKCS8PrivateKey(pair.PrivateKey)
	if err != nil {
		t.Fatal(err)
	}
	files["key"] = pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: key})
	for name, content := range files {
		if err := os.WriteFile(filepath.Join(dir, name), content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	clients := x509.NewCertPool()
	clients.AppendCertsFromPEM(files["cert"])
	secure := &tls.Config{Certificates: []tls.Certificate{server}, ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: clients, MinVersion: tls.VersionTLS12}
	l := listen(t)
	_, port, err := net.SplitHostPort(l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	receiver := tracestest.ServeGRPC(t, l, grpc.Creds(credentials.NewTLS(secure)))
	tracer := New(Options{})
	settings := Settings{
		Endpoint: "https://localhost:" + port, Protocol: GRPC, RatePerMillion: million,
		CAFile: filepath.Join(dir, "ca"), CertFile: filepath.Join(dir, "cert"), KeyFile: filepath.Join(dir, "key"),
	}
	if err := tracer.Apply(settings); err != nil {
		t.Fatal(err)
	}
	_, ended := tracer.RequestBegan(t.Context(), "/s/M", false)
	ended("OK", "", nil)
	tracer.Close(t.Context())
	if len(receiver.Spans()) != 1 {
		t.Error("the span has not come over TLS")
	}

	for name, bad := range map[string]Settings{
		"no CA":      {Endpoint: "https://r:1", CAFile: filepath.Join(dir, "absent")},
		"no PEM":     {Endpoint: "https://r:1", CAFile: filepath.Join(dir, "key")},
		"other key":  {Endpoint: "https://r:1", CertFile: filepath.Join(dir, "ca"), KeyFile: filepath.Join(dir, "key")},
		"no scheme":  {Endpoint: "r:4317"},
		"gRPC, path": {Endpoint: "http://r:4317/x", Protocol: GRPC},
	} {
		if err := New(Options{}).Apply(bad); err == nil || !strings.Contains(err.Error(), bad.Endpoint) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestOff: without an endpoint nothing is made, no goroutine runs and nothing is allocated; a reload turns traces on
// and off.
func TestOff(t *testing.T) {
	tracer, request := New(Options{}), sandboxRequest(nil)
	ctx := fromClient(t.Context(), "01")
	before := runtime.NumGoroutine()
	if n := testing.AllocsPerRun(100, func() {
		c, ended := tracer.RequestBegan(ctx, "/s/M", false)
		_, traced := tracer.JobBegan(c, request)
		_, stage, _ := tracer.PullTraced(c, "ref")
		if c != ctx || ended != nil || traced != nil || stage != nil {
			t.Fatal("a tracer without an endpoint makes spans")
		}
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
	if err := tracer.Apply(Settings{}); err != nil {
		t.Error(err)
	}
	tracer.Close(t.Context())
	if now := runtime.NumGoroutine(); now > before {
		t.Errorf("%d goroutines, %d before", now, before)
	}

	tracer, receiver, _ := receive(t, HTTP, million)
	_, ended := tracer.RequestBegan(t.Context(), "/s/First", false)
	ended("OK", "", nil)
	if err := tracer.Apply(Settings{}); err != nil {
		t.Fatal(err)
	}
	if _, ended := tracer.RequestBegan(t.Context(), "/s/Second", false); ended != nil {
		t.Error("a tracer makes spans after it was turned off")
	}
	receiver.Await(t, "the span from before", func(spans []tracestest.Span) bool { return len(spans) == 1 })
}

// TestBadSettingsChangeNothing: spans go on to the former receiver.
func TestBadSettingsChangeNothing(t *testing.T) {
	tracer, receiver, _ := receive(t, HTTP, million)
	if err := tracer.Apply(Settings{Endpoint: "nowhere", Protocol: HTTP}); !errors.Is(err, errs.Invalid) {
		t.Fatal(err)
	}
	_, ended := tracer.RequestBegan(t.Context(), "/s/M", false)
	if ended == nil {
		t.Fatal("no spans are made")
	}
	ended("OK", "", nil)
	tracer.Close(t.Context())
	if len(receiver.Spans()) != 1 {
		t.Error("no span has come")
	}
}

// TestTimes: the stages of a job follow each other without gaps.
func TestTimes(t *testing.T) {
	tracer, receiver, _ := receive(t, HTTP, million)
	if _, err := table(tracer).Do(t.Context(), sandboxRequest(func(_ context.Context, j *job.Job) (string, error) {
		j.Stage("one", "")
		j.Stage("two", "")
		return "", nil
	})); err != nil {
		t.Fatal(err)
	}
	tracer.Close(t.Context())
	spans := receiver.Spans()
	end := time.Time{}
	for _, name := range []string{"begin", "one", "two"} {
		span := tracestest.Find(spans, name)[0]
		if !end.IsZero() && !span.Start.Equal(end) {
			t.Errorf("%s begins at %s, the one before ends at %s", name, span.Start, end)
		}
		end = span.End
	}
	if whole := tracestest.Find(spans, "run sandbox")[0]; !whole.End.Equal(end) {
		t.Errorf("the job ends at %s, its last stage at %s", whole.End, end)
	}
}
