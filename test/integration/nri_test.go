//go:build integration

package integration

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/containerd/nri/pkg/api"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berthrun/berth/internal/nri/nritest"
	"github.com/berthrun/berth/test/harness"
)

// nriPlugin answers CreateContainer of containers whose name has an adjustment.
func nriPlugin(adjust map[string]func(*api.ContainerAdjustment)) *nritest.Plugin {
	return &nritest.Plugin{
		Name: "10-adjuster",
		OnCreate: func(_ *api.PodSandbox, c *api.Container) (*api.ContainerAdjustment, []*api.ContainerUpdate, error) {
			change := adjust[c.GetName()]
			if change == nil {
				return nil, nil, nil
			}
			a := &api.ContainerAdjustment{}
			change(a)
			return a, nil, nil
		},
	}
}

// TestNRIPlugins: what plugins adjust holds in the container, a plugin gets what exists after a
// restart of the daemon, and one that dies hinders no pod.
func TestNRIPlugins(t *testing.T) {
	b := harness.Start(t, harness.Options{})
	b.NeedsPart(t, harness.Plugins)
	b.ImportBusybox()
	socket := filepath.Join(b.State, "nri", "nri.sock")
	source := filepath.Join(b.Logs, "source")
	if err := os.WriteFile(source, []byte("from the host\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	hooked := filepath.Join(b.Logs, "hooked")
	cases := map[string]struct {
		adjust func(*api.ContainerAdjustment)
		script string
		want   string
	}{
		"device": {
			func(a *api.ContainerAdjustment) {
				a.AddDevice(&api.LinuxDevice{Path: "/dev/toy", Type: "c", Major: 1, Minor: 5, FileMode: api.FileMode(0o666)})
			},
			"head -c 3 /dev/toy | wc -c", "3",
		},
		"mount": {
			func(a *api.ContainerAdjustment) {
				a.AddMount(&api.Mount{Destination: "/injected", Type: "bind", Source: source, Options: []string{"bind", "ro"}})
			},
			"cat /injected", "from the host",
		},
		"env": {func(a *api.ContainerAdjustment) { a.AddEnv("ADDED", "yes") }, "echo $ADDED", "yes"},
		"rlimit": {
			func(a *api.ContainerAdjustment) { a.AddRlimit("RLIMIT_NOFILE", 222, 111) },
			"ulimit -Sn; ulimit -Hn", "111 222",
		},
		"hook": {
			func(a *api.ContainerAdjustment) {
				a.AddHooks(&api.Hooks{CreateRuntime: []*api.Hook{{Path: "/bin/sh", Args: []string{"sh", "-c", "echo ran >" + hooked}}}})
			},
			"echo started", "started",
		},
		"score": {
			func(a *api.ContainerAdjustment) { score := 321; a.SetLinuxOomScoreAdj(&score) },
			"cat /proc/self/oom_score_adj", "321",
		},
	}
	adjust := map[string]func(*api.ContainerAdjustment){}
	for name, c := range cases {
		adjust[name] = c.adjust
	}
	p := nriPlugin(adjust)
	p.Connect(t, socket)
	config := b.Sandbox("nri")
	sandbox := b.RunSandbox(config)
	for name, c := range cases {
		id := b.Create(sandbox, b.Container(name, c.script+"; sleep 1000"), config)
		b.StartContainer(id)
		b.Await(fmt.Sprintf("the container with the %s says %q", name, c.want), func() bool {
			lines, err := harness.LogLines(filepath.Join(config.LogDirectory, name, "0.log"))
			return err == nil && strings.Join(lines, " ") == c.want
		})
	}
	if text, err := os.ReadFile(hooked); err != nil || string(text) != "ran\n" {
		t.Errorf("the hook: %q, %v", text, err)
	}

	b.KillDaemon()
	b.StartDaemon()
	again := nriPlugin(nil)
	again.OnEvent = func(_ context.Context, event, _ string) error {
		if event == "StopContainer" {
			again.Disconnect()
		}
		return nil
	}
	again.Connect(t, socket)
	first := again.Events()[0]
	for name := range cases {
		if !strings.Contains(first, name+":CONTAINER_RUNNING") {
			t.Errorf("after the restart, the plugin does not know %s: %s", name, first)
		}
	}
	b.RemovePod(sandbox)
	if !slices.ContainsFunc(again.Events(), func(e string) bool { return strings.HasPrefix(e, "StopContainer ") }) {
		t.Errorf("the plugin got no stop: %v", again.Events())
	}
	b.RemovePod(b.RunPod("after", "sleep 1000").Sandbox)
	if info := b.MustCLI("info"); !strings.Contains(info, "10-adjuster") {
		t.Errorf("berth info does not show the plugin:\n%s", info)
	}
}

// TestNRIUpdates: updates of plugins are in the cgroup, and an adjustment that cannot hold fails the
// container and leaves nothing.
func TestNRIUpdates(t *testing.T) {
	b := harness.Start(t, harness.Options{})
	b.NeedsPart(t, harness.Plugins)
	b.ImportBusybox()
	p := nriPlugin(map[string]func(*api.ContainerAdjustment){
		"absent": func(a *api.ContainerAdjustment) {
			a.AddMount(&api.Mount{Destination: "/injected", Type: "bind", Source: "/no/such/file", Options: []string{"bind"}})
		},
		"shares": func(a *api.ContainerAdjustment) { a.SetLinuxCPUShares(2048) },
	})
	p.Connect(t, filepath.Join(b.State, "nri", "nri.sock"))
	config := b.Sandbox("nri")
	sandbox := b.RunSandbox(config)
	_, err := b.Runtime.CreateContainer(b.Ctx(), &runtimeapi.CreateContainerRequest{
		PodSandboxId: sandbox, Config: b.Container("absent", "exit 0"), SandboxConfig: config,
	})
	if err == nil || !strings.Contains(err.Error(), "/no/such/file") {
		t.Errorf("a mount whose source is absent: %v", err)
	}
	id := b.Create(sandbox, b.Container("shares", "sleep 1000"), config)
	b.StartContainer(id)
	if got := b.Status(id).GetResources().GetLinux().GetCpuShares(); got != 2048 {
		t.Errorf("the status has %d CPU shares, want 2048", got)
	}
	update := &api.ContainerUpdate{}
	update.SetContainerId(id)
	update.SetLinuxMemoryLimit(64 << 20)
	if failed, err := p.Update(update); err != nil || len(failed) > 0 {
		t.Errorf("an update: %v, %v", failed, err)
	}
	limit := b.ExecOut(id, "cat /sys/fs/cgroup/memory.max /sys/fs/cgroup/memory/memory.limit_in_bytes 2>/dev/null; true")
	if !strings.Contains(limit, fmt.Sprint(64<<20)) {
		t.Errorf("the cgroup's limit is %q, want %d", limit, 64<<20)
	}
	b.RemovePod(sandbox)
}
