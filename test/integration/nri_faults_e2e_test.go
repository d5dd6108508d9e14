//go:build integration && e2e

package integration

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berthrun/berth/internal/nri/nritest"
	"github.com/berthrun/berth/internal/require"
	"github.com/berthrun/berth/test/harness"
)

// nriEvents are the events of a pod's life in their order, and whether a plugin's error fails the request.
func nriEvents() []nriEvent {
	return []nriEvent{
		{"Synchronize", false},
		{"RunPodSandbox", true},
		{"CreateContainer", true},
		{"PostCreateContainer", false},
		{"StartContainer", true},
		{"PostStartContainer", false},
		{"UpdatePodSandbox", true},
		{"PostUpdatePodSandbox", false},
		{"UpdateContainer", true},
		{"PostUpdateContainer", false},
		{"StopContainer", false},
		{"RemoveContainer", false},
		{"StopPodSandbox", false},
		{"RemovePodSandbox", false},
	}
}

type nriEvent struct {
	name  string
	fails bool
}

// nriFault is what a plugin does at an event.
type nriFault struct {
	name string
	// do is the fault; the answer is its error. A plugin that hangs does so until the test ends.
	do func(t *testing.T, p *nritest.Plugin) error
	// refuses is true when the request fails where an error of the plugin fails it.
	refuses bool
	// leaves is true when the plugin is disconnected, names when that is so in the event.
	leaves, names bool
}

func nriFaults() []nriFault {
	return []nriFault{
		{name: "hangs", leaves: true, names: true, do: func(t *testing.T, _ *nritest.Plugin) error { <-t.Context().Done(); return nil }},
		{name: "dies", leaves: true, names: true, do: func(_ *testing.T, p *nritest.Plugin) error { p.Disconnect(); return nil }},
		{name: "disconnects late", leaves: true, do: func(_ *testing.T, p *nritest.Plugin) error {
			time.AfterFunc(time.Millisecond, p.Disconnect)
			return nil
		}},
		{name: "babbles", leaves: true, names: true, do: func(_ *testing.T, p *nritest.Plugin) error { p.Babble(); return nil }},
		{name: "refuses", names: true, refuses: true, do: func(*testing.T, *nritest.Plugin) error { return errors.New("not here") }},
	}
}

// nriLife runs a pod with a container through all requests, as a kubelet does: it repeats a request while berth is
// away, and removes what has failed.
type nriLife struct {
	b         *harness.Berth
	name      string
	sandbox   string
	container string
}

func (l *nriLife) run() error {
	err := l.begin()
	return errors.Join(err, l.end())
}

func (l *nriLife) begin() error {
	config := l.b.Sandbox(l.name)
	limits := &runtimeapi.LinuxContainerResources{CpuShares: 512}
	for _, step := range []func(ctx context.Context) error{
		func(ctx context.Context) error {
			answer, err := l.b.Runtime.RunPodSandbox(ctx, &runtimeapi.RunPodSandboxRequest{Config: config})
			l.sandbox = answer.GetPodSandboxId()
			return err
		},
		func(ctx context.Context) error {
			answer, err := l.b.Runtime.CreateContainer(ctx, &runtimeapi.CreateContainerRequest{
				PodSandboxId: l.sandbox, Config: l.b.Container("main", "trap 'exit 0' TERM; while :; do sleep 0.02; done"), SandboxConfig: config,
			})
			l.container = answer.GetContainerId()
			return err
		},
		func(ctx context.Context) error {
			_, err := l.b.Runtime.StartContainer(ctx, &runtimeapi.StartContainerRequest{ContainerId: l.container})
			if err != nil && l.state() == runtimeapi.ContainerState_CONTAINER_RUNNING {
				return nil // its answer was lost
			}
			return err
		},
		func(ctx context.Context) error {
			_, err := l.b.Runtime.UpdatePodSandboxResources(ctx, &runtimeapi.UpdatePodSandboxResourcesRequest{PodSandboxId: l.sandbox, Resources: limits})
			return err
		},
		func(ctx context.Context) error {
			_, err := l.b.Runtime.UpdateContainerResources(ctx, &runtimeapi.UpdateContainerResourcesRequest{ContainerId: l.container, Linux: limits})
			return err
		},
	} {
		if err := l.repeat(step); err != nil {
			return err
		}
	}
	return nil
}

