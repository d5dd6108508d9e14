package traces

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/url"
	"os"
	"strings"
	"sync"
	"time"

	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/mem"

	"github.com/berthrun/berth/internal/errs"
)

// sender sends a request of OTLP (ExportTraceServiceRequest) and returns the reply (ExportTraceServiceResponse).
type sender interface {
	send(ctx context.Context, request []byte) (reply []byte, err error)
	close() error
}

// exporter is what the SDK gives ended spans to. It logs when the receiver fails, and when it works again: the SDK
// would log each batch.
type exporter struct {
	sender   sender
	endpoint string
	log      *slog.Logger

	mu sync.Mutex
	// lost counts the spans since the receiver has failed, 0 while it works.
	lost int
}

// ExportSpans implements sdktrace.SpanExporter.
func (e *exporter) ExportSpans(ctx context.Context, spans []sdktrace.ReadOnlySpan) error {
	reply, err := e.sender.send(ctx, encode(spans))
	e.mu.Lock()
	defer e.mu.Unlock()
	if err != nil {
		if e.lost == 0 {
			e.log.Warn("cannot send traces; spans are lost until the receiver answers", "endpoint", e.endpoint, "error", err)
		}
		e.lost += len(spans)
		return nil
	}
	if e.lost > 0 {
		e.log.Info("sending traces again", "endpoint", e.endpoint, "lost_spans", e.lost)
		e.lost = 0
	}
	if rejected, why := rejectedSpans(reply); rejected > 0 {
		e.log.Warn("the receiver of traces has rejected spans", "endpoint", e.endpoint, "spans", rejected, "why", why)
	}
	return nil
}

// Shutdown implements sdktrace.SpanExporter.
func (e *exporter) Shutdown(context.Context) error { return e.sender.close() }

// newSender makes the sender of settings with an endpoint.
func newSender(settings Settings) (sender, error) {
	endpoint, err := url.Parse(settings.Endpoint)
	if err != nil || endpoint.Host == "" || endpoint.Scheme != "http" && endpoint.Scheme != "https" {
		return nil, fmt.Errorf("want http://HOST:PORT or https://HOST:PORT: %w", errs.Invalid)
	}
	var secure *tls.Config
	if endpoint.Scheme == "https" {
		if secure, err = tlsOf(settings); err != nil {
			return nil, err
		}
	}
	if settings.Protocol == HTTP {
		return newHTTPSender(endpoint, secure), nil
	}
	return newGRPCSender(endpoint, secure)
}

// tlsOf reads the authorities now, and the daemon's own certificate for each connection, so that it may be renewed.
func tlsOf(settings Settings) (*tls.Config, error) {
	secure := &tls.Config{MinVersion: tls.VersionTLS12}
	if settings.CAFile != "" {
		data, err := os.ReadFile(settings.CAFile)
		if err != nil {
			return nil, fmt.Errorf("cannot read the authorities: %w", err)
		}
		secure.RootCAs = x509.NewCertPool()
		if !secure.RootCAs.AppendCertsFromPEM(data) {
			return nil, fmt.Errorf("cannot use %s: it holds no certificate: %w", settings.CAFile, errs.Invalid)
		}
	}
	if settings.CertFile == "" {
		return secure, nil
	}
	load := func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
		pair, err := tls.LoadX509KeyPair(settings.CertFile, settings.KeyFile)
		if err != nil {
			return nil, fmt.Errorf("cannot use certificate %s with key %s: %w", settings.CertFile, settings.KeyFile, err)
		}
		return &pair, nil
	}
	if _, err := load(nil); err != nil {
		return nil, err
	}
	secure.GetClientCertificate = load
	return secure, nil
}

// httpSender posts requests.
type httpSender struct {
	url    string
	client *http.Client
}

func newHTTPSender(endpoint *url.URL, secure *tls.Config) *httpSender {
	return &httpSender{
		url: endpoint.JoinPath("v1/traces").String(),
		client: &http.Client{
			Timeout:       attemptTimeout,
			Transport:     &http.Transport{Proxy: http.ProxyFromEnvironment, TLSClientConfig: secure, MaxIdleConns: 1, IdleConnTimeout: time.Minute},
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		},
	}
}

