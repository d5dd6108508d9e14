//go:build integration

package integration

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berthrun/berth/test/harness"
)

// TestSettingsOfHandlers: pods of a handler have its settings, and pods of others do not. A file that is missing fails
// the pods of its handler alone.
func TestSettingsOfHandlers(t *testing.T) {
	dir := t.TempDir()
	put := func(name, content string) string {
		t.Helper()
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
		return path
	}
	base := put("base.json", `{"process":{"env":["BASE=from the base"],"rlimits":[{"type":"RLIMIT_NOFILE","hard":78,"soft":77}],"capabilities":{"bounding":["CAP_CHOWN"]}},
		"mounts":[{"destination":"/base","type":"tmpfs","source":"tmpfs"}]}`)
	profile := put("profile.json", `{"defaultAction":"SCMP_ACT_ALLOW","syscalls":[{"names":["mkdir","mkdirat"],"action":"SCMP_ACT_ERRNO"}]}`)
	ran := filepath.Join(dir, "ran")
	put("hooks/x.json", fmt.Sprintf(`{"version":"1.0.0","hook":{"path":"/bin/sh","args":["sh","-c","cat >> %s"]},"when":{"always":true},"stages":["poststart"]}`, ran))
	gone := filepath.Join(dir, "gone.json")
	config := fmt.Sprintf(`[handlers.based]
kind = "builtin"
base_runtime_spec = %q
[handlers.other]
kind = "builtin"
seccomp_profile = %q
hooks_dirs = [%q]
[handlers.gone]
kind = "builtin"
base_runtime_spec = %q
[handlers.cgroups]
kind = "builtin"
cgroup_writable = true
`, base, profile, filepath.Join(dir, "hooks"), gone)
	f := newFields(t, harness.Options{Config: config}, nil)
	b := f.Berth
	b.NeedsPart(t, harness.Supervisors)
	const look = `echo "$BASE,$(ulimit -n),$(ulimit -Hn),$(grep -c ' /base ' /proc/mounts),$(grep CapEff /proc/self/status | tr -d '\t')"; mkdir /tmp/made 2>/dev/null && echo made || echo refused`
	run := func(handler string) []string {
		t.Helper()
		sandbox := b.Sandbox("settings" + handler)
		answer, err := b.Runtime.RunPodSandbox(b.Ctx(), &runtimeapi.RunPodSandboxRequest{Config: sandbox, RuntimeHandler: handler})
		if err != nil {
			t.Fatalf("handler %q: %v", handler, err)
		}
		container := b.Container("c", look)
		container.Linux.SecurityContext.Seccomp = &runtimeapi.SecurityProfile{ProfileType: runtimeapi.SecurityProfile_RuntimeDefault}
		id := b.Create(answer.PodSandboxId, container, sandbox)
		b.StartContainer(id)
		b.AwaitExit(id)
		lines, err := harness.LogLines(filepath.Join(sandbox.LogDirectory, "c", "0.log"))
		if err != nil {
			t.Fatal(err)
		}
		return lines
	}
	for handler, want := range map[string][]string{
		"":      {",1024,", "made"},
		"based": {"from the base,77,78,1,CapEff:0000000000000001", "made"},
		"other": {",1024,", "refused"},
	} {
		got := run(handler)
		mounted := handler == "based"
		if len(got) != 2 || !strings.Contains(got[0], want[0]) || strings.Contains(got[0], ",0,CapEff") == mounted || !strings.HasSuffix(got[1], want[1]) {
			t.Errorf("handler %q: %q, want %q", handler, got, want)
		}
		var state specs.State
		hooked := false
		if data, err := os.ReadFile(ran); err == nil {
			hooked = true
			if err := json.Unmarshal(data, &state); err != nil {
				t.Errorf("the hook got %s: %v", data, err)
			}
			if err := os.Remove(ran); err != nil {
				t.Fatal(err)
			}
		}
		if hooked != (handler == "other") {
			t.Errorf("handler %q: the hook has run: %v (%+v)", handler, hooked, state)
		}
	}
	_, err := b.Runtime.RunPodSandbox(b.Ctx(), &runtimeapi.RunPodSandboxRequest{Config: b.Sandbox("gone"), RuntimeHandler: "gone"})
	for _, word := range []string{`handler "gone"`, "base_runtime_spec", gone} {
		if !strings.Contains(fmt.Sprint(err), word) {
			t.Errorf("the error does not say %q: %v", word, err)
		}
	}
	info := b.MustCLI("info", "--endpoint", "unix://"+b.Socket)
	if !strings.Contains(info, gone) {
		t.Errorf("berth info does not name the missing file: %s", info)
	}
	sandbox := b.Sandbox("cgroups")
	answer, err := b.Runtime.RunPodSandbox(b.Ctx(), &runtimeapi.RunPodSandboxRequest{Config: sandbox, RuntimeHandler: "cgroups"})
	if _, statErr := os.Stat("/sys/fs/cgroup/cgroup.controllers"); statErr != nil {
		if !strings.Contains(fmt.Sprint(err), `handler "cgroups": cgroup_writable needs a host with cgroup v2 alone`) || !strings.Contains(info, "cgroup_writable needs") {
			t.Errorf("without cgroup v2: %v", err)
		}
		return
	}
	if err != nil {
		t.Fatal(err)
	}
	id := b.Create(answer.PodSandboxId, b.Container("c", "mkdir /sys/fs/cgroup/below && exit 5"), sandbox)
	b.StartContainer(id)
	if s := b.AwaitExit(id); s.ExitCode != 5 {
		t.Errorf("a container cannot make a cgroup below its own: %v", s)
	}
}

