//go:build integration

package integration

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/berthrun/berth/internal/engine/docker/translate"
	"github.com/berthrun/berth/internal/require"
	"github.com/berthrun/berth/test/harness"
	"google.golang.org/grpc/codes"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// reload gives the daemon another configuration and waits for the line in its log.
func (f *fields) reload(t *testing.T, text string, words ...string) {
	t.Helper()
	f.hangup(t, text, append(words, "configuration reloaded")...)
}

// hangup gives the daemon another configuration, which it may refuse, and waits for words in its log.
func (f *fields) hangup(t *testing.T, text string, words ...string) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(f.Dir, "berth.toml"), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	log := func() string {
		data, err := os.ReadFile(filepath.Join(f.Dir, "berth.log"))
		if err != nil {
			t.Fatal(err)
		}
		return string(data)
	}
	before := len(log())
	if err := syscall.Kill(f.DaemonPid(), syscall.SIGHUP); err != nil {
		t.Fatal(err)
	}
	for _, word := range words {
		f.Await("the log to say "+word, func() bool { return strings.Contains(log()[before:], word) })
	}
}

// burstable is a cgroup parent such as a kubelet names for a burstable pod.
func (f *fields) burstable() string {
	name := filepath.Base(f.Dir)
	if _, err := os.Stat("/run/systemd/system"); err != nil {
		return "/" + name + "/burstable"
	}
	name = strings.ReplaceAll(name, "-", "_")
	f.T.Cleanup(func() { // a kubelet stops the slices that it created; systemd created these for the test
		f.RemoveAllPods()
		harness.Systemctl(f.T, "stop", name+".slice")
	})
	return name + "-burstable.slice"
}

// TestDefaultsOfTheConfiguration: defaults that an operator sets for pods and containers. New ones
// have them right after the reload.
func TestDefaultsOfTheConfiguration(t *testing.T) {
	f := newFields(t, harness.Options{Config: "[log]\n"}, nil)
	// A running container keeps its defaults, also in execs.
	old := f.running(nil)
	device := f.node(t, "zero", 5)
	const facts = "echo $TZ,$LANG,$GOMAXPROCS; ulimit -Sn; ulimit -Hn; grep -E '^(CapInh|CapEff|Seccomp):' /proc/self/status | cut -f2; " +
		"cat /proc/sys/net/core/somaxconn /proc/sys/kernel/shmmni; test -c /dev/given && echo given || echo missing"
	had := f.says(t, facts, nil)
	f.reload(t, fmt.Sprintf(`
[defaults]
seccomp = "runtime/default"
capabilities = ["NET_ADMIN"]
env = ["TZ=UTC", "LANG=C"]
inheritable_capabilities = true
min_gomaxprocs = 3
ulimits = ["nofile=500:600"]
sysctls = ["net.core.somaxconn=321", "kernel.shmmni=123"]
devices = [%q]
[runtime]
absent_mount_sources_to_reject = [%q]
container_annotations = ["example.org/*"]
pod_annotations = ["pod.example.org/*"]
`, device+":/dev/given:r", f.Dir+"/absent"), "defaults.seccomp", "defaults.devices", "runtime.absent_mount_sources_to_reject")

	f.pod(func(c *runtimeapi.PodSandboxConfig) { c.Linux.CgroupParent = f.burstable() })
	language := func(c containerConfig) { c.Envs = []*runtimeapi.KeyValue{{Key: "LANG", Value: []byte("de")}} }
	limits, inheritable := "500 600", uint64(capNetAdmin)
	if !f.Has(harness.Inheritable) {
		inheritable = 0
	}
	if !f.Has(harness.ClampedLimits) {
		limits = strings.Join(strings.Fields(f.says(t, "ulimit -Sn; ulimit -Hn", nil)), " ")
	}
	want(t, "a new pod", f.says(t, facts, language), fmt.Sprintf("UTC,de,3 %s %016x %016x 2 321 123 given", limits, inheritable, capNetAdmin))
	want(t, "what requests CPUs", f.says(t, "echo $GOMAXPROCS", func(c containerConfig) {
		c.Linux.Resources = &runtimeapi.LinuxContainerResources{CpuShares: 4 * 1024}
	}), "8")
	want(t, "exec in an old container", f.ExecOut(old, "echo $TZ,$LANG,$GOMAXPROCS"), ",,")
	f.pod(func(c *runtimeapi.PodSandboxConfig) {
		c.Annotations = map[string]string{"pod.example.org/for": "all", "example.org/pod": "left out"}
		c.Hostname, c.Linux.SecurityContext.NamespaceOptions.Network = "", runtimeapi.NamespaceMode_NODE
		c.Linux.SecurityContext.NamespaceOptions.Ipc = runtimeapi.NamespaceMode_NODE
	})
	f.running(func(c containerConfig) { // no pod may set the host's sysctls
		containerSecurity(c).NamespaceOptions = f.config.Linux.SecurityContext.NamespaceOptions
	})
	config := f.Container("mount", "exit 0")
	config.Mounts = append(config.Mounts, &runtimeapi.Mount{HostPath: f.Dir + "/absent", ContainerPath: "/absent"})
	_, err := f.Runtime.CreateContainer(f.Ctx(), &runtimeapi.CreateContainerRequest{PodSandboxId: f.sandbox, Config: config, SandboxConfig: f.config})
	checkRefusal(t, err, codes.InvalidArgument, []string{f.Dir + "/absent", "absent_mount_sources_to_reject"})
	annotated := f.running(func(c containerConfig) {
		c.Annotations = map[string]string{"example.org/for": "hooks", "other": "kept out"}
		containerSecurity(c).NamespaceOptions = f.config.Linux.SecurityContext.NamespaceOptions
	})
	answer, err := f.Runtime.ContainerStatus(f.Ctx(), &runtimeapi.ContainerStatusRequest{ContainerId: annotated, Verbose: true})
	if err != nil {
		t.Fatal(err)
	}
	if _, spec, _ := strings.Cut(answer.Info["info"], `"runtimeSpec"`); f.Has(harness.Hooks) && (!strings.Contains(spec, `"example.org/for":"hooks"`) || strings.Contains(spec, "kept out") ||
		!strings.Contains(spec, `"pod.example.org/for":"all"`) || strings.Contains(spec, "left out")) {
		t.Errorf("the spec's annotations: %s", spec)
	}

	// The log names the key that a reload cannot change. The reload restores the other defaults.
	f.reload(t, "[network]\nmtu = 1300\n", "need a restart", "network.mtu")
	f.pod(nil)
	want(t, "after the defaults were taken back", f.says(t, facts, nil), had)
}

