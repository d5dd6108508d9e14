package pod_test

import (
	"errors"
	"testing"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berthrun/berth/internal/engine"
	"github.com/berthrun/berth/internal/engine/enginetest"
	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/pod/podtest"
)

// Of two containers of a former runtime with one name, the one that runs is adopted, and of two that
// run the older one. The other is left alone: it runs on, at every start.
func TestFormerContainersOfOneName(t *testing.T) {
	for name, c := range map[string]struct {
		older, newer engine.State
		adopted      string
	}{
		"both run":      {engine.StateRunning, engine.StateRunning, "1"},
		"the newer one": {engine.StateStopped, engine.StateRunning, "2"},
		"the older one": {engine.StateRunning, engine.StateStopped, "1"},
		"both ended":    {engine.StateStopped, engine.StateStopped, "1"},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBed(t, nil)
			b.script.Kill()
			b.CloseDaemon(b.s)
			former := formerPods(b.World)
			older := former.Containers[0]
			newer := *older
			newer.ID, newer.CreatedAt = formerID("2"), older.CreatedAt+1
			for of, state := range map[*engine.FormerContainer]engine.State{older: c.older, &newer: c.newer} {
				if of.State = state; state != engine.StateRunning {
					of.Pid, of.Exit = 0, enginetest.FormerExit(of.ID, 3)
				}
			}
			b.fake().AddFormer(&engine.Former{
				Sandboxes: former.Sandboxes[:1], Containers: []*engine.FormerContainer{&newer, older}, // in no order
			})
			b.script = podtest.NewScript(nil)
			b.s = b.Daemon(b.script)
			for range 3 {
				for _, id := range []string{"1", "2"} {
					_, _, err := b.s.ContainerStatus(t.Context(), formerID(id), false)
					if id == c.adopted && err != nil || id != c.adopted && !errors.Is(err, errs.NotFound) {
						t.Errorf("container %s, and %s is to be adopted: %v", id, c.adopted, err)
					}
					if got := b.fake().Signals(formerID(id)); len(got) != 0 {
						t.Errorf("container %s was ended with %v", id, got)
					}
				}
				b.restart()
			}
			if c.adopted == "1" && c.older == engine.StateRunning && c.newer == engine.StateRunning {
				// The one that was left alone is not adopted in the place of one that has ended.
				if err := b.s.StopContainer(t.Context(), formerID("1"), 10); err != nil {
					t.Error(err)
				}
				b.restart()
				if _, _, err := b.s.ContainerStatus(t.Context(), formerID("2"), false); !errors.Is(err, errs.NotFound) {
					t.Errorf("the other one, after the end of the adopted one: %v", err)
				}
			}
		})
	}
}

// A pause container does not show whether CONTAINER or POD was requested as its PID namespace, or the
// pod's DNS: a repeated request may have either. What it does show must be equal.
func TestRequestOfAnAdoptedSandbox(t *testing.T) {
	b := newBed(t, nil)
	b.script.Kill()
	b.CloseDaemon(b.s)
	former := formerPods(b.World)
	sandbox := former.Sandboxes[0]
	sandbox.Config.Linux.SecurityContext.NamespaceOptions.Pid = runtimeapi.NamespaceMode_CONTAINER
	b.fake().AddFormer(&engine.Former{Sandboxes: []*engine.FormerSandbox{sandbox}})
	b.script = podtest.NewScript(nil)
	b.s = b.Daemon(b.script)
	request := func(change func(*runtimeapi.PodSandboxConfig, *runtimeapi.NamespaceOption)) (string, error) {
		config := formerPods(b.World).Sandboxes[0].Config
		change(config, config.Linux.SecurityContext.NamespaceOptions)
		return b.s.RunSandbox(t.Context(), config, "")
	}
	for name, change := range map[string]func(*runtimeapi.PodSandboxConfig, *runtimeapi.NamespaceOption){
		"CONTAINER": func(_ *runtimeapi.PodSandboxConfig, ns *runtimeapi.NamespaceOption) {
			ns.Pid = runtimeapi.NamespaceMode_CONTAINER
		},
		"POD": func(_ *runtimeapi.PodSandboxConfig, ns *runtimeapi.NamespaceOption) {
			ns.Pid = runtimeapi.NamespaceMode_POD
		},
		"DNS": func(config *runtimeapi.PodSandboxConfig, _ *runtimeapi.NamespaceOption) {
			config.DnsConfig = &runtimeapi.DNSConfig{Servers: []string{"10.0.0.10"}}
		},
	} {
		if id, err := request(change); err != nil || id != sandbox.ID {
			t.Errorf("%s: %q, %v", name, id, err)
		}
	}
	for name, change := range map[string]func(*runtimeapi.PodSandboxConfig, *runtimeapi.NamespaceOption){
		"namespace_options.pid": func(_ *runtimeapi.PodSandboxConfig, ns *runtimeapi.NamespaceOption) {
			ns.Pid = runtimeapi.NamespaceMode_NODE
		},
		"labels": func(config *runtimeapi.PodSandboxConfig, _ *runtimeapi.NamespaceOption) {
			config.Labels = map[string]string{"other": "pod"}
		},
	} {
		_, err := request(change)
		assertKind(t, err, errs.Exists, name)
	}
	b.clear()
}
