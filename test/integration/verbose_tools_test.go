//go:build integration

package integration

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/berthrun/berth/internal/engine/docker/translate"
	"github.com/berthrun/berth/test/harness"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// sandboxShown has the fields that tools read from crictl inspectp.
type sandboxShown struct {
	Pid                int
	NetNamespaceClosed bool
	RuntimeSpec        *struct {
		Hostname string
		Linux    struct {
			CgroupsPath string
			Namespaces  []struct{ Type, Path string }
		}
	}
	CNIResult *struct {
		Interfaces map[string]struct {
			Sandbox   string
			IPConfigs []struct{ IP string }
		}
	}
	Config struct {
		Linux struct {
			Overhead, Resources struct{ MemoryLimitInBytes string }
		}
	}
}

func inspectSandbox(t *testing.T, b *harness.Berth, sandbox string) (shown sandboxShown) {
	t.Helper()
	answer, err := b.Runtime.PodSandboxStatus(b.Ctx(), &runtimeapi.PodSandboxStatusRequest{PodSandboxId: sandbox, Verbose: true})
	if err != nil {
		t.Fatal(err)
	}
	decode(t, answer.Info, &shown)
	return shown
}

func (s sandboxShown) path(kind string) string {
	if s.RuntimeSpec == nil {
		return ""
	}
	for _, ns := range s.RuntimeSpec.Linux.Namespaces {
		if ns.Type == kind {
			return ns.Path
		}
	}
	return ""
}

// TestVerboseNamespaces: common commands find a sandbox's namespaces in verbose status, also
// without a process in it, and none once it is stopped.
func TestVerboseNamespaces(t *testing.T) {
	b := harness.Start(t, harness.Options{})
	for name, c := range map[string]struct {
		change podChange
		kinds  []string
	}{
		"plain":     {func(*runtimeapi.PodSandboxConfig, *runtimeapi.ContainerConfig) {}, []string{"network", "ipc", "uts"}},
		"users":     {inUsers(nil), []string{"network", "ipc", "uts", "user"}},
		"processes": {sharedProcesses, []string{"network", "ipc", "uts", "pid"}},
		"host": {func(config *runtimeapi.PodSandboxConfig, _ *runtimeapi.ContainerConfig) {
			config.Hostname = ""
			config.Linux.SecurityContext.NamespaceOptions = &runtimeapi.NamespaceOption{
				Network: runtimeapi.NamespaceMode_NODE, Ipc: runtimeapi.NamespaceMode_NODE, Pid: runtimeapi.NamespaceMode_NODE,
			}
		}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			if name == "users" {
				b.Needs(t, translate.UserNamespaces)
			}
			if b.Docker != nil { // whose containers have one each
				c.kinds = slices.DeleteFunc(c.kinds, func(kind string) bool { return kind == "uts" })
			}
			config, container := b.Sandbox(name), b.Container("c", "sleep 1000")
			c.change(config, container)
			if name == "host" {
				container.Linux.SecurityContext.NamespaceOptions = config.Linux.SecurityContext.NamespaceOptions
			}
			sandbox := b.RunSandbox(config)
			defer b.RemovePod(sandbox)
			empty := inspectSandbox(t, b, sandbox)
			for _, kind := range []string{"network", "ipc", "uts", "pid", "user"} {
				if want := strings.Contains(strings.Join(c.kinds, " "), kind); (empty.path(kind) != "") != want {
					t.Errorf("namespace %s: %q", kind, empty.path(kind))
				}
			}
			created := b.Create(sandbox, container, config)
			b.StartContainer(created)
			full := inspectSandbox(t, b, sandbox)
			if full.RuntimeSpec == nil || full.CNIResult == nil && name != "host" {
				t.Fatalf("info %+v", full)
			}
			if _, err := os.Stat(filepath.Join("/proc", strconv.Itoa(full.Pid))); full.Pid == 0 || err != nil || full.NetNamespaceClosed || full.RuntimeSpec.Linux.CgroupsPath == "" {
				t.Errorf("info %+v, %v", full, err)
			}
			for _, kind := range c.kinds {
				file := map[string]string{"network": "net"}[kind]
				if file == "" {
					file = kind
				}
				inside := b.ExecOut(created, "readlink /proc/self/ns/"+file)
				if got := namespaceAt(t, full.path(kind), file); got != inside {
					t.Errorf("%s at %s is %s, and the container's %s", kind, full.path(kind), got, inside)
				}
			}
			if ip := b.SandboxStatus(sandbox).Network.GetIp(); ip != "" {
				out, err := exec.Command("nsenter", "--net="+full.path("network"), "ip", "-br", "address", "show", "dev", "eth0").CombinedOutput()
				if err != nil || !strings.Contains(string(out), ip+"/") || full.CNIResult.Interfaces["eth0"].IPConfigs[0].IP != ip {
					t.Errorf("address %s, in the namespace %s, %v; cniResult %+v", ip, out, err, full.CNIResult)
				}
			}
			if _, err := b.Runtime.StopPodSandbox(b.Ctx(), &runtimeapi.StopPodSandboxRequest{PodSandboxId: sandbox}); err != nil {
				t.Fatal(err)
			}
			stopped := inspectSandbox(t, b, sandbox)
			if stopped.Pid != 0 || stopped.RuntimeSpec != nil || stopped.CNIResult != nil || stopped.NetNamespaceClosed != (full.path("network") != "") {
				t.Errorf("of a stopped sandbox %+v", stopped)
			}
		})
	}
}

