//go:build integration

package integration

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/berthrun/berth/internal/engine/docker/translate"
	"github.com/berthrun/berth/test/harness"
	"github.com/berthrun/berth/test/harness/attack"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// sharedPod is a pod whose containers share a PID namespace, with a container that has the attack
// program.
type sharedPod struct {
	*harness.Berth
	config             *runtimeapi.PodSandboxConfig
	sandbox, container string
	// proc is the directory of the pod's init in the host's /proc.
	proc string
}

func runShared(t *testing.T, b *harness.Berth, name string, change func(*runtimeapi.PodSandboxConfig, *runtimeapi.ContainerConfig)) *sharedPod {
	t.Helper()
	config, container := b.Sandbox(name), b.Container("attacker", "exec sleep 100000")
	if change != nil {
		change(config, container)
	}
	config.Linux.SecurityContext.NamespaceOptions.Pid = runtimeapi.NamespaceMode_POD
	container.Linux.SecurityContext.NamespaceOptions = config.Linux.SecurityContext.NamespaceOptions
	program := attackProgram(t, b)
	container.Mounts = append(container.Mounts, &runtimeapi.Mount{HostPath: program, ContainerPath: attack.Program, Readonly: true, SelinuxRelabel: hasSELinux()})
	p := &sharedPod{Berth: b, config: config, sandbox: b.RunSandbox(config)}
	p.container = b.Create(p.sandbox, container, config)
	b.StartContainer(p.container)
	answer, err := b.Runtime.PodSandboxStatus(b.Ctx(), &runtimeapi.PodSandboxStatusRequest{PodSandboxId: p.sandbox, Verbose: true})
	if err != nil {
		t.Fatal(err)
	}
	var info struct{ Pid int }
	if err := json.Unmarshal([]byte(answer.Info["info"]), &info); err != nil || info.Pid == 0 {
		t.Fatalf("verbose status %v, %v", answer.Info, err)
	}
	p.proc = fmt.Sprint("/proc/", info.Pid)
	return p
}

// attack tries everything with a process of the container's PID namespace.
func (p *sharedPod) attack(t *testing.T, pid int) *attack.Report {
	t.Helper()
	answer, err := p.Runtime.ExecSync(p.Ctx(), &runtimeapi.ExecSyncRequest{ContainerId: p.container, Cmd: []string{attack.Program, fmt.Sprint(pid)}, Timeout: 30})
	if err != nil || answer.ExitCode != 0 {
		t.Fatalf("the attack did not run: %v, %v", answer, err)
	}
	t.Logf("%s", answer.Stdout)
	report := &attack.Report{}
	if err := json.Unmarshal(answer.Stdout, report); err != nil {
		t.Fatal(err)
	}
	return report
}

func mayTrace(_ *runtimeapi.PodSandboxConfig, container *runtimeapi.ContainerConfig) {
	container.Linux.SecurityContext.Capabilities = &runtimeapi.Capability{AddCapabilities: []string{"SYS_PTRACE"}}
}

// TestPodInitIsNoWayToTheHost: in a pod that shares its PID namespace, no container can reach the
// host through the pod's init, with or without CAP_SYS_PTRACE or a user namespace.
func TestPodInitIsNoWayToTheHost(t *testing.T) {
	b := harness.Start(t, harness.Options{})
	for name, change := range map[string]func(*runtimeapi.PodSandboxConfig, *runtimeapi.ContainerConfig){
		"plain":        nil,
		"ptrace":       mayTrace,
		"users":        inUsers(nil),
		"users-ptrace": inUsers(mayTrace),
	} {
		t.Run(name, func(t *testing.T) {
			p := runShared(t, b, name, change)
			defer b.RemovePod(p.sandbox)
			report := p.attack(t, 1)
			for what, got := range map[string]string{
				"a setting of the host": report.CorePattern, "the init's program": report.Exe,
			} {
				if got != "" {
					t.Errorf("%s: %s", what, got)
				}
			}
			if len(report.Files) > 0 {
				t.Errorf("the init has descriptors: %q", report.Files)
			}
			if report.ExeID == inodeOf(t, filepath.Join(b.Bin, "berth-supervisor")) {
				t.Error("the init's program is the host's")
			}
			if len(report.Injected) > 0 {
				t.Errorf("the init does what a tracer wants: %q", report.Injected)
			}
			if trusted := name == "ptrace"; trusted != report.Attached && (!trusted || !hasSELinux()) {
				t.Errorf("the container attached to the init: %t", report.Attached)
			} else if !trusted && (len(report.Root) > 0 || report.Memory != "" || report.ExeID != "") {
				t.Errorf("the container sees the init's root %q, memory %q or program %q", report.Root, report.Memory, report.ExeID)
			}
			slices.Sort(report.Root)
			if len(report.Root) > 0 {
				want(t, "the init's root", strings.Join(report.Root, " "), "dev pod-init proc procfs")
			}
			if report.Attached && len(report.Refused) == 0 {
				t.Error("no system call was tried")
			}
		})
	}
}

