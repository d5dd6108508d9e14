//go:build e2e

package e2e

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/berthrun/berth/internal/sys/sysns"
	"github.com/berthrun/berth/internal/traces/tracestest"
	"github.com/berthrun/berth/test/harness"
	"github.com/berthrun/berth/test/harness/kubelet"
)

// collectorVersion is that of the OpenTelemetry Collector; collectorStable that of its modules of version 1.
const (
	collectorVersion = "v0.133.0"
	collectorStable  = "v1.39.0"
)

// buildCollector builds a collector that receives OTLP and sends it on over HTTP, from the Go module proxy. OTELCOL names
// one that is built already.
func buildCollector(t *testing.T) string {
	t.Helper()
	if program := os.Getenv("OTELCOL"); program != "" {
		return program
	}
	dir := t.TempDir()
	config := filepath.Join(dir, "builder.yaml")
	const module = "go.opentelemetry.io/collector/"
	text := fmt.Sprintf("dist: {name: otelcol, output_path: %s}\nreceivers:\n- gomod: %sreceiver/otlpreceiver %s\nexporters:\n- gomod: %sexporter/otlphttpexporter %s\n"+
		"providers:\n- gomod: %sconfmap/provider/fileprovider %s\n- gomod: %sconfmap/provider/envprovider %s\n", // a collector without env does not start
		filepath.Join(dir, "otelcol"), module, collectorVersion, module, collectorVersion, module, collectorStable, module, collectorStable)
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	build := exec.CommandContext(t.Context(), "go", "run", module+"cmd/builder@"+collectorVersion, "--config="+config)
	build.Dir = dir
	build.Env = append(os.Environ(), "GOFLAGS=-mod=mod", "GOWORK=off", "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("the collector cannot be built: %v\n%s", err, out)
	}
	return filepath.Join(dir, "otelcol", "otelcol")
}

// startCollector runs the collector in the instance's host namespace, for the test's time. What it receives on port 4317
// arrives at the receiver.
func startCollector(t *testing.T, b *harness.Berth, program string) *tracestest.Receiver {
	t.Helper()
	var listener net.Listener
	if err := sysns.InNetNS("/run/netns/"+b.NetNS, func() (err error) {
		listener, err = new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:4319")
		return err
	}); err != nil {
		t.Fatal(err)
	}
	receiver := tracestest.ServeHTTP(t, listener)
	config := filepath.Join(b.Dir, "otelcol.yaml")
	if err := os.WriteFile(config, []byte(`receivers: {otlp: {protocols: {grpc: {endpoint: "127.0.0.1:4317"}}}}
exporters: {otlphttp: {endpoint: "http://127.0.0.1:4319", compression: none}}
service:
  telemetry: {metrics: {level: none}}
  pipelines: {traces: {receivers: [otlp], exporters: [otlphttp]}}
`), 0o600); err != nil {
		t.Fatal(err)
	}
	log, err := os.Create(filepath.Join(b.Dir, "otelcol.log"))
	if err != nil {
		t.Fatal(err)
	}
	collector := b.InHost(program, "--config="+config)
	collector.Stdout, collector.Stderr = log, log
	if err := collector.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		collector.Process.Kill() //nolint:errcheck // it may have ended
		collector.Wait()         //nolint:errcheck // it was killed
		if t.Failed() {
			text, err := os.ReadFile(log.Name())
			t.Logf("the collector's log (%v):\n%s", err, text)
		}
		log.Close()
	})
	b.Await("the collector to be ready", func() bool {
		text, err := os.ReadFile(log.Name())
		return err == nil && strings.Contains(string(text), "Everything is ready")
	})
	return receiver
}

// TestTraceOfAKubelet: the start of a pod is one trace in a real collector, from the kubelet's sync of the pod to each
// stage of berth's jobs.
func TestTraceOfAKubelet(t *testing.T) {
	program := buildCollector(t)
	b := harness.Start(t, harness.Options{Config: "[traces]\nendpoint = 'http://127.0.0.1:4317'\nsampling_rate_per_million = 0\n"})
	receiver := startCollector(t, b, program)
	k := kubelet.Start(t, b, kubelet.Options{Config: "tracing: {endpoint: \"127.0.0.1:4317\", samplingRatePerMillion: 1000000}"})
	k.Add("traced", fmt.Sprintf(`apiVersion: v1
kind: Pod
metadata: {name: traced, namespace: default}
spec:
  terminationGracePeriodSeconds: 1
  containers:
  - {name: web, image: "%s", imagePullPolicy: Never, command: [/bin/sh, -c, "sleep 1000"]}
`, harness.Busybox))
	k.AwaitReady("traced")
	jobs := map[string][]string{
		"run sandbox":      {"begin", "write record", "create sandbox", "wait for the network", "attach network", "start sandbox", "ask plugins", "publish"},
		"create container": {"begin", "find image", "write record", "create container", "adjust the OCI spec", "create container", "publish"},
		"start container":  {"begin", "write record", "ask plugins", "start container", "publish"},
	}
	spans := receiver.Await(t, "the spans of the kubelet and of berth", func(spans []tracestest.Span) bool {
		for kind := range jobs {
			if job := jobOf(spans, kind); job == nil || len(ancestors(spans, *job)) < 3 {
				return false
			}
		}
		return true
	})
	trace := jobOf(spans, "run sandbox").TraceID
	for kind, stages := range jobs {
		job := jobOf(spans, kind)
		if got := below(spans, *job); !slices.Equal(got, stages) {
			t.Errorf("%s has the stages %q, want %q", kind, got, stages)
		}
		if job.TraceID != trace {
			t.Errorf("%s is in trace %s, not in %s", kind, job.TraceID, trace)
		}
		up := ancestors(spans, *job)
		root := up[len(up)-1]
		if up[0].Resource["service.name"] != "berth" || root.Resource["service.name"] != "kubelet" || root.Parent != "" {
			t.Errorf("%s is below %q of %q", kind, root.Name, root.Resource["service.name"])
		}
	}
	if t.Failed() {
		t.Logf("the spans are\n%s", tracestest.Tree(spans))
	}
}

// jobOf is the span of a job of a kind, nil for none.
func jobOf(spans []tracestest.Span, kind string) *tracestest.Span {
	for _, span := range tracestest.Find(spans, kind) {
		if span.Attributes["berth.key"] != "" {
			return &span
		}
	}
	return nil
}

// below are the names of the spans below one.
func below(spans []tracestest.Span, parent tracestest.Span) (names []string) {
	for _, span := range spans {
		if span.Parent == parent.ID {
			names = append(names, span.Name)
		}
	}
	return names
}

// ancestors are the spans above one, the nearest first.
func ancestors(spans []tracestest.Span, of tracestest.Span) (up []tracestest.Span) {
	for parent := of.Parent; parent != ""; {
		at := slices.IndexFunc(spans, func(s tracestest.Span) bool { return s.ID == parent })
		if at < 0 {
			return up
		}
		up = append(up, spans[at])
		parent = spans[at].Parent
	}
	return up
}
