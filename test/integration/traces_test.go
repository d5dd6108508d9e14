//go:build integration

package integration

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"google.golang.org/grpc/metadata"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berthrun/berth/internal/sys/sysns"
	"github.com/berthrun/berth/internal/traces/tracestest"
	"github.com/berthrun/berth/test/harness"
)

const traceReceiver = "127.0.0.1:4317"

// receiveTraces serves an OTLP receiver in the instance's host namespace.
func receiveTraces(b *harness.Berth) *tracestest.Receiver {
	b.T.Helper()
	var listener net.Listener
	if err := sysns.InNetNS("/run/netns/"+b.NetNS, func() (err error) {
		listener, err = new(net.ListenConfig).Listen(b.Ctx(), "tcp", traceReceiver)
		return err
	}); err != nil {
		b.T.Fatal(err)
	}
	return tracestest.ServeGRPC(b.T, listener)
}

// traced is the context of a client's request in a trace of its own.
func traced(b *harness.Berth, trace string) context.Context {
	return metadata.AppendToOutgoingContext(b.Ctx(), "traceparent", "00-"+trace+"-b7ad6b7169203331-01")
}

// children are the names of the spans below one.
func children(spans []tracestest.Span, parent tracestest.Span) (names []string) {
	for _, span := range spans {
		if span.Parent == parent.ID {
			names = append(names, span.Name)
		}
	}
	return names
}

// only is the one span of a name.
func only(t *testing.T, spans []tracestest.Span, name string) tracestest.Span {
	t.Helper()
	found := tracestest.Find(spans, name)
	if len(found) != 1 {
		t.Fatalf("%d spans %q in\n%s", len(found), name, tracestest.Tree(spans))
	}
	return found[0]
}

// TestTraces: a pod that a client with a trace makes and removes has a span for each call, each job and each stage, in
// the client's trace. A stage that fails has the status of an error.
func TestTraces(t *testing.T) {
	const trace = "0af7651916cd43dd8448eb211c80319c"
	b := harness.Start(t, harness.Options{Config: "[traces]\nendpoint = 'http://" + traceReceiver + "'\nsampling_rate_per_million = 0\n"})
	receiver := receiveTraces(b)
	ctx := traced(b, trace)
	config := b.Sandbox("traced")
	config.Annotations["password"] = "hunter2"
	made, err := b.Runtime.RunPodSandbox(ctx, &runtimeapi.RunPodSandboxRequest{Config: config})
	if err != nil {
		t.Fatal(err)
	}
	create := &runtimeapi.CreateContainerRequest{PodSandboxId: made.PodSandboxId, SandboxConfig: config, Config: b.Container("c", "echo hunter2; sleep 1000")}
	create.Config.Envs = []*runtimeapi.KeyValue{{Key: "DB_PASSWORD", Value: []byte("hunter2")}}
	created, err := b.Runtime.CreateContainer(ctx, create)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := b.Runtime.StartContainer(ctx, &runtimeapi.StartContainerRequest{ContainerId: created.ContainerId}); err != nil {
		t.Fatal(err)
	}
	create.Config = b.Container("absent", "true")
	create.Config.Image = &runtimeapi.ImageSpec{Image: "example.org/absent:1"}
	if _, err := b.Runtime.CreateContainer(ctx, create); err == nil {
		t.Error("a container without an image was created")
	}
	if _, err := b.Images.PullImage(ctx, &runtimeapi.PullImageRequest{
		Image: &runtimeapi.ImageSpec{Image: "127.0.0.1:1/absent:1"}, Auth: &runtimeapi.AuthConfig{Username: "joe", Password: "hunter2"},
	}); err == nil {
		t.Error("an image of no registry was pulled")
	}
	if _, err := b.Runtime.StopPodSandbox(ctx, &runtimeapi.StopPodSandboxRequest{PodSandboxId: made.PodSandboxId}); err != nil {
		t.Error(err)
	}
	if _, err := b.Runtime.RemovePodSandbox(ctx, &runtimeapi.RemovePodSandboxRequest{PodSandboxId: made.PodSandboxId}); err != nil {
		t.Error(err)
	}
	b.StopDaemon() // which sends what waits

	spans := receiver.Spans()
	for _, span := range spans {
		if span.TraceID != trace {
			t.Errorf("span %q is of trace %s", span.Name, span.TraceID)
		}
	}
	if strings.Contains(fmt.Sprintf("%+v", spans), "hunter2") {
		t.Error("a span has a secret")
	}
	wantStages(t, spans, "RunPodSandbox", "run sandbox", []string{
		"begin", "write record", "create sandbox", "wait for the network", "attach network", "start sandbox", "ask plugins", "publish",
	})
	wantStages(t, spans, "StartContainer", "start container", []string{"begin", "write record", "ask plugins", "start container", "publish"})
	stop := only(t, spans, "runtime.v1.RuntimeService/StopPodSandbox")
	if names := children(spans, stop); !slices.Equal(names, []string{"stop"}) {
		t.Errorf("below %s there are %q", stop.Name, names)
	}
	failedCreate(t, spans, created.ContainerId)
	run := only(t, spans, "run sandbox")
	if run.Attributes["k8s.pod.name"] != "traced" || run.Attributes["berth.id"] != made.PodSandboxId {
		t.Errorf("the attributes of the job are %v", run.Attributes)
	}
	pull := only(t, spans, "pull image")
	if names := children(spans, pull); !pull.Failed || b.Docker == nil && len(names) == 0 || pull.Attributes["container.image.name"] != "127.0.0.1:1/absent:1" {
		t.Errorf("the pull is %+v, with stages %q", pull, names)
	}
	if t.Failed() {
		t.Logf("the trace is\n%s", tracestest.Tree(spans))
	}
}