func sharedProcesses(config *runtimeapi.PodSandboxConfig, container *runtimeapi.ContainerConfig) {
	config.Linux.SecurityContext.NamespaceOptions.Pid = runtimeapi.NamespaceMode_POD
	container.Linux.SecurityContext.NamespaceOptions = config.Linux.SecurityContext.NamespaceOptions
}

// namespaceAt is what readlink prints for the namespace that a path pins.
func namespaceAt(t *testing.T, path, file string) string {
	t.Helper()
	var st syscall.Stat_t
	if err := syscall.Stat(path, &st); err != nil {
		t.Errorf("%s: %v", path, err)
		return ""
	}
	return file + ":[" + strconv.Itoa(int(st.Ino)) + "]"
}

// TestVerboseAfterUpdate: the spec and the request in verbose status have the current limits, also
// after a restart.
func TestVerboseAfterUpdate(t *testing.T) {
	b := harness.Start(t, harness.Options{})
	pod := b.RunPod("updated", "sleep 1000")
	if _, err := b.Runtime.UpdateContainerResources(b.Ctx(), &runtimeapi.UpdateContainerResourcesRequest{
		ContainerId: pod.Container,
		Linux:       &runtimeapi.LinuxContainerResources{CpuPeriod: 100000, CpuQuota: 50000, CpuShares: 512, MemoryLimitInBytes: 128 << 20},
	}); err != nil {
		t.Fatal(err)
	}
	if _, err := b.Runtime.UpdatePodSandboxResources(b.Ctx(), &runtimeapi.UpdatePodSandboxResourcesRequest{
		PodSandboxId: pod.Sandbox,
		Overhead:     &runtimeapi.LinuxContainerResources{MemoryLimitInBytes: 8 << 20},
		Resources:    &runtimeapi.LinuxContainerResources{MemoryLimitInBytes: 256 << 20},
	}); err != nil {
		t.Fatal(err)
	}
	look := func(when string) {
		answer, err := b.Runtime.ContainerStatus(b.Ctx(), &runtimeapi.ContainerStatusRequest{ContainerId: pod.Container, Verbose: true})
		if err != nil {
			t.Fatal(err)
		}
		var info struct {
			Config struct {
				Linux struct {
					Resources struct{ CPUQuota, CPUShares, MemoryLimitInBytes string }
				}
			}
			RuntimeSpec struct {
				Linux struct {
					Resources struct {
						Devices []struct{ Access string }
						CPU     struct {
							Quota  int64
							Shares uint64
						}
						Memory struct{ Limit int64 }
					}
				}
			}
		}
		decode(t, answer.Info, &info)
		if c := info.Config.Linux.Resources; c.CPUQuota != "50000" || c.CPUShares != "512" || c.MemoryLimitInBytes != "134217728" {
			t.Errorf("%s: the request has %+v", when, c)
		}
		if s := info.RuntimeSpec.Linux.Resources; s.CPU.Quota != 50000 || s.CPU.Shares != 512 || s.Memory.Limit != 128<<20 || len(s.Devices) == 0 && b.Docker == nil {
			t.Errorf("%s: the spec has %+v", when, s)
		}
		if s := inspectSandbox(t, b, pod.Sandbox).Config.Linux; s.Overhead.MemoryLimitInBytes != "8388608" || s.Resources.MemoryLimitInBytes != "268435456" {
			t.Errorf("%s: the sandbox's request has %+v", when, s)
		}
	}
	look("after the update")
	b.StopDaemon()
	b.StartDaemon()
	look("after a restart")
	b.RemovePod(pod.Sandbox)
}