// end stops and removes what begin has made.
func (l *nriLife) end() error {
	var all []error
	if l.container != "" {
		all = append(all, l.repeat(func(ctx context.Context) error {
			_, err := l.b.Runtime.StopContainer(ctx, &runtimeapi.StopContainerRequest{ContainerId: l.container, Timeout: 20})
			return err
		}), l.repeat(func(ctx context.Context) error {
			_, err := l.b.Runtime.RemoveContainer(ctx, &runtimeapi.RemoveContainerRequest{ContainerId: l.container})
			return err
		}))
	}
	if l.sandbox != "" {
		all = append(all, l.repeat(func(ctx context.Context) error {
			_, err := l.b.Runtime.StopPodSandbox(ctx, &runtimeapi.StopPodSandboxRequest{PodSandboxId: l.sandbox})
			return err
		}), l.repeat(func(ctx context.Context) error {
			_, err := l.b.Runtime.RemovePodSandbox(ctx, &runtimeapi.RemovePodSandboxRequest{PodSandboxId: l.sandbox})
			return err
		}))
	}
	return errors.Join(all...)
}

func (l *nriLife) state() runtimeapi.ContainerState {
	answer, err := l.b.Runtime.ContainerStatus(l.b.Ctx(), &runtimeapi.ContainerStatusRequest{ContainerId: l.container})
	if err != nil {
		return runtimeapi.ContainerState_CONTAINER_UNKNOWN
	}
	return answer.Status.State
}

func (l *nriLife) repeat(step func(ctx context.Context) error) error {
	deadline := time.Now().Add(require.Patience(time.Minute))
	for {
		err := step(l.b.Ctx())
		if code := status.Code(err); code != codes.Unavailable && code != codes.DeadlineExceeded || time.Now().After(deadline) {
			return err
		}
		time.Sleep(20 * time.Millisecond) // there is no event for a daemon that comes back
	}
}

// nothingLeft checks that berth knows no pod.
func (l *nriLife) nothingLeft(t *testing.T) {
	t.Helper()
	pods, err := l.b.Runtime.ListPodSandbox(l.b.Ctx(), &runtimeapi.ListPodSandboxRequest{})
	if err != nil || len(pods.Items) > 0 {
		t.Errorf("pods are left: %v %v", pods.GetItems(), err)
		l.b.RemoveAllPods()
	}
}

// logHas reports whether a line of berth's log has all texts.
func logHas(b *harness.Berth, texts ...string) bool {
	data, err := os.ReadFile(filepath.Join(b.Dir, "berth.log"))
	if err != nil {
		return false
	}
	for line := range strings.Lines(string(data)) {
		if containsAll(line, texts...) {
			return true
		}
	}
	return false
}

// awaitLog waits for a line of berth's log that has all texts.
func awaitLog(t *testing.T, b *harness.Berth, texts ...string) {
	t.Helper()
	for deadline := time.Now().Add(require.Patience(30 * time.Second)); !logHas(b, texts...); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Errorf("berth's log has no line with %q\n%s", texts, b.LogTail())
			return
		}
	}
}

// TestNRIFaultsOfEveryEvent: a plugin that hangs, dies, breaks the protocol or refuses at any event of a real pod
// hinders it no more than the event lets it. berth's log has plugin, event and cause, other plugins get all
// events, and nothing is left.
func TestNRIFaultsOfEveryEvent(t *testing.T) {
	b := harness.Start(t, harness.Options{Config: fmt.Sprintf("[nri]\nplugin_request_timeout = %q\n", require.Patience(time.Second))})
	b.NeedsPart(t, harness.Plugins)
	socket := filepath.Join(b.State, "nri", "nri.sock")
	for _, fault := range nriFaults() {
		for _, event := range nriEvents() {
			t.Run(fault.name+"/"+event.name, func(t *testing.T) { atOneEvent(t, b, socket, fault, event) })
		}
	}
}

