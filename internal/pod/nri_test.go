package pod_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/containerd/nri/pkg/api"
	validator "github.com/containerd/nri/plugins/default-validator/builtin"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berthrun/berth/internal/engine/enginetest"
	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/nri"
	"github.com/berthrun/berth/internal/nri/nritest"
	"github.com/berthrun/berth/internal/pod"
	"github.com/berthrun/berth/internal/pod/podtest"
)

// nriTimeout is long enough for an answer on a busy machine, and short for a plugin that hangs.
const nriTimeout = time.Second

// nriBed is a bed with NRI.
type nriBed struct {
	*bed
	socket string
	// rules are for daemons that start from now on.
	rules validator.DefaultValidatorConfig
}

func newNRIBed(t *testing.T) *nriBed {
	t.Helper()
	w := podtest.NewWorld(t, podtest.Fake())
	w.Limits = pod.Limits{Batch: time.Millisecond}
	b := &nriBed{socket: filepath.Join(w.Dir, "nri.sock")}
	w.NRI = func() *nri.Host {
		host, err := nri.New(nri.Config{
			Socket: b.socket, PluginDir: filepath.Join(w.Dir, "plugins"), ConfigDir: filepath.Join(w.Dir, "conf"),
			Registration: 5 * time.Second, Request: nriTimeout, Validator: b.rules, Version: "v1", Log: slog.New(slog.DiscardHandler),
		})
		if err != nil {
			t.Fatal(err)
		}
		return host
	}
	script := podtest.NewScript(nil)
	b.bed = &bed{World: w, T: t, script: script, s: w.Daemon(script)}
	return b
}

// plugin returns what berth shows of a plugin.
func (b *nriBed) plugin(name string) nri.Plugin {
	b.Helper()
	for _, p := range b.s.NRIInfo().(*nri.Info).Plugins {
		if p.Name == name {
			return p
		}
	}
	return nri.Plugin{}
}

