//go:build integration

package integration

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berthrun/berth/internal/require"
	"github.com/berthrun/berth/test/harness"
)

// TestHookDirectories: containers get the hooks of files that are there when they are created, over berth's own
// runtime and over runc. While a file is bad no container is created, and the error, berth info and the log name it.
func TestHookDirectories(t *testing.T) {
	runc := require.Binary(t, "runc")
	low, high, out := t.TempDir(), t.TempDir(), t.TempDir()
	put := func(dir, name, content string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	// The hook needs config.json in the bundle, and appends its input to a file of its name, unless its name is bad.
	script := fmt.Sprintf(`test "$1" != bad || { echo this is why; exit 7; }; cat > %[1]s/new; bundle=$(sed 's/.*"bundle":"\([^"]*\)".*/\1/' %[1]s/new); test -s "$bundle/config.json" || exit 9; cat %[1]s/new >> %[1]s/$1; echo >> %[1]s/$1`, out)
	hook := func(name, when string, stages ...string) string {
		data, err := json.Marshal(map[string]any{
			"version": "1.0.0", "hook": map[string]any{"path": "/bin/sh", "args": []string{"sh", "-c", script, "sh", name}},
			"when": json.RawMessage(when), "stages": stages,
		})
		if err != nil {
			t.Fatal(err)
		}
		return string(data)
	}
	put(low, "10-all.json", "{")
	put(high, "10-all.json", hook("all", `{"always":true}`, "createRuntime", "poststop"))
	put(low, "20-chosen.json", hook("chosen", `{"annotations":{"^example\\.com/hooked$":"^yes$"}}`, "poststart"))

	f := newFields(t, harness.Options{Config: fmt.Sprintf("[runtime]\nhooks_dirs = [%q, %q, '/no/such/directory']\npod_annotations = ['example.com/*']\n", low, high) +
		fmt.Sprintf("[handlers.runc]\nkind = \"oci\"\npath = %q\n", runc)}, nil)
	b := f.Berth
	b.NeedsPart(t, harness.Hooks)
	inputs := func(name string) (of []specs.State) {
		t.Helper()
		data, err := os.ReadFile(filepath.Join(out, name))
		if err != nil && !os.IsNotExist(err) {
			t.Fatal(err)
		}
		for line := range strings.Lines(string(data)) {
			var state specs.State
			if err := json.Unmarshal([]byte(line), &state); err != nil {
				t.Fatalf("input %q: %v", line, err)
			}
			of = append(of, state)
		}
		return of
	}
	stages := func(name, id string) (all []string) {
		for _, state := range inputs(name) {
			if state.ID == id {
				all = append(all, string(state.Status))
			}
		}
		return all
	}
	for _, handler := range []string{"", "runc"} {
		plain := runHandler(b, handler, "echo up; exec sleep 1000")
		config := b.Sandbox("chosen" + handler)
		config.Annotations = map[string]string{"example.com/hooked": "yes"}
		answer, err := b.Runtime.RunPodSandbox(b.Ctx(), &runtimeapi.RunPodSandboxRequest{Config: config, RuntimeHandler: handler})
		if err != nil {
			t.Fatal(err)
		}
		chosen := b.Create(answer.PodSandboxId, b.Container("c", "exec sleep 1000"), config)
		b.StartContainer(chosen)
		b.RemovePod(plain.Sandbox)
		b.RemovePod(answer.PodSandboxId)
		for _, id := range []string{plain.Container, chosen} {
			if got := stages("all", id); !slices.Equal(got, []string{"creating", "stopped"}) {
				t.Errorf("handler %q: the hook of all containers ran at %q", handler, got)
			}
		}
		if len(stages("chosen", plain.Container)) != 0 || len(stages("chosen", chosen)) != 1 {
			t.Errorf("handler %q: the hook by annotation ran for %+v", handler, inputs("chosen"))
		}
		if state := inputs("chosen"); state[len(state)-1].Annotations["example.com/hooked"] != "yes" {
			t.Errorf("handler %q: the hook got %+v", handler, state)
		}
	}

	// A file that becomes bad, without a reload.
	config := b.Sandbox("bad")
	sandbox := b.RunSandbox(config)
	bad := filepath.Join(high, "30-bad.json")
	put(high, "30-bad.json", hook("bad", `{"commands":["("]}`, "prestart"))
	_, err := b.Runtime.CreateContainer(b.Ctx(), &runtimeapi.CreateContainerRequest{PodSandboxId: sandbox, Config: b.Container("c", "exit 0"), SandboxConfig: config})
	for _, word := range []string{"runtime.hooks_dirs", bad, "when.commands[0]"} {
		if !strings.Contains(fmt.Sprint(err), word) {
			t.Errorf("the error does not say %q: %v", word, err)
		}
	}
	info := b.MustCLI("info", "--endpoint", "unix://"+b.Socket)
	if !strings.Contains(info, bad) || !strings.Contains(info, "when.commands[0]") {
		t.Errorf("berth info does not name the bad file: %s", info)
	}
	f.hangup(t, fmt.Sprintf("[runtime]\nhooks_dirs = [%q]\n", high), "cannot reload the configuration", "runtime.hooks_dirs: "+bad)
	// A hook that fails.
	put(high, "30-bad.json", hook("bad", `{"hasBindMounts":true}`, "createRuntime"))
	f.reload(t, fmt.Sprintf("[runtime]\nhooks_dirs = [%q]\n[handlers.runc]\nkind = \"oci\"\npath = %q\n", high, runc), "runtime.hooks_dirs")
	mounted := b.Container("mounted", "exit 0")
	mounted.Mounts = []*runtimeapi.Mount{{HostPath: out, ContainerPath: "/out"}}
	_, err = b.Runtime.CreateContainer(b.Ctx(), &runtimeapi.CreateContainerRequest{PodSandboxId: sandbox, Config: mounted, SandboxConfig: config})
	for _, word := range []string{"createRuntime hook #1", "OCI hook /bin/sh (createRuntime, " + bad + ")", "exit status 7", "this is why"} {
		if !strings.Contains(fmt.Sprint(err), word) {
			t.Errorf("the error does not say %q: %v", word, err)
		}
	}
	overRunc := b.Sandbox("bad-runc")
	answer, err := b.Runtime.RunPodSandbox(b.Ctx(), &runtimeapi.RunPodSandboxRequest{Config: overRunc, RuntimeHandler: "runc"})
	if err != nil {
		t.Fatal(err)
	}
	_, err = b.Runtime.CreateContainer(b.Ctx(), &runtimeapi.CreateContainerRequest{PodSandboxId: answer.PodSandboxId, Config: mounted, SandboxConfig: overRunc})
	for _, word := range []string{"/bin/sh (createRuntime, " + bad + ")", "this is why", `handler "runc"`} {
		if !strings.Contains(fmt.Sprint(err), word) {
			t.Errorf("the error of runc does not say %q: %v", word, err)
		}
	}
	// A hook that fails in the start.
	put(high, "30-bad.json", hook("bad", `{"hasBindMounts":true}`, "poststart"))
	late := b.Create(sandbox, mounted, config)
	_, err = b.Runtime.StartContainer(b.Ctx(), &runtimeapi.StartContainerRequest{ContainerId: late})
	for _, word := range []string{"OCI hook /bin/sh (poststart, " + bad + ")", "this is why"} {
		if !strings.Contains(fmt.Sprint(err), word) {
			t.Errorf("the error of a start does not say %q: %v", word, err)
		}
	}
	b.StartContainer(b.Create(sandbox, b.Container("c", "exit 0"), config)) // without a bind mount
}