// Attempts to send one batch. The pauses double.
const (
	attempts       = 3
	attemptTimeout = 10 * time.Second
	firstPause     = 500 * time.Millisecond
	maxReply       = 64 << 10
)

func (h *httpSender) send(ctx context.Context, request []byte) ([]byte, error) {
	for attempt, pause := 1, firstPause; ; attempt, pause = attempt+1, 2*pause {
		reply, again, err := h.post(ctx, request)
		if err == nil || !again || attempt == attempts {
			return reply, err
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return nil, err
		}
	}
}

// post sends a request once. again reports whether an error may be one of this moment.
func (h *httpSender) post(ctx context.Context, request []byte) (reply []byte, again bool, err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, h.url, bytes.NewReader(request))
	if err != nil {
		return nil, false, err
	}
	req.Header.Set("Content-Type", "application/x-protobuf")
	resp, err := h.client.Do(req)
	if err != nil {
		return nil, true, err
	}
	defer resp.Body.Close()
	reply, err = io.ReadAll(io.LimitReader(resp.Body, maxReply))
	switch {
	case resp.StatusCode == http.StatusTooManyRequests || resp.StatusCode >= http.StatusBadGateway && resp.StatusCode <= http.StatusGatewayTimeout:
		return nil, true, fmt.Errorf("%s answers %s: %w", h.url, resp.Status, errs.Unavailable)
	case resp.StatusCode < 200 || resp.StatusCode > 299:
		return nil, false, fmt.Errorf("%s answers %s; is it the port of OTLP over HTTP (usually 4318)?: %w", h.url, resp.Status, errs.Invalid)
	}
	return reply, true, err
}

func (h *httpSender) close() error {
	h.client.CloseIdleConnections()
	return nil
}

// grpcSender calls the service of traces.
type grpcSender struct{ conn *grpc.ClientConn }

// exportMethod is the one call of OTLP over gRPC.
const exportMethod = "/opentelemetry.proto.collector.trace.v1.TraceService/Export"

// retries is what gRPC calls again by itself.
const retries = `{"methodConfig": [{"name": [{}], "retryPolicy": {"maxAttempts": 3, "initialBackoff": "0.5s", "maxBackoff": "2s",
"backoffMultiplier": 2, "retryableStatusCodes": ["UNAVAILABLE", "RESOURCE_EXHAUSTED"]}}]}`

func newGRPCSender(endpoint *url.URL, secure *tls.Config) (*grpcSender, error) {
	if strings.Trim(endpoint.Path, "/") != "" {
		return nil, fmt.Errorf("gRPC has no path: %w", errs.Invalid)
	}
	security := insecure.NewCredentials()
	if secure != nil {
		security = credentials.NewTLS(secure)
	}
	conn, err := grpc.NewClient(endpoint.Host, grpc.WithTransportCredentials(security), grpc.WithDefaultServiceConfig(retries), grpc.WithDisableServiceConfig())
	if err != nil {
		return nil, err
	}
	return &grpcSender{conn}, nil
}

func (g *grpcSender) send(ctx context.Context, request []byte) (reply []byte, err error) {
	ctx, cancel := context.WithTimeout(ctx, attemptTimeout)
	defer cancel()
	err = g.conn.Invoke(ctx, exportMethod, &request, &reply, grpc.ForceCodecV2(bytesCodec{}))
	return reply, err
}

func (g *grpcSender) close() error { return g.conn.Close() }

// bytesCodec sends messages that are encoded already.
type bytesCodec struct{}

// Marshal implements encoding.CodecV2.
func (bytesCodec) Marshal(v any) (mem.BufferSlice, error) {
	message, ok := v.(*[]byte)
	if !ok {
		return nil, fmt.Errorf("cannot encode %T: %w", v, errs.Invalid)
	}
	return mem.BufferSlice{mem.SliceBuffer(*message)}, nil
}

// Unmarshal implements encoding.CodecV2.
func (bytesCodec) Unmarshal(data mem.BufferSlice, v any) error {
	message, ok := v.(*[]byte)
	if !ok {
		return fmt.Errorf("cannot decode %T: %w", v, errs.Invalid)
	}
	*message = data.Materialize()
	return nil
}

// Name implements encoding.CodecV2: the messages are those of protobuf.
func (bytesCodec) Name() string { return "proto" }
