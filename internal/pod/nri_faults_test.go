package pod_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/containerd/nri/pkg/api"
	validator "github.com/containerd/nri/plugins/default-validator/builtin"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/nri/nritest"
	"github.com/berthrun/berth/internal/pod/podtest"
)

// TestNRINonsense: an adjustment without a meaning fails the container with plugin, event and
// field, and leaves nothing.
func TestNRINonsense(t *testing.T) {
	for name, c := range map[string]struct {
		adjust func(*api.ContainerAdjustment)
		want   string
	}{
		"mount": {func(a *api.ContainerAdjustment) {
			a.AddMount(&api.Mount{Destination: "etc", Type: "bind", Source: "/etc"})
		}, "mounts[0].destination"},
		"env":    {func(a *api.ContainerAdjustment) { a.AddEnv("A=B", "c") }, "env[0]"},
		"rlimit": {func(a *api.ContainerAdjustment) { a.AddRlimit("RLIMIT_LUCK", 1, 1) }, "rlimits[0].type"},
		"hook": {func(a *api.ContainerAdjustment) {
			a.AddHooks(&api.Hooks{Poststart: []*api.Hook{{Path: "relative"}}})
		}, "hooks.poststart[0].path"},
	} {
		t.Run(name, func(t *testing.T) {
			b := newNRIBed(t)
			p := &nritest.Plugin{Name: "10-odd", OnCreate: func(*api.PodSandbox, *api.Container) (*api.ContainerAdjustment, []*api.ContainerUpdate, error) {
				a := &api.ContainerAdjustment{}
				c.adjust(a)
				return a, nil, nil
			}}
			p.Connect(t, b.socket)
			sandbox := b.mustRun(b.SandboxConfig("web"))
			_, err := b.s.CreateContainer(t.Context(), sandbox, b.ContainerConfig("main", b.Programs.Sleep))
			if !errors.Is(err, errs.Invalid) || !strings.Contains(err.Error(), `NRI plugin "10-odd"`) || !strings.Contains(err.Error(), c.want) {
				t.Errorf("CreateContainer: %v, want the plugin and %s", err, c.want)
			}
			if !p.Saw("StopContainer main") || !p.Saw("RemoveContainer main") {
				t.Errorf("the failed container was not reported as removed: %v", p.Events())
			}
			b.clear()
		})
	}
}

// TestNRIConflict: two plugins that change the same field fail the request. The error has the event, both plugins and the field. The
// container goes, or has its former limits.
func TestNRIConflict(t *testing.T) {
	adjusts := map[string]func(a *api.ContainerAdjustment, plugin string){
		"env": func(a *api.ContainerAdjustment, plugin string) { a.AddEnv("A", plugin) },
		"mount": func(a *api.ContainerAdjustment, _ string) {
			a.AddMount(&api.Mount{Destination: "/data", Type: "bind", Source: "/etc"})
		},
		"annotation": func(a *api.ContainerAdjustment, plugin string) { a.AddAnnotation("example.org/a", plugin) },
		"device": func(a *api.ContainerAdjustment, _ string) {
			a.AddDevice(&api.LinuxDevice{Path: "/dev/toy", Type: "c", Major: 1, Minor: 5})
		},
		"shares":  func(a *api.ContainerAdjustment, _ string) { a.SetLinuxCPUShares(333) },
		"rlimit":  func(a *api.ContainerAdjustment, _ string) { a.AddRlimit("RLIMIT_NOFILE", 2, 1) },
		"cgroups": func(a *api.ContainerAdjustment, plugin string) { a.SetLinuxCgroupsPath("/" + plugin) },
	}
	b := newNRIBed(t)
	plugins := []*nritest.Plugin{{Name: "10-one"}, {Name: "20-two"}}
	for _, p := range plugins {
		p.OnCreate = func(_ *api.PodSandbox, c *api.Container) (*api.ContainerAdjustment, []*api.ContainerUpdate, error) {
			a := &api.ContainerAdjustment{}
			if adjust := adjusts[c.GetName()]; adjust != nil {
				adjust(a, p.Name)
			}
			return a, nil, nil
		}
		p.OnUpdate = func(c *api.Container, _ *api.LinuxResources) []*api.ContainerUpdate {
			u := &api.ContainerUpdate{}
			u.SetContainerId(c.GetId())
			u.SetLinuxCPUShares(444)
			return []*api.ContainerUpdate{u}
		}
		p.Connect(t, b.socket)
	}
	sandbox := b.mustRun(b.SandboxConfig("web"))
	for name := range adjusts {
		_, err := b.s.CreateContainer(t.Context(), sandbox, b.ContainerConfig(name, b.Programs.Sleep))
		assertKind(t, err, errs.State, "refused CreateContainer", `"10-one"`, `"20-two"`, "both tried to set")
		if !plugins[0].Saw("RemoveContainer "+name) || !plugins[1].Saw("RemoveContainer "+name) {
			t.Errorf("%s: the failed container was not reported as removed", name)
		}
	}
	id := b.mustStart(sandbox, "main", b.Programs.Sleep)
	err := b.s.UpdateContainer(t.Context(), id, &runtimeapi.LinuxContainerResources{CpuShares: 555})
	assertKind(t, err, errs.State, "refused UpdateContainer", `"10-one"`, `"20-two"`, "both tried to set")
	if shares := b.fake().Limits(id).GetCpuShares(); shares == 444 || shares == 555 {
		t.Errorf("a refused update has set %d CPU shares", shares)
	}
	b.clear()
}