// TestUntrustedWorkload: the annotation by which containerd once selected a runtime is refused.
func TestUntrustedWorkload(t *testing.T) {
	b := harness.Start(t, harness.Options{})
	config := b.Sandbox("untrusted")
	config.Annotations = map[string]string{"io.kubernetes.cri.untrusted-workload": "true"}
	_, err := b.Runtime.RunPodSandbox(b.Ctx(), &runtimeapi.RunPodSandboxRequest{Config: config})
	if !strings.Contains(fmt.Sprint(err), "untrusted-workload") || !strings.Contains(fmt.Sprint(err), "RuntimeClass") {
		t.Errorf("error %v", err)
	}
}

// TestClassesOfBlockIO: a pod chooses a class by annotation, and gets its limits. A class that does not exist, and one
// of RDT on a host without, are refused by the annotation, or ignored where the configuration says so.
func TestClassesOfBlockIO(t *testing.T) {
	dir := t.TempDir()
	node, classes := filepath.Join(dir, "disk"), filepath.Join(dir, "blockio.yaml")
	if err := unix.Mknod(node, unix.S_IFBLK|0o600, int(unix.Mkdev(7, 0))); err != nil { // a loop device: the kernel must know it
		t.Fatal(err)
	}
	if err := os.WriteFile(classes, []byte("Classes:\n  slow:\n  - Devices: ["+node+"]\n    ThrottleReadBps: 5M\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	f := newFields(t, harness.Options{Config: fmt.Sprintf("[runtime]\nblockio_config_file = %q\n", classes)}, nil)
	b := f.Berth
	b.NeedsPart(t, harness.Supervisors)
	create := func(key, value string) (*runtimeapi.CreateContainerResponse, error) {
		t.Helper()
		config := b.Sandbox("classes")
		config.Metadata.Attempt++
		config.Annotations = map[string]string{key: value}
		sandbox := b.RunSandbox(config)
		defer b.RemovePod(sandbox)
		answer, err := b.Runtime.CreateContainer(b.Ctx(), &runtimeapi.CreateContainerRequest{PodSandboxId: sandbox, Config: b.Container("c", "exit 0"), SandboxConfig: config})
		if err != nil {
			return nil, err
		}
		verbose, err := b.Runtime.ContainerStatus(b.Ctx(), &runtimeapi.ContainerStatusRequest{ContainerId: answer.ContainerId, Verbose: true})
		if err != nil {
			t.Fatal(err)
		}
		var info struct{ RuntimeSpec specs.Spec }
		decode(t, verbose.Info, &info)
		class := info.RuntimeSpec.Linux.Resources.BlockIO
		if chosen := strings.HasPrefix(key, "blockio"); chosen != (class != nil && len(class.ThrottleReadBpsDevice) == 1 && class.ThrottleReadBpsDevice[0].Rate == 5_000_000) {
			t.Errorf("%s=%s: block IO %+v", key, value, class)
		}
		return answer, nil
	}
	if _, err := create("blockio.resources.beta.kubernetes.io/container.c", "slow"); err != nil {
		t.Error(err)
	}
	_, err := create("blockio.resources.beta.kubernetes.io/pod", "fast")
	for _, word := range []string{`sandbox_config.annotations["blockio.resources.beta.kubernetes.io/pod"]`, `"fast"`, "slow"} {
		if !strings.Contains(fmt.Sprint(err), word) {
			t.Errorf("the error does not say %q: %v", word, err)
		}
	}
	if _, statErr := os.Stat("/sys/fs/resctrl/schemata"); statErr != nil {
		const key = "rdt.resources.beta.kubernetes.io/pod"
		if _, err := create(key, "gold"); !strings.Contains(fmt.Sprint(err), key) || !strings.Contains(fmt.Sprint(err), "resctrl is not mounted") {
			t.Errorf("without RDT: %v", err)
		}
		f.reload(t, "[runtime]\nignore_rdt_not_enabled_errors = true\n", "runtime.ignore_rdt_not_enabled_errors")
		if _, err := create(key, "gold"); err != nil {
			t.Errorf("with RDT ignored: %v", err)
		}
		if log := b.LogTail(); !strings.Contains(log, "ignoring a class that a pod chooses") {
			t.Errorf("the log does not name the class: %s", log)
		}
	}
}