// atOneEvent runs a pod with a plugin that has a fault at an event, and with a healthy one.
func atOneEvent(t *testing.T, b *harness.Berth, socket string, fault nriFault, event nriEvent) {
	atSync := event.name == "Synchronize"
	ill := &nritest.Plugin{Name: fmt.Sprintf("10-%s-at-%s", strings.ReplaceAll(fault.name, " ", "-"), event.name)}
	reached := make(chan struct{})
	once := sync.OnceFunc(func() { close(reached) })
	ill.OnEvent = func(_ context.Context, got, _ string) error {
		if got != event.name {
			return nil
		}
		once()
		return fault.do(t, ill)
	}
	if atSync {
		if err := ill.TryConnect(t, socket); err != nil {
			t.Fatal(err)
		}
		<-reached
	} else {
		ill.Connect(t, socket)
	}
	healthy := &nritest.Plugin{Name: "20-healthy"}
	healthy.Connect(t, socket)
	defer healthy.Disconnect()
	defer ill.Disconnect()

	life := &nriLife{b: b, name: "life"}
	err := life.run()
	refused := fault.refuses && event.fails
	if refused != (err != nil) {
		t.Errorf("the pod's life: %v, want an error: %v", err, refused)
	}
	if err != nil && !strings.Contains(err.Error(), fmt.Sprintf("NRI plugin %q refused %s", ill.Name, event.name)) {
		t.Errorf("%v: does not name plugin and event", err)
	}
	if fault.leaves && !atSync { // a plugin that was not synchronized was not connected
		awaitLog(t, b, "disconnected", ill.Name)
	}
	if fault.names {
		awaitLog(t, b, "has failed", ill.Name, "event="+event.name)
	}
	if !refused && !slices.ContainsFunc(healthy.Events(), func(e string) bool { return strings.HasPrefix(e, event.name+" ") }) {
		t.Errorf("the other plugin did not get the event: %v", healthy.Events())
	}
	life.nothingLeft(t)
}

// TestNRIDaemonKilledInEveryEvent: the daemon is killed while a plugin is at an event. The pod goes on with the
// next daemon, to which the plugin connects and is synchronized. No event that was answered comes again, and the
// one that was not comes once more at most.
func TestNRIDaemonKilledInEveryEvent(t *testing.T) {
	b := harness.Start(t, harness.Options{})
	b.NeedsPart(t, harness.Plugins)
	socket := filepath.Join(b.State, "nri", "nri.sock")
	for _, event := range nriEvents()[1:] {
		t.Run(event.name, func(t *testing.T) {
			reached := make(chan struct{})
			once := sync.OnceFunc(func() { close(reached) })
			first := &nritest.Plugin{Name: "10-first", OnEvent: func(_ context.Context, got, _ string) error {
				if got == event.name {
					once()
					<-t.Context().Done()
				}
				return nil
			}}
			first.Connect(t, socket)
			life := &nriLife{b: b, name: "killed"}
			ended := make(chan error, 1)
			go func() { ended <- life.run() }()
			select {
			case <-reached:
			case err := <-ended:
				t.Fatalf("the pod's life ended without the event: %v", err)
			}
			b.KillDaemon()
			b.StartDaemon()
			second := &nritest.Plugin{Name: "10-second"}
			second.Connect(t, socket)
			if err := <-ended; err != nil {
				t.Errorf("the pod's life: %v", err)
			}
			second.Disconnect()
			before, after := first.Events(), second.Events()
			t.Logf("before %v, after %v", before, after)
			if !strings.HasPrefix(after[0], "Synchronize ") {
				t.Errorf("the plugin was not synchronized first: %v", after)
			}
			// An update that the kubelet requests again is an event again.
			again := func(e string) bool { return strings.Contains(e, "Update") || strings.HasPrefix(e, "Synchronize") }
			answered := before[:len(before)-1]
			for i, each := range after {
				if !again(each) && slices.Contains(answered, each) || slices.Contains(after[:i], each) {
					t.Errorf("event %q came again; before %v, after %v", each, before, after)
				}
			}
			// The next daemon may have removed the pod before the plugin connects. Then it does not synchronize it.
			knows := slices.ContainsFunc(after, func(e string) bool { return strings.HasSuffix(e, " killed") })
			if knows && !slices.Contains(slices.Concat(before, after), "RemovePodSandbox killed") {
				t.Errorf("the end of the pod was not reported: %v", after)
			}
			life.nothingLeft(t)
		})
	}
}