// TestNRIRefusal: a plugin's error fails the requests that peers let it fail, and no other. Those that it does not fail
// are events for the other plugins, too.
func TestNRIRefusal(t *testing.T) {
	for event, fails := range map[string]bool{
		"RunPodSandbox": true, "UpdatePodSandbox": true, "PostUpdatePodSandbox": false, "StopPodSandbox": false, "RemovePodSandbox": false,
		"CreateContainer": true, "PostCreateContainer": false, "StartContainer": true, "PostStartContainer": false,
		"UpdateContainer": true, "PostUpdateContainer": false, "StopContainer": false, "RemoveContainer": false,
	} {
		t.Run(event, func(t *testing.T) {
			b := newNRIBed(t)
			p := &nritest.Plugin{Name: "10-strict", OnEvent: func(_ context.Context, got, _ string) error {
				if got == event {
					return errors.New("not here")
				}
				return nil
			}}
			p.Connect(t, b.socket)
			healthy := &nritest.Plugin{Name: "20-healthy"}
			healthy.Connect(t, b.socket)
			err := b.life()
			if !fails && !slices.ContainsFunc(healthy.Events(), func(e string) bool { return strings.HasPrefix(e, event+" ") }) {
				t.Errorf("the other plugin did not get the event: %v", healthy.Events())
			}
			if fails != (err != nil) {
				t.Errorf("the pod's life: %v, want an error: %v", err, fails)
			}
			if fails && !strings.Contains(err.Error(), `NRI plugin "10-strict" refused `+event) {
				t.Errorf("%v: does not name the plugin and the event", err)
			}
			if info := b.plugin("10-strict"); info.LastEvent != event || !strings.Contains(info.LastError, "not here") {
				t.Errorf("berth shows %+v", info)
			}
			b.clear()
		})
	}
}

// TestNRISilence: a plugin that hangs or dies at an event is disconnected and shown, and the pod
// goes on. The hangs at the other events are in TestNRIHangs.
func TestNRISilence(t *testing.T) {
	for _, event := range append(hangEvents(), otherHangEvents()...) {
		t.Run(event+" dies", func(t *testing.T) {
			goesOn(t, event, (*nritest.Plugin).Disconnect)
		})
	}
	for _, event := range hangEvents() {
		t.Run(event+" hangs", func(t *testing.T) {
			t.Parallel()
			goesOn(t, event, func(*nritest.Plugin) { <-t.Context().Done() }) // longer than the request
		})
	}
}

func hangEvents() []string {
	return []string{"RunPodSandbox", "CreateContainer", "StartContainer", "StopContainer"}
}

func otherHangEvents() []string {
	return []string{
		"UpdatePodSandbox", "PostUpdatePodSandbox", "StopPodSandbox", "RemovePodSandbox", "PostCreateContainer", "PostStartContainer",
		"UpdateContainer", "PostUpdateContainer", "RemoveContainer",
	}
}

// goesOn runs a pod whose plugin has a fault at an event.
func goesOn(t *testing.T, event string, fault func(*nritest.Plugin)) {
	t.Helper()
	b := newNRIBed(t)
	p := &nritest.Plugin{Name: "10-ill"}
	p.OnEvent = func(_ context.Context, got, _ string) error {
		if got == event {
			fault(p)
		}
		return nil
	}
	p.Connect(t, b.socket)
	healthy := &nritest.Plugin{Name: "20-healthy"}
	healthy.Connect(t, b.socket)
	if err := b.life(); err != nil {
		t.Errorf("the pod's life: %v", err)
	}
	if !slices.ContainsFunc(healthy.Events(), func(e string) bool { return strings.HasPrefix(e, event+" ") }) {
		t.Errorf("the other plugin did not get the event: %v", healthy.Events())
	}
	podtest.Eventually(t, "berth shows the plugin as disconnected, with the event", func() bool {
		info := b.plugin("10-ill")
		return !info.Connected && info.LastEvent == event
	})
	b.clear()
}