// TestKeysOfOperators tests keys that change all pods and are not visible in a field.
func TestKeysOfOperators(t *testing.T) {
	f := newFields(t, harness.Options{Config: `
[runtime]
max_log_line_size = 0
apparmor = "off"
selinux = "off"
[stats]
period = "1s"
pod_metrics = ["cpu", "network"]
`}, nil)
	f.try(t, "max_log_line_size", func(t *testing.T) {
		const long = 300_000 // other runtimes split it into 19
		id := f.create(fmt.Sprintf("head -c %d /dev/zero | tr '\\0' x; echo; echo short", long), nil)
		f.StartContainer(id)
		data, err := os.ReadFile(f.AwaitExit(id).LogPath)
		if err != nil {
			t.Fatal(err)
		}
		lines := strings.Split(strings.TrimSpace(string(data)), "\n")
		if len(lines) != 2 || len(lines[0]) < long || !strings.Contains(lines[0][:64], " stdout F xxx") || !strings.HasSuffix(lines[1], " F short") {
			t.Errorf("%d lines, the first of %d bytes: %.80s", len(lines), len(lines[0]), lines[0])
		}
	})
	f.try(t, "apparmor", func(t *testing.T) {
		want(t, "without a demand", f.says(t, "cat /proc/self/attr/apparmor/current 2>/dev/null | grep -v '^unconfined' || echo none", nil), "none")
		config := f.Container("demands", "exit 0")
		containerSecurity(config).Apparmor = &runtimeapi.SecurityProfile{ProfileType: runtimeapi.SecurityProfile_RuntimeDefault}
		_, err := f.Runtime.CreateContainer(f.Ctx(), &runtimeapi.CreateContainerRequest{PodSandboxId: f.sandbox, Config: config, SandboxConfig: f.config})
		checkRefusal(t, err, codes.Unimplemented, []string{"apparmor", "turned off in the configuration"})
	})
	f.try(t, "selinux", func(t *testing.T) {
		if got := f.says(t, sayLabel+" 2>/dev/null", nil); strings.Contains(got, "container_t") {
			t.Errorf("the container has the label %q", got)
		}
		label := &runtimeapi.SELinuxOption{Level: "s0:c1,c2"}
		words := []string{"selinux_options", "turned off in the configuration"}
		if reason := f.Refuses(translate.SELinuxOptions); reason != nil { // which the configuration does not decide
			words[1] = reason.Error()
		}
		config := f.Container("demands-a-label", "exit 0")
		containerSecurity(config).SelinuxOptions = label
		_, err := f.Runtime.CreateContainer(f.Ctx(), &runtimeapi.CreateContainerRequest{PodSandboxId: f.sandbox, Config: config, SandboxConfig: f.config})
		checkRefusal(t, err, codes.Unimplemented, words)
		sandbox := f.Sandbox("demands-a-label")
		sandbox.Linux.SecurityContext.SelinuxOptions = label
		_, err = f.Runtime.RunPodSandbox(f.Ctx(), &runtimeapi.RunPodSandboxRequest{Config: sandbox})
		checkRefusal(t, err, codes.Unimplemented, words)
	})
	f.try(t, "pod_metrics", func(t *testing.T) {
		answer, err := f.Runtime.ListMetricDescriptors(f.Ctx(), &runtimeapi.ListMetricDescriptorsRequest{})
		if err != nil {
			t.Fatal(err)
		}
		described := map[string]bool{}
		for _, d := range answer.Descriptors {
			described[d.Name] = true
		}
		for name, want := range map[string]bool{
			"container_cpu_usage_seconds_total": true, "container_network_receive_bytes_total": true, "container_last_seen": true,
			"container_memory_working_set_bytes": false, "container_fs_usage_bytes": false,
		} {
			if described[name] != want {
				t.Errorf("%s is described: %v", name, !want)
			}
		}
	})
	f.try(t, "period", func(t *testing.T) {
		// The default is five seconds, and a rate needs them each time. A busy machine delays one or another.
		limit := require.Patience(4 * time.Second)
		took := time.Hour
		for tries := 0; tries < 3 && took > limit; tries++ {
			busy := f.running(func(c containerConfig) { c.Command[2] = "while :; do :; done" })
			began := time.Now()
			f.Await("a rate of CPU", func() bool {
				answer, err := f.Runtime.ContainerStats(f.Ctx(), &runtimeapi.ContainerStatsRequest{ContainerId: busy})
				return err == nil && answer.Stats.GetCpu().GetUsageNanoCores().GetValue() > 0
			})
			took = time.Since(began)
			if _, err := f.Runtime.StopContainer(f.Ctx(), &runtimeapi.StopContainerRequest{ContainerId: busy}); err != nil {
				t.Fatal(err)
			}
		}
		if took > limit {
			t.Errorf("the rate was reported after %s", took)
		}
	})
}
