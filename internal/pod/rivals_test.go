package pod_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/pod/podtest"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// rewrite changes a record on disk; no daemon runs.
func (b *bed) rewrite(dir, id string, change func(record, config map[string]any)) {
	b.Helper()
	path := filepath.Join(b.StateDir, dir, id+".json")
	data, err := os.ReadFile(path)
	if err != nil {
		b.Fatal(err)
	}
	var file struct {
		Version int            `json:"version"`
		ID      string         `json:"id"`
		Record  map[string]any `json:"record"`
	}
	decoder := json.NewDecoder(strings.NewReader(string(data)))
	decoder.UseNumber()
	if err := decoder.Decode(&file); err != nil {
		b.Fatal(err)
	}
	config, ok := file.Record["config"].(map[string]any)
	if !ok {
		b.Fatalf("the record has no config: %s", data)
	}
	change(file.Record, config)
	if data, err = json.Marshal(file); err != nil {
		b.Fatal(err)
	}
	if err := os.WriteFile(path, data, 0o600); err != nil {
		b.Fatal(err)
	}
}

// warned returns the warnings of `berth info`.
func (b *bed) warned() string {
	b.Helper()
	info, err := b.s.EngineInfo(b.Context())
	if err != nil {
		b.Fatal(err)
	}
	return strings.Join(info.Warnings, "\n")
}

// rivals creates two sandboxes whose records have the same name, and restarts the daemon.
func (b *bed) rivals() (older, newer, main string) {
	b.Helper()
	older, newer = b.mustRun(b.SandboxConfig("was-web")), b.mustRun(b.SandboxConfig("web"))
	main = b.mustStart(older, "main", b.Programs.Sleep)
	b.script.Kill()
	b.CloseDaemon(b.s)
	b.rewrite("sandboxes", older, func(_, config map[string]any) {
		config["metadata"] = map[string]any{"name": "web", "namespace": "default", "uid": "uid-web"}
	})
	return older, newer, main
}

// Of two sandboxes with the same name the newer READY one keeps it. The other is stopped, and can
// be removed by its id. The daemon starts with both.
func TestSandboxesOfOneName(t *testing.T) {
	b := newBed(t, nil)
	older, newer, main := b.rivals()
	b.restart()
	podtest.Eventually(t, "the older one is stopped", func() bool { return b.listed()[older] == notReady && b.status(main).GetState() == exited })
	b.assertListed(map[string]runtimeapi.PodSandboxState{older: notReady, newer: ready})
	if got := b.warned(); !strings.Contains(got, older) || !strings.Contains(got, newer) || !strings.Contains(got, "default/web") {
		t.Errorf("the warnings are %q, want one that names both sandboxes", got)
	}
	if again := b.mustRun(b.SandboxConfig("web")); again != newer {
		t.Errorf("the name leads to %s, want %s", again, newer)
	}
	for range 5 { // each start makes the same decision
		b.restart()
		if again := b.mustRun(b.SandboxConfig("web")); again != newer {
			t.Errorf("the name leads to %s, want %s", again, newer)
		}
	}
	if err := b.s.StopSandbox(t.Context(), older); err != nil {
		t.Error(err)
	}
	if err := b.s.RemoveSandbox(t.Context(), older); err != nil {
		t.Error(err)
	}
	b.assertListed(map[string]runtimeapi.PodSandboxState{newer: ready})
	if got := b.warned(); got != "" {
		t.Errorf("a sandbox that is gone is warned of: %q", got)
	}
	b.clear()
}

// A request by id reaches the sandbox with that id, even while a job runs for another one with the
// same name.
func TestStopOfOneOfTwoSandboxesOfOneName(t *testing.T) {
	b := newBed(t, nil)
	older, newer, _ := b.rivals()
	script := podtest.NewScript(nil)
	hang := script.HangAt("before network.Detach", false)
	b.script, b.s = script, b.Daemon(script)
	<-hang.Reached
	stopped := make(chan error, 1)
	go func() { stopped <- b.s.StopSandbox(t.Context(), newer) }()
	podtest.Eventually(t, "both are worked on", func() bool { return len(b.s.Jobs()) > 1 })
	hang.Release()
	select {
	case err := <-stopped:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(30 * time.Second):
		t.Fatal("the stop does not end")
	}
	b.assertListed(map[string]runtimeapi.PodSandboxState{older: notReady, newer: notReady})
	b.clear()
}

// Of two containers with the same name the newer running one keeps it.
func TestContainersOfOneName(t *testing.T) {
	b := newBed(t, nil)
	sandbox := b.mustRun(b.SandboxConfig("web"))
	older, waiting := b.mustStart(sandbox, "was-main", b.Programs.Sleep), b.mustCreate(sandbox, "never", b.Programs.Sleep)
	newer := b.mustStart(sandbox, "main", b.Programs.Sleep)
	b.script.Kill()
	b.CloseDaemon(b.s)
	for _, id := range []string{older, waiting} {
		b.rewrite("containers", id, func(_, config map[string]any) { config["metadata"] = map[string]any{"name": "main"} })
	}
	b.restart()
	podtest.Eventually(t, "the older one is stopped, and the one that never ran is gone", func() bool {
		_, _, err := b.s.ContainerStatus(t.Context(), waiting, false)
		return b.status(older).GetState() == exited && err != nil
	})
	if got := b.status(newer).GetState(); got != running {
		t.Errorf("the newer one is %v", got)
	}
	if got := b.warned(); !strings.Contains(got, older) || !strings.Contains(got, newer) {
		t.Errorf("the warnings are %q, want one that names both containers", got)
	}
	_, err := b.s.CreateContainer(t.Context(), sandbox, b.ContainerConfig("main", b.Programs.Sleep))
	assertKind(t, err, errs.Exists, newer)
	if err := b.s.RemoveContainer(t.Context(), older); err != nil {
		t.Error(err)
	}
	if got := b.warned(); got != "" {
		t.Errorf("a container that is gone is warned of: %q", got)
	}
	b.clear()
}
