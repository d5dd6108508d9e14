//go:build integration && e2e

package integration

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berthrun/berth/internal/require"
	"github.com/berthrun/berth/test/harness"
)

// hookInjector runs the example plugin with a directory of hooks of its own in the place of the host's.
const hookInjector = `#!/bin/sh
exec unshare -m sh -c 'mount -t tmpfs none %[1]s && mkdir %[1]s/upper %[1]s/work &&
mount -t overlay none -o lowerdir=/etc,upperdir=%[1]s/upper,workdir=%[1]s/work /etc &&
mkdir -p /etc/containers/oci/hooks.d && cp %[2]s /etc/containers/oci/hooks.d/ && exec %[3]s -disableWatch "$@"' sh "$@"
`

// TestNRIExamplePlugins: the example plugins of NRI's repository, which NRI_PLUGINS has as programs, do with berth
// what they are for, and again after the death of the daemon, which starts them.
func TestNRIExamplePlugins(t *testing.T) {
	built := require.Given(t, "NRI_PLUGINS", "directory with device-injector, hook-injector, ulimit-adjuster, logger and template of github.com/containerd/nri")
	dir := t.TempDir()
	file := func(name, text string, mode os.FileMode) string {
		t.Helper()
		path := filepath.Join(dir, name)
		err := os.MkdirAll(filepath.Dir(path), 0o755)
		if err == nil {
			err = os.WriteFile(path, []byte(text), mode)
		}
		if err != nil {
			t.Fatal(err)
		}
		return path
	}
	for _, name := range []string{"10-device-injector", "20-ulimit-adjuster", "30-logger", "40-template"} {
		file("plugins/"+name, fmt.Sprintf("#!/bin/sh\nexec %s/%s\n", built, name[3:]), 0o755)
	}
	hooked := filepath.Join(dir, "hooked")
	hook := file("hook.json", fmt.Sprintf(`{"version":"1.0.0","hook":{"path":"/bin/sh","args":["sh","-c","echo ran >> %s"]},"when":{"annotations":{"^hooked$":"yes"}},"stages":["createRuntime"]}`, hooked), 0o644)
	if err := os.Mkdir(filepath.Join(dir, "etc"), 0o755); err != nil {
		t.Fatal(err)
	}
	file("plugins/50-hook-injector", fmt.Sprintf(hookInjector, filepath.Join(dir, "etc"), hook, filepath.Join(built, "hook-injector")), 0o755)
	logged := filepath.Join(dir, "logger.log")
	file("conf/logger.conf", fmt.Sprintf("logFile: %s\nevents: [all]\n", logged), 0o644)
	file("cdi/toy.json", `{"cdiVersion":"0.6.0","kind":"example.org/toy","devices":[{"name":"one","containerEdits":{"env":["TOY=one"],"deviceNodes":[{"path":"/dev/toy","hostPath":"/dev/null"}]}}]}`, 0o644)

	b := harness.Start(t, harness.Options{
		Config: fmt.Sprintf("[nri]\nplugin_dir = '%[1]s/plugins'\nplugin_config_dir = '%[1]s/conf'\nplugin_request_timeout = %[2]q\n[runtime]\ncdi_spec_dirs = ['%[1]s/cdi']\n",
			dir, require.Patience(10*time.Second)),
		CDIDirs: []string{filepath.Join(dir, "cdi")},
	})
	b.NeedsPart(t, harness.Plugins)
	source := file("source", "from the host\n", 0o644)
	check := func(name string) string {
		t.Helper()
		config := b.Sandbox(name)
		config.Annotations = map[string]string{
			"devices.noderesource.dev/container.c":     "- {path: /dev/injected, type: c, major: 1, minor: 5, file_mode: 438}",
			"mounts.noderesource.dev/container.c":      fmt.Sprintf("- {source: %s, destination: /injected, type: bind, options: [bind, ro]}", source),
			"cdi-devices.noderesource.dev/container.c": "- example.org/toy=one",
			"ulimits.noderesource.dev/container.c":     "- {type: nofile, soft: 111, hard: 222}",
			"hooked":                                   "yes",
		}
		sandbox := b.RunSandbox(config)
		id := b.Create(sandbox, b.Container("c", "sleep 1000"), config)
		b.StartContainer(id)
		for script, want := range map[string]string{
			"head -c 3 /dev/injected | wc -c":         "3",
			"cat /injected":                           "from the host",
			"echo $TOY; echo > /dev/toy && echo null": "one\nnull",
			"ulimit -Sn; ulimit -Hn":                  "111\n222",
		} {
			if got := b.ExecOut(id, script); got != want {
				t.Errorf("%s: %q in the container gives %q, want %q", name, script, got, want)
			}
		}
		if info := b.MustCLI("info", "--endpoint", "unix://"+b.Socket); !containsAll(info, "10-device-injector", "20-ulimit-adjuster", "30-logger", "40-template", "50-hook-injector") || strings.Contains(info, "lastError") {
			t.Errorf("berth info shows plugins with faults, or not all:\n%s", info)
		}
		return sandbox
	}
	first := check("first")
	b.KillDaemon()
	b.StartDaemon()
	second := check("second")
	for _, each := range []string{first, second} {
		b.RemovePod(each)
	}
	if text, err := os.ReadFile(hooked); err != nil || string(text) != "ran\nran\n" {
		t.Errorf("the hooks of two containers: %q, %v", text, err)
	}
	text, err := os.ReadFile(logged)
	if err != nil || !containsAll(string(text), "Synchronize", "RunPodSandbox", "CreateContainer", "StopContainer", "RemovePodSandbox") {
		t.Errorf("the logger's log: %v\n%.4000s", err, text)
	}
	// An annotation that the plugin cannot read fails the container, with the plugin's name.
	config := b.Sandbox("bad")
	config.Annotations = map[string]string{"ulimits.noderesource.dev/container.c": "- {type: luck, soft: 1, hard: 1}"}
	sandbox := b.RunSandbox(config)
	if _, err := b.Runtime.CreateContainer(b.Ctx(), &runtimeapi.CreateContainerRequest{PodSandboxId: sandbox, Config: b.Container("c", "exit 0"), SandboxConfig: config}); err == nil || !containsAll(err.Error(), `NRI plugin "20-ulimit-adjuster" refused CreateContainer`, "luck") {
		t.Errorf("an annotation without a meaning: %v", err)
	}
	b.RemovePod(sandbox)
}

func containsAll(text string, parts ...string) bool {
	for _, part := range parts {
		if !strings.Contains(text, part) {
			return false
		}
	}
	return true
}