// wantStages requires that a call has one job with these stages.
func wantStages(t *testing.T, spans []tracestest.Span, call, kind string, stages []string) {
	t.Helper()
	jobs := slices.DeleteFunc(slices.Clone(spans), func(s tracestest.Span) bool { return s.Attributes["berth.key"] == "" }) // a stage may have its name
	job, request := only(t, jobs, kind), only(t, spans, "runtime.v1.RuntimeService/"+call)
	if job.Parent != request.ID || request.Parent != "b7ad6b7169203331" || request.Failed || job.Failed {
		t.Errorf("%s is %+v, %s is %+v", call, request, kind, job)
	}
	if got := children(spans, job); !slices.Equal(got, stages) {
		t.Errorf("%s has the stages %q, want %q", kind, got, stages)
	}
}

// failedCreate requires that one of two creates has failed in the stage in which it looked for its image.
func failedCreate(t *testing.T, spans []tracestest.Span, good string) {
	t.Helper()
	creates := tracestest.Find(spans, "create container")
	creates = slices.DeleteFunc(creates, func(s tracestest.Span) bool { return s.Attributes["berth.key"] == "" }) // the stage of that name
	if len(creates) != 2 {
		t.Fatalf("%d creates in\n%s", len(creates), tracestest.Tree(spans))
	}
	for _, create := range creates {
		failed := create.Attributes["berth.id"] != good
		if create.Failed != failed {
			t.Errorf("the create of %s: failed %v, want %v", create.Attributes["k8s.container.name"], create.Failed, failed)
		}
		for _, span := range spans {
			if wrong := failed && span.Name == "find image"; span.Parent == create.ID && span.Failed != wrong {
				t.Errorf("stage %q of the create of %s: failed %v, want %v", span.Name, create.Attributes["k8s.container.name"], span.Failed, wrong)
			}
		}
	}
}

// TestTracesAfterAKill: the next daemon makes no span in the trace of a request whose daemon was killed. What it does to
// undo the request's work is a trace of its own.
func TestTracesAfterAKill(t *testing.T) {
	const trace = "1af7651916cd43dd8448eb211c80319c"
	dir := t.TempDir()
	called, goOn := filepath.Join(dir, "called"), filepath.Join(dir, "go-on")
	opts := fakeCNI(t, `if test "$CNI_COMMAND" = ADD; then touch `+called+`; while ! test -e `+goOn+`; do sleep 0.05; done; fi; exit 0`)
	opts.Config += "[traces]\nendpoint = 'http://" + traceReceiver + "'\n"
	b := harness.Start(t, opts)
	receiver := receiveTraces(b)
	ended := make(chan error, 1)
	go func() {
		_, err := b.Runtime.RunPodSandbox(traced(b, trace), &runtimeapi.RunPodSandboxRequest{Config: b.Sandbox("killed")})
		ended <- err
	}()
	b.Await("the plugin to be called", func() bool { _, err := os.Stat(called); return err == nil })
	b.KillDaemon()
	if err := <-ended; err == nil {
		t.Error("the sandbox of a killed daemon is ready")
	}
	if err := os.WriteFile(goOn, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	b.StartDaemon()
	b.Await("the end of the removal", func() bool { return !strings.Contains(b.MustCLI("jobs", "-o", "json"), `"kind"`) })
	b.StopDaemon()

	spans := receiver.Spans()
	seen := map[string]bool{}
	for _, span := range spans {
		if seen[span.ID] {
			t.Errorf("span %q came twice", span.Name)
		}
		seen[span.ID] = true
		if span.TraceID == trace && (span.Name == "run sandbox" || span.Name == "attach network" || span.Name == "publish") {
			t.Errorf("span %q, which the kill has cut off, is in the trace", span.Name)
		}
	}
	resumed := slices.DeleteFunc(slices.Clone(spans), func(s tracestest.Span) bool { return s.Attributes["berth.resumed"] != "true" })
	if len(resumed) != 1 || resumed[0].TraceID == trace || resumed[0].Parent != "" || resumed[0].Name != "remove" {
		t.Errorf("the resumed jobs are %+v\n%s", resumed, tracestest.Tree(spans))
	}
}