// TestVerboseHidesSecrets: no verbose info, printed configuration or log has values of
// environments, until an operator enables them.
func TestVerboseHidesSecrets(t *testing.T) {
	const kept, given = "kept-in-the-configuration", "given-by-the-pod"
	config := "[defaults]\nenv = ['TOKEN=" + kept + "']\n"
	b := harness.Start(t, harness.Options{Config: config})
	file := filepath.Join(b.Dir, "berth.toml")
	sandboxConfig, container := b.Sandbox("secrets"), b.Container("c", "sleep 1000")
	container.Envs = []*runtimeapi.KeyValue{{Key: "PASSWORD", Value: []byte(given)}}
	sandbox := b.RunSandbox(sandboxConfig)
	created := b.Create(sandbox, container, sandboxConfig)
	b.StartContainer(created)
	if got := b.ExecOut(created, "echo $TOKEN $PASSWORD"); got != kept+" "+given {
		t.Errorf("the environment has %q", got)
	}
	shown := func() string {
		status, err := b.Runtime.Status(b.Ctx(), &runtimeapi.StatusRequest{Verbose: true})
		if err != nil {
			t.Fatal(err)
		}
		answer, err := b.Runtime.ContainerStatus(b.Ctx(), &runtimeapi.ContainerStatusRequest{ContainerId: created, Verbose: true})
		if err != nil {
			t.Fatal(err)
		}
		pod, err := b.Runtime.PodSandboxStatus(b.Ctx(), &runtimeapi.PodSandboxStatusRequest{PodSandboxId: sandbox, Verbose: true})
		if err != nil {
			t.Fatal(err)
		}
		var all strings.Builder
		for _, info := range []map[string]string{status.Info, answer.Info, pod.Info} {
			for _, text := range info {
				all.WriteString(text)
			}
		}
		return all.String() + b.MustCLI("info") + b.MustCLI("info", "-o", "json") + b.MustCLI("pod", "inspect", sandbox)
	}
	hidden := shown() + b.MustCLI("config", "dump", "--config", file)
	for _, secret := range []string{kept, given} {
		if strings.Contains(hidden, secret) {
			t.Errorf("%q is shown", secret)
		}
	}
	for _, name := range []string{"TOKEN=[hidden]", "PASSWORD=[hidden]"} {
		if !strings.Contains(hidden, name) {
			t.Errorf("%s is not shown", name)
		}
	}
	if dumped := b.MustCLI("config", "dump", "--config", file, "--show-secrets"); !strings.Contains(dumped, kept) {
		t.Error("dump --show-secrets hides them")
	}
	if err := os.WriteFile(file, []byte(config+"[debug]\nshow_secrets = true\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Kill(b.DaemonPid(), syscall.SIGHUP); err != nil {
		t.Fatal(err)
	}
	b.Await("the configuration to be reloaded", func() bool { return strings.Contains(b.LogTail(), "configuration reloaded") })
	text := shown()
	for _, secret := range []string{kept, "PASSWORD=" + given} {
		if !strings.Contains(text, secret) {
			t.Errorf("%q is not shown", secret)
		}
	}
	b.RemovePod(sandbox)
	log, err := os.ReadFile(filepath.Join(b.Dir, "berth.log"))
	if err != nil || strings.Contains(string(log), kept) || strings.Contains(string(log), given) {
		t.Errorf("the log has a secret, or: %v", err)
	}
}