// TestPodInitServesItsPod: the init does what its pod needs, and has no more than that requires.
func TestPodInitServesItsPod(t *testing.T) {
	b := harness.Start(t, harness.Options{})
	for name, change := range map[string]func(*runtimeapi.PodSandboxConfig, *runtimeapi.ContainerConfig){"plain": nil, "users": inUsers(nil)} {
		t.Run(name, func(t *testing.T) {
			p := runShared(t, b, name, change)
			defer b.RemovePod(p.sandbox)
			wantOut(t, b, p.container, [][2]string{
				{"ps -o pid,args | grep pod-init$ | grep -v grep", "1 /pod-init pod-init"},
				{"for s in TERM INT HUP QUIT USR1 KILL STOP SEGV; do kill -$s 1; done; test -d /proc/1 && echo lives", "lives"},
				{"(sh -c 'sleep 0.1 & exit 0') & wait; until ! ps -o stat,ppid | grep -q '^Z.* 1$'; do sleep 0.05; done; echo reaped", "reaped"},
			})
			status := statusLines(t, p.proc)
			for key, value := range map[string]string{"Threads": "1", "NoNewPrivs": "1", "Seccomp": "2", "CapBnd": "0000000000000000", "State": "S (sleeping)"} {
				want(t, key, status[key], value)
			}
			group := cgroupOf(t, p.proc, "pids")
			want(t, "pids.max", readLine(t, filepath.Join(group, "pids.max")), "32")
			file, limit := "memory.limit_in_bytes", cgroupOf(t, p.proc, "memory")
			if onV2() {
				file = "memory.max"
			}
			want(t, file, readLine(t, filepath.Join(limit, file)), fmt.Sprint(32<<20))
			if !strings.Contains(group, p.sandbox) {
				t.Errorf("the init's cgroup is %s, want one of its own", group)
			}
			// The init ends with its pod. The exit of a second container does not affect it.
			second := b.Container("second", "exit 7")
			second.Linux.SecurityContext.NamespaceOptions = p.config.Linux.SecurityContext.NamespaceOptions
			id := b.Create(p.sandbox, second, p.config)
			b.StartContainer(id)
			if code := b.AwaitExit(id).ExitCode; code != 7 {
				t.Errorf("a second container's code is %d", code)
			}
			want(t, "the init", statusLines(t, p.proc)["Name"], "pod-init")
		})
	}
}

// cgroupOf returns the directory of a process's cgroup with a controller.
func cgroupOf(t *testing.T, proc, controller string) string {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(proc, "cgroup"))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(data)) {
		parts := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if onV2() && parts[1] == "" {
			return filepath.Join("/sys/fs/cgroup", parts[2])
		}
		if slices.Contains(strings.Split(parts[1], ","), controller) {
			return filepath.Join("/sys/fs/cgroup", controller, parts[2])
		}
	}
	t.Fatalf("no cgroup with %s in %s", controller, data)
	return ""
}

func readLine(t *testing.T, path string) string {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(string(data))
}

func inodeOf(t *testing.T, path string) string {
	t.Helper()
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	st := info.Sys().(*syscall.Stat_t)
	return fmt.Sprint(st.Dev, ":", st.Ino)
}

// TestContainersThatMayTraceAreNamed: the log names a container that can take over the runtime's
// helpers in its PID namespace, unless a user namespace keeps it from the host.
func TestContainersThatMayTraceAreNamed(t *testing.T) {
	b := harness.Start(t, harness.Options{})
	const warning = "CAP_SYS_PTRACE without a user namespace"
	warned := func(name string) bool {
		for line := range strings.Lines(b.LogTail()) {
			if strings.Contains(line, warning) && strings.Contains(line, "pod=default/"+name) {
				return true
			}
		}
		return false
	}
	for name, c := range map[string]struct {
		change podChange
		warns  bool
	}{
		"traces": {mayTrace, true},
		"all": {func(_ *runtimeapi.PodSandboxConfig, container *runtimeapi.ContainerConfig) {
			addCapabilities(container, "ALL")
		}, true},
		"default":    {func(*runtimeapi.PodSandboxConfig, *runtimeapi.ContainerConfig) {}, false},
		"users-only": {inUsers(mayTrace), false},
	} {
		if name == "users-only" && b.Refuses(translate.UserNamespaces) != nil {
			continue
		}
		pod := runPodWith(b, name, "sleep 1000", c.change)
		if got := warned(name); got != c.warns {
			t.Errorf("%s: warned %t, want %t", name, got, c.warns)
		}
		b.RemovePod(pod.Sandbox)
	}
}