// TestNRIEvents: a plugin gets every event of a pod's life, once and in order.
func TestNRIEvents(t *testing.T) {
	b := newNRIBed(t)
	p := &nritest.Plugin{Name: "10-logger"}
	p.Connect(t, b.socket)

	sandbox := b.mustRun(b.SandboxConfig("web"))
	id := b.mustStart(sandbox, "main", b.Programs.Sleep)
	limits := &runtimeapi.LinuxContainerResources{CpuShares: 512}
	if err := b.s.UpdateContainer(t.Context(), id, limits); err != nil {
		t.Fatal(err)
	}
	if err := b.s.UpdateSandbox(t.Context(), sandbox, nil, limits); err != nil {
		t.Fatal(err)
	}
	for range 2 { // a repeated request repeats no event
		if err := b.s.StopSandbox(t.Context(), sandbox); err != nil {
			t.Fatal(err)
		}
	}
	for range 2 {
		if err := b.s.RemoveSandbox(t.Context(), sandbox); err != nil {
			t.Fatal(err)
		}
	}
	want := []string{
		"Synchronize ", "RunPodSandbox web", "CreateContainer main", "PostCreateContainer main", "StartContainer main", "PostStartContainer main",
		"UpdateContainer main", "PostUpdateContainer main", "UpdatePodSandbox web", "PostUpdatePodSandbox web",
		"StopContainer main", "StopPodSandbox web", "RemoveContainer main", "RemovePodSandbox web",
	}
	if got := p.Events(); !slices.Equal(got, want) {
		t.Errorf("events:\n%s\nwant:\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	if info := b.plugin("10-logger"); !info.Connected || info.Errors > 0 || info.Calls != uint64(len(want)) {
		t.Errorf("berth shows %+v", info)
	}
}

// TestNRIExit: the exit of a container is an event, without a request.
func TestNRIExit(t *testing.T) {
	b := newNRIBed(t)
	p := &nritest.Plugin{Name: "logger"}
	p.Connect(t, b.socket)
	sandbox := b.mustRun(b.SandboxConfig("web"))
	b.mustStart(sandbox, "main", b.Programs.Exit(3))
	podtest.Eventually(t, "the exit is an event", func() bool { return p.Saw("StopContainer main") })
	events := p.Events()
	if slices.Index(events, "StopContainer main") < slices.Index(events, "PostStartContainer main") {
		t.Errorf("the exit came before the start: %v", events)
	}
	b.clear()
}

// TestNRISynchronize: a plugin that connects later, or again after a restart of the daemon, gets
// what exists, and later events of it.
func TestNRISynchronize(t *testing.T) {
	b := newNRIBed(t)
	sandbox := b.mustRun(b.SandboxConfig("web"))
	b.mustStart(sandbox, "main", b.Programs.Sleep)
	b.mustCreate(sandbox, "side", b.Programs.Sleep)
	done := b.mustStart(sandbox, "done", b.Programs.Exit(0))
	podtest.Eventually(t, "the container exits", func() bool {
		return b.status(done).GetState() == runtimeapi.ContainerState_CONTAINER_EXITED
	})
	const all = "Synchronize main:CONTAINER_RUNNING,side:CONTAINER_CREATED,web"
	first := &nritest.Plugin{Name: "first"}
	first.Connect(t, b.socket)
	b.restart()
	second := &nritest.Plugin{Name: "second"}
	second.Connect(t, b.socket)
	for _, p := range []*nritest.Plugin{first, second} {
		if got := p.Events(); !slices.Equal(got, []string{all}) {
			t.Errorf("plugin %s got %v, want %q alone", p.Name, got, all)
		}
	}
	b.clear()
	got := second.Events()[1:]
	slices.Sort(got)
	want := []string{
		"RemoveContainer done", "RemoveContainer main", "RemoveContainer side", "RemovePodSandbox web",
		"StopContainer main", "StopContainer side", "StopPodSandbox web",
	}
	if !slices.Equal(got, want) {
		t.Errorf("events after the restart: %v, want %v", got, want)
	}
}

// TestNRIResumedStop: a stop that a restart interrupts reports the pod once.
func TestNRIResumedStop(t *testing.T) {
	b := newNRIBed(t)
	p := &nritest.Plugin{Name: "first"}
	p.Connect(t, b.socket)
	sandbox := b.mustRun(b.SandboxConfig("web"))
	b.script.Kill()
	b.CloseDaemon(b.s)
	b.script = podtest.NewScript(func(_ int, name string) error {
		if name == "before network.Detach" {
			return errors.New("the plugin of the network is away")
		}
		return nil
	})
	b.s = b.Daemon(b.script)
	p = &nritest.Plugin{Name: "second"}
	p.Connect(t, b.socket)
	if err := b.s.StopSandbox(t.Context(), sandbox); err == nil {
		t.Error("a stop whose network stays attached succeeded")
	}
	if !p.Saw("StopPodSandbox web") {
		t.Fatalf("the stop was not reported: %v", p.Events())
	}
	b.restart()
	p = &nritest.Plugin{Name: "third"}
	p.Connect(t, b.socket)
	b.clear()
	if p.Saw("StopPodSandbox web") || !p.Saw("RemovePodSandbox web") {
		t.Errorf("events after the restart: %v, want RemovePodSandbox and no second StopPodSandbox", p.Events())
	}
}

// TestNRIFailedRun: a pod that fails after RunPodSandbox is reported as stopped and removed, and
// leaves nothing.
func TestNRIFailedRun(t *testing.T) {
	b := newNRIBed(t)
	early := &nritest.Plugin{Name: "10-early"}
	early.Connect(t, b.socket)
	late := &nritest.Plugin{Name: "20-late", OnEvent: func(_ context.Context, event, _ string) error {
		if event == "RunPodSandbox" {
			return errors.New("no such class")
		}
		return nil
	}}
	late.Connect(t, b.socket)
	_, err := b.s.RunSandbox(t.Context(), b.SandboxConfig("web"), "")
	if !errors.Is(err, errs.State) || !strings.Contains(err.Error(), `NRI plugin "20-late" refused RunPodSandbox`) || !strings.Contains(err.Error(), "no such class") {
		t.Errorf("RunSandbox: %v, want the plugin, the event and its reason", err)
	}
	if got := early.Events()[1:]; !slices.Equal(got, []string{"RunPodSandbox web", "StopPodSandbox web", "RemovePodSandbox web"}) {
		t.Errorf("events: %v", got)
	}
	if left := b.Leftovers(); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
}

// TestNRIAdjust: what plugins adjust is in the spec that the engine gets and in later events, and
// limits are in the container's status.
func TestNRIAdjust(t *testing.T) {
	b := newNRIBed(t)
	p := &nritest.Plugin{Name: "injector", OnCreate: func(_ *api.PodSandbox, _ *api.Container) (*api.ContainerAdjustment, []*api.ContainerUpdate, error) {
		a := &api.ContainerAdjustment{}
		a.AddEnv("ADDED", "yes")
		a.AddAnnotation("example.org/added", "yes")
		a.AddCDIDevice(&api.CDIDevice{Name: "example.org/thing=one"})
		a.SetLinuxCPUShares(333)
		return a, nil, nil
	}}
	p.Connect(t, b.socket)
	sandbox := b.mustRun(b.SandboxConfig("web"))
	id := b.mustStart(sandbox, "main", b.Programs.Sleep)
	spec, err := b.fake().ContainerSpec(t.Context(), id, nil)
	if err != nil {
		t.Fatal(err)
	}
	if !slices.Contains(spec.Process.Env, "ADDED=yes") || spec.Annotations["example.org/added"] != "yes" ||
		spec.Annotations[enginetest.AnnotationCDI] != `["example.org/thing=one"]` || *spec.Linux.Resources.CPU.Shares != 333 {
		t.Errorf("the spec was not adjusted: %+v, %v", spec.Process, spec.Annotations)
	}
	if shares := b.status(id).GetResources().GetLinux().GetCpuShares(); shares != 333 {
		t.Errorf("the status has %d CPU shares, want the plugin's 333", shares)
	}
	b.clear()
}

// TestNRIUpdates: plugins change what an update sets, and update other containers, in the answers to
// each event and on their own.
func TestNRIUpdates(t *testing.T) {
	b := newNRIBed(t)
	var other string
	update := func(id string, shares uint64) *api.ContainerUpdate {
		u := &api.ContainerUpdate{}
		u.SetContainerId(id)
		u.SetLinuxCPUShares(shares)
		return u
	}
	p := &nritest.Plugin{
		Name: "balancer",
		OnCreate: func(*api.PodSandbox, *api.Container) (*api.ContainerAdjustment, []*api.ContainerUpdate, error) {
			if other == "" {
				return nil, nil, nil
			}
			return nil, []*api.ContainerUpdate{update(other, 11)}, nil
		},
		OnUpdate: func(c *api.Container, _ *api.LinuxResources) []*api.ContainerUpdate {
			return []*api.ContainerUpdate{update(c.GetId(), 22), update(other, 23)}
		},
		OnStop: func(*api.Container) []*api.ContainerUpdate { return []*api.ContainerUpdate{update(other, 33)} },
	}
	p.Connect(t, b.socket)
	sandbox := b.mustRun(b.SandboxConfig("web"))
	other = b.mustStart(sandbox, "other", b.Programs.Sleep)
	shares := func(id string, want int64) {
		t.Helper()
		podtest.Eventually(t, fmt.Sprintf("the container has %d CPU shares", want), func() bool {
			return b.fake().Limits(id).GetCpuShares() == want && b.status(id).GetResources().GetLinux().GetCpuShares() == want
		})
	}
	main := b.mustStart(sandbox, "main", b.Programs.Sleep)
	shares(other, 11)
	if err := b.s.UpdateContainer(t.Context(), main, &runtimeapi.LinuxContainerResources{CpuShares: 999}); err != nil {
		t.Fatal(err)
	}
	shares(main, 22)
	shares(other, 23)
	if err := b.s.StopContainer(t.Context(), main, 0); err != nil {
		t.Fatal(err)
	}
	shares(other, 33)
	if failed, err := p.Update(update(other, 44)); err != nil || len(failed) > 0 {
		t.Errorf("an update without an event: %v, %v", failed, err)
	}
	shares(other, 44)
	failed, err := p.Update(update(other, 55), update("absent", 1))
	if err == nil || len(failed) != 0 && failed[0].GetContainerId() != "absent" {
		t.Errorf("an update of an absent container: %v, %v", failed, err)
	}
	shares(other, 55)
	b.clear()
}

// TestNRIUpdateOfTwoCreations: two containers that are created at the same time, and whose plugin
// answers with an update of the other one, do not wait for each other.
func TestNRIUpdateOfTwoCreations(t *testing.T) {
	b := newNRIBed(t)
	b.Limits.Kill = time.Hour // which bounds an update
	b.restart()
	var mu sync.Mutex
	ids := map[string]string{}
	p := &nritest.Plugin{Name: "knot", OnCreate: func(_ *api.PodSandbox, c *api.Container) (*api.ContainerAdjustment, []*api.ContainerUpdate, error) {
		mu.Lock()
		defer mu.Unlock()
		ids[c.GetName()] = c.GetId()
		var updates []*api.ContainerUpdate
		for name, id := range ids {
			if name != c.GetName() {
				u := &api.ContainerUpdate{ContainerId: id}
				u.SetLinuxCPUShares(5)
				updates = append(updates, u)
			}
		}
		return nil, updates, nil
	}}
	p.Connect(t, b.socket)
	sandbox := b.mustRun(b.SandboxConfig("web"))
	hang := b.script.HangAt("after engine.Create", false) // the records say "creating"
	created := make(chan error, 2)
	for _, name := range []string{"one", "two"} {
		go func() {
			_, err := b.s.CreateContainer(t.Context(), sandbox, b.ContainerConfig(name, b.Programs.Sleep))
			created <- err
		}()
	}
	podtest.Eventually(t, "both are at the same point", func() bool { return b.script.Count("after engine.Create") == 2 })
	hang.Release()
	for range 2 {
		if err := <-created; err != nil {
			t.Error(err)
		}
	}
	b.clear()
}

// TestNRIEviction: a plugin's eviction stops a container.
func TestNRIEviction(t *testing.T) {
	b := newNRIBed(t)
	sandbox := b.mustRun(b.SandboxConfig("web"))
	id := b.mustStart(sandbox, "main", b.Programs.Stubborn)
	if err := b.s.Evict(t.Context(), id, "too greedy"); err != nil {
		t.Fatal(err)
	}
	podtest.Eventually(t, "the container has exited", func() bool {
		return b.status(id).GetState() == runtimeapi.ContainerState_CONTAINER_EXITED
	})
	b.assertExit(id, 137, "Error")
	b.clear()
}

// TestNRIConnectionDuringCreation: the first plugin, connecting while a container is created, gets
// it at its synchronization and its later events.
func TestNRIConnectionDuringCreation(t *testing.T) {
	b := newNRIBed(t)
	sandbox := b.mustRun(b.SandboxConfig("web"))
	hang := b.script.HangAt("after engine.Create", false)
	failed := make(chan error, 1)
	go func() {
		_, err := b.s.CreateContainer(t.Context(), sandbox, b.ContainerConfig("main", b.Programs.Sleep))
		failed <- err
	}()
	<-hang.Reached
	p := &nritest.Plugin{Name: "logger"}
	p.Connect(t, b.socket)
	hang.Release()
	if err := <-failed; err != nil {
		t.Fatal(err)
	}
	if err := b.s.StopSandbox(t.Context(), sandbox); err != nil {
		t.Fatal(err)
	}
	b.clear()
	want := []string{
		"Synchronize main:CONTAINER_UNKNOWN,web", "PostCreateContainer main",
		"StopContainer main", "StopPodSandbox web", "RemoveContainer main", "RemovePodSandbox web",
	}
	if got := p.Events(); !slices.Equal(got, want) {
		t.Errorf("events:\n%s\nwant:\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

// TestNRIConnectionDuringStart: a plugin that connects while a container starts gets it as one that is created, and
// then its start; one that connects after the start does not get it.
func TestNRIConnectionDuringStart(t *testing.T) {
	b := newNRIBed(t)
	sandbox := b.mustRun(b.SandboxConfig("web"))
	id := b.mustCreate(sandbox, "main", b.Programs.Sleep)
	hang := b.script.HangAt("before engine.Start", false)
	failed := make(chan error, 1)
	go func() { failed <- b.s.StartContainer(t.Context(), id) }()
	<-hang.Reached
	p := &nritest.Plugin{Name: "logger"}
	p.Connect(t, b.socket)
	hang.Release()
	if err := <-failed; err != nil {
		t.Fatal(err)
	}
	late := &nritest.Plugin{Name: "late"}
	late.Connect(t, b.socket)
	b.clear()
	if got, want := p.Events()[:2], []string{"Synchronize main:CONTAINER_CREATED,web", "PostStartContainer main"}; !slices.Equal(got, want) {
		t.Errorf("events %q, want %q first", p.Events(), want)
	}
	if got := late.Events(); got[0] != "Synchronize main:CONTAINER_RUNNING,web" || late.Saw("PostStartContainer main") {
		t.Errorf("events of the late plugin %q", got)
	}
}

// TestNRIUpdateDuringSynchronization: an update waits for a plugin that is being synchronized, which has the former
// limits, and is an event for it.
func TestNRIUpdateDuringSynchronization(t *testing.T) {
	b := newNRIBed(t)
	sandbox := b.mustRun(b.SandboxConfig("web"))
	id := b.mustStart(sandbox, "main", b.Programs.Sleep)
	reached, release := make(chan struct{}), make(chan struct{})
	p := &nritest.Plugin{Name: "logger", OnEvent: func(_ context.Context, event, _ string) error {
		if event == "Synchronize" {
			close(reached)
			<-release
		}
		return nil
	}}
	if err := p.TryConnect(t, b.socket); err != nil {
		t.Fatal(err)
	}
	<-reached
	limits := &runtimeapi.LinuxContainerResources{CpuShares: 512}
	updates := make(chan error, 2)
	go func() { updates <- b.s.UpdateSandbox(b.Context(), sandbox, nil, limits) }()
	go func() { updates <- b.s.UpdateContainer(b.Context(), id, limits) }()
	close(release)
	for range 2 {
		if err := <-updates; err != nil {
			t.Error(err)
		}
	}
	for _, event := range []string{"UpdatePodSandbox web", "PostUpdatePodSandbox web", "UpdateContainer main", "PostUpdateContainer main"} {
		if !p.Saw(event) {
			t.Errorf("the plugin did not get %q: %q", event, p.Events())
		}
	}
	b.clear()
}

// TestNRIMissedEnd: a plugin does not get the end of a container that ended while no plugin was
// connected.
func TestNRIMissedEnd(t *testing.T) {
	b := newNRIBed(t)
	first := &nritest.Plugin{Name: "first"}
	first.Connect(t, b.socket)
	sandbox := b.mustRun(b.SandboxConfig("web"))
	b.mustStart(sandbox, "main", b.Programs.Sleep)
	first.Disconnect()
	podtest.Eventually(t, "the plugin is gone", func() bool { return !b.plugin("10-first").Connected })
	b.mustRun(b.SandboxConfig("other"))                           // NRI's library forgets the plugin at the next event
	if err := b.s.StopSandbox(t.Context(), sandbox); err != nil { // waits for the events of its containers
		t.Fatal(err)
	}
	second := &nritest.Plugin{Name: "second"}
	second.Connect(t, b.socket)
	b.clear()
	if second.Saw("StopContainer main") || !second.Saw("RemoveContainer main") {
		t.Errorf("events: %v, want RemoveContainer and no StopContainer", second.Events())
	}
}

// TestNRILargeContainers: pods with long environments keep no plugin from connecting.
func TestNRILargeContainers(t *testing.T) {
	b := newNRIBed(t)
	sandbox := b.mustRun(b.SandboxConfig("web"))
	for i := range 2 {
		config := b.ContainerConfig(fmt.Sprint("main", i), b.Programs.Sleep)
		config.Envs = []*runtimeapi.KeyValue{{Key: "LONG", Value: bytes.Repeat([]byte("x"), 2100<<10)}}
		if _, err := b.s.CreateContainer(t.Context(), sandbox, config); err != nil {
			t.Fatal(err)
		}
	}
	var long int
	p := &nritest.Plugin{Name: "logger", OnSync: func(_ []*api.PodSandbox, containers []*api.Container) []*api.ContainerUpdate {
		for _, c := range containers {
			if len(c.GetEnv()) > 0 {
				long++
			}
		}
		return nil
	}}
	p.Connect(t, b.socket)
	const want = "Synchronize main0:CONTAINER_CREATED,main1:CONTAINER_CREATED,web"
	if got := p.Events(); !slices.Equal(got, []string{want}) || long != 1 {
		t.Errorf("%d environments fit, want 1; events: %v", long, got)
	}
	b.clear()
}