// life runs a pod with a container through all requests, and removes it.
func (b *nriBed) life() error {
	ctx := b.Context()
	limits := &runtimeapi.LinuxContainerResources{CpuShares: 512}
	sandbox, err := b.s.RunSandbox(ctx, b.SandboxConfig("web"), "")
	if err != nil {
		return err
	}
	id, err := b.s.CreateContainer(ctx, sandbox, b.ContainerConfig("main", b.Programs.Sleep))
	if err != nil {
		return err
	}
	return errors.Join(
		b.s.StartContainer(ctx, id),
		b.s.UpdateSandbox(ctx, sandbox, nil, limits),
		b.s.UpdateContainer(ctx, id, limits),
		b.s.StopContainer(ctx, id, 0),
		b.s.RemoveContainer(ctx, id),
		b.s.StopSandbox(ctx, sandbox),
		b.s.RemoveSandbox(ctx, sandbox),
	)
}

// TestNRIFailurePolicy: a plugin may want that its silence fails the request.
func TestNRIFailurePolicy(t *testing.T) {
	b := newNRIBed(t)
	p := &nritest.Plugin{
		Name: "10-guard", Policy: &api.FailurePolicy{FailRequest: true},
		OnEvent: func(_ context.Context, event, _ string) error {
			if event == "CreateContainer" {
				<-t.Context().Done()
			}
			return nil
		},
	}
	p.Connect(t, b.socket)
	sandbox := b.mustRun(b.SandboxConfig("web"))
	_, err := b.s.CreateContainer(t.Context(), sandbox, b.ContainerConfig("main", b.Programs.Sleep))
	if err == nil || !strings.Contains(err.Error(), "10-guard") || !strings.Contains(err.Error(), "CreateContainer") {
		t.Errorf("CreateContainer: %v, want the plugin and the event", err)
	}
	b.clear()
}

// TestNRIIdleDisconnect: a plugin that goes away between events is shown as disconnected.
func TestNRIIdleDisconnect(t *testing.T) {
	b := newNRIBed(t)
	p := &nritest.Plugin{Name: "10-guest"}
	p.Connect(t, b.socket)
	connected := func() bool { return b.plugin("10-guest").Connected }
	podtest.Eventually(t, "berth shows the plugin as connected", connected)
	p.Disconnect()
	podtest.Eventually(t, "berth shows the plugin as disconnected", func() bool { return !connected() })
	b.mustRun(b.SandboxConfig("web"))
	again := &nritest.Plugin{Name: "10-guest"}
	again.Connect(t, b.socket)
	podtest.Eventually(t, "berth shows the plugin that came back as connected", connected)
	b.clear()
}

// TestNRIValidator: the default validator refuses containers by the rules of the configuration.
func TestNRIValidator(t *testing.T) {
	b := newNRIBed(t)
	b.rules = validator.DefaultValidatorConfig{Enable: true, RejectOCIHookAdjustment: true, RequiredPlugins: []string{"guard"}, TolerateMissingAnnotation: "example.org/tolerate"}
	b.restart()
	sandbox := b.mustRun(b.SandboxConfig("web"))
	create := func(name string) error {
		_, err := b.s.CreateContainer(t.Context(), sandbox, b.ContainerConfig(name, b.Programs.Sleep))
		return err
	}
	if err := create("one"); err == nil || !strings.Contains(err.Error(), "guard") {
		t.Errorf("a container without the required plugin: %v", err)
	}
	p := &nritest.Plugin{Name: "10-guard"}
	p.Connect(t, b.socket)
	if err := create("two"); err != nil {
		t.Errorf("a container with the required plugin: %v", err)
	}
	hooks := &nritest.Plugin{Name: "20-hooks", OnCreate: func(*api.PodSandbox, *api.Container) (*api.ContainerAdjustment, []*api.ContainerUpdate, error) {
		a := &api.ContainerAdjustment{}
		a.AddHooks(&api.Hooks{Poststop: []*api.Hook{{Path: "/bin/true"}}})
		return a, nil, nil
	}}
	hooks.Connect(t, b.socket)
	if err := create("three"); err == nil || !strings.Contains(err.Error(), "hooks") {
		t.Errorf("a container with a plugin's hook: %v", err)
	}
	b.clear()
}

// TestNRIHangingPod: a plugin that connects while a pod's network hangs is synchronized at once, and
// gets the pod when it is ready.
func TestNRIHangingPod(t *testing.T) {
	b := newNRIBed(t)
	hang := b.script.HangAt("before network.Attach", false)
	came := b.runLater(t.Context(), b.SandboxConfig("slow"))
	<-hang.Reached
	p := &nritest.Plugin{Name: "logger"}
	p.Connect(t, b.socket)
	hang.Release()
	if got := <-came; got.err != nil {
		t.Errorf("the slow pod: %v", got.err)
	}
	if got := p.Events(); !slices.Equal(got, []string{"Synchronize ", "RunPodSandbox slow"}) {
		t.Errorf("events: %v", got)
	}
	b.clear()
}
