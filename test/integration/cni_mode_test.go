//go:build integration

package integration

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/berthrun/berth/internal/pod/job"
	"github.com/berthrun/berth/internal/require"
	"github.com/berthrun/berth/test/harness"
	"google.golang.org/grpc/codes"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// fakeCNI is the configuration of a daemon whose one CNI plugin is a script. The script has the
// commands' variables, and has read its input.
func fakeCNI(t *testing.T, script string) harness.Options {
	t.Helper()
	dir := t.TempDir()
	conf, bin := filepath.Join(dir, "net.d"), filepath.Join(dir, "bin")
	for _, d := range []string{conf, bin} {
		if err := os.Mkdir(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for file, text := range map[string]string{
		filepath.Join(conf, "10-fake.conflist"): `{"cniVersion":"1.0.0","name":"fake","plugins":[{"type":"fake"}]}`,
		filepath.Join(bin, "fake"): "#!/bin/sh\ncat >/dev/null\n" +
			`test "$CNI_COMMAND" = VERSION && echo '{"cniVersion":"1.0.0","supportedVersions":["1.0.0"]}'` + "\n" + script + "\n",
	} {
		if err := os.WriteFile(file, []byte(text), 0o755); err != nil { //nolint:gosec // a program
			t.Fatal(err)
		}
	}
	return harness.Options{
		Args:   []string{"--network", "cni"},
		Config: fmt.Sprintf("[network]\nconf_dir = %q\nbin_dirs = [%q]\n", conf, bin),
	}
}

const fakeResult = `{"cniVersion":"1.0.0","interfaces":[{"name":"eth0","sandbox":"'$CNI_NETNS'"}],"ips":[{"address":"10.77.0.5/24","interface":0}],"dns":{}}`

// TestVerboseInfoOfNetworks: the verbose info of a sandbox has the plugins' results, where tools
// look for them. The built-in network has no plugins; its own result is there.
func TestVerboseInfoOfNetworks(t *testing.T) {
	type shown struct {
		CNIResult *struct {
			Interfaces map[string]struct {
				Sandbox   string
				IPConfigs []struct{ IP, Gateway string }
			}
		}
		Network struct {
			IPs []string
			CNI struct{ IPs []struct{ Address string } }
		}
		Engine struct{ NetNS string }
	}
	look := func(t *testing.T, opts harness.Options) (info shown, ip string) {
		opts.NoImages = true
		b := harness.Start(t, opts)
		sandbox := b.RunSandbox(b.Sandbox("web"))
		resp, err := b.Runtime.PodSandboxStatus(b.Ctx(), &runtimeapi.PodSandboxStatusRequest{PodSandboxId: sandbox, Verbose: true})
		if err != nil {
			t.Fatal(err)
		}
		decode(t, resp.Info, &info)
		if len(info.Network.IPs) == 0 || info.Engine.NetNS == "" {
			t.Errorf("info %+v of %s", info, resp.Info["info"])
		}
		return info, resp.Status.Network.GetIp()
	}
	t.Run("cni", func(t *testing.T) {
		info, ip := look(t, fakeCNI(t, `test "$CNI_COMMAND" = ADD && echo '`+fakeResult+`'; exit 0`))
		result := info.CNIResult
		if result == nil || len(result.Interfaces) != 1 || result.Interfaces["eth0"].Sandbox != info.Engine.NetNS ||
			len(result.Interfaces["eth0"].IPConfigs) != 1 || result.Interfaces["eth0"].IPConfigs[0].IP != "10.77.0.5" || ip != "10.77.0.5" ||
			len(info.Network.CNI.IPs) != 1 || info.Network.CNI.IPs[0].Address != "10.77.0.5/24" {
			t.Errorf("CNI result %+v of a pod with the address %s in %s", result, ip, info.Engine.NetNS)
		}
	})
	t.Run("builtin", func(t *testing.T) {
		info, ip := look(t, harness.Options{})
		if info.CNIResult == nil || info.CNIResult.Interfaces["eth0"].Sandbox != info.Engine.NetNS ||
			len(info.CNIResult.Interfaces["eth0"].IPConfigs) != len(info.Network.IPs) || info.CNIResult.Interfaces["eth0"].IPConfigs[0].IP != ip ||
			!strings.HasPrefix(strings.Join(info.Network.IPs, " "), ip) || ip == "" {
			t.Errorf("info %+v of a pod with the address %s", info, ip)
		}
	})
}

// TestRPCVerboseStatusOfCNI: verbose status has the configuration in use, as with containerd, and
// the errors of invalid files.
func TestRPCVerboseStatusOfCNI(t *testing.T) {
	opts := fakeCNI(t, "exit 0")
	opts.NoImages = true
	b := harness.Start(t, opts)
	status := func() (networks []string, load string) {
		t.Helper()
		info := verboseStatus(t, b)
		var config struct {
			PluginDirs    []string
			PluginConfDir string
			Networks      []struct {
				Config struct {
					Name, CNIVersion string
					Plugins          []struct {
						Network struct{ Type string }
						Source  string
					}
				}
				IFName string
			}
		}
		if err := json.Unmarshal([]byte(info["cniconfig"]), &config); err != nil {
			t.Fatalf("cniconfig %q: %v", info["cniconfig"], err)
		}
		if len(config.PluginDirs) != 1 || !strings.HasSuffix(config.PluginConfDir, "net.d") || info["lastCNILoadStatus.default"] != info["lastCNILoadStatus"] {
			t.Errorf("status %v", info)
		}
		for _, n := range config.Networks {
			if len(n.Config.Plugins) != 1 || n.Config.Plugins[0].Network.Type != "fake" || n.Config.Plugins[0].Source == "" || n.IFName != "eth0" || n.Config.CNIVersion != "1.0.0" {
				t.Errorf("network %+v", n)
			}
			networks = append(networks, n.Config.Name)
		}
		return networks, info["lastCNILoadStatus"]
	}
	networks, load := status()
	if !slices.Equal(networks, []string{"fake"}) || load != "OK" {
		t.Errorf("networks %q, %q", networks, load)
	}
	_, rest, _ := strings.Cut(opts.Config, "conf_dir = \"")
	dir, _, _ := strings.Cut(rest, "\"")
	broken := filepath.Join(dir, "05-broken.conflist")
	if err := os.WriteFile(broken, []byte(`{"name":`), 0o600); err != nil {
		t.Fatal(err)
	}
	if networks, load := status(); !slices.Equal(networks, []string{"fake"}) || !strings.Contains(load, broken) {
		t.Errorf("beside a broken one: networks %q, %q", networks, load)
	}
	inUse := filepath.Join(dir, "10-fake.conflist")
	if err := os.WriteFile(inUse, []byte("{\n\"name\": nil"), 0o600); err != nil {
		t.Fatal(err)
	}
	for range 2 { // also after a restart
		if networks, load := status(); !slices.Equal(networks, []string{"fake"}) || !strings.Contains(load, inUse+":2:10") {
			t.Errorf("with its own file broken: networks %q, %q", networks, load)
		}
		answer, err := b.Runtime.Status(t.Context(), &runtimeapi.StatusRequest{})
		if err != nil {
			t.Fatal(err)
		}
		if network := answer.Status.Conditions[1]; !network.Status || !strings.Contains(network.Message, inUse+":2:10") {
			t.Errorf("with its own file broken: %v", network)
		}
		b.StopDaemon()
		b.StartDaemon()
	}
	if err := os.Remove(inUse); err != nil {
		t.Fatal(err)
	}
	if networks, load := status(); len(networks) != 0 || !strings.Contains(load, "cni config not initialized") || !strings.Contains(load, broken) {
		t.Errorf("with a broken one alone: networks %q, %q", networks, load)
	}
}

// TestHungPluginIsReported: the log and the jobs name a plugin that does not return. The same
// request gets the result once the plugin returns.
func TestHungPluginIsReported(t *testing.T) {
	gate := filepath.Join(t.TempDir(), "gate")
	opts := fakeCNI(t, `test "$CNI_COMMAND" = ADD && { until test -e `+gate+`; do sleep 0.1; done; echo '`+fakeResult+`'; }; exit 0`)
	opts.NoImages = true
	b := harness.Start(t, opts)
	n := &freshHost{b, t}
	config := b.Sandbox("slow")
	ctx, cancel := context.WithTimeout(b.Ctx(), 2*time.Second)
	defer cancel()
	if _, err := b.Runtime.RunPodSandbox(ctx, &runtimeapi.RunPodSandboxRequest{Config: config}); err == nil {
		t.Fatal("the sandbox is there although its plugin hangs")
	}
	var warning string
	for deadline := time.Now().Add(job.SlowStage + require.Patience(20*time.Second)); warning == ""; time.Sleep(100 * time.Millisecond) {
		for line := range strings.Lines(b.LogTail()) {
			if strings.Contains(line, "a job stays in one stage") {
				warning = line
			}
		}
		if time.Now().After(deadline) {
			t.Fatalf("no warning in the log:\n%s", b.LogTail())
		}
	}
	jobs := n.run(n.berth(), "jobs", "--endpoint", "unix://"+b.Socket)
	id, _, _ := strings.Cut(strings.TrimSpace(strings.Join(strings.Split(jobs.out, "\n")[1:], "")), " ")
	for _, word := range []string{"level=WARN", `stage="attach network"`, "plugins", "seconds=30", "id=" + id} {
		if !strings.Contains(warning, word) {
			t.Errorf("the warning does not say %q: %s", word, warning)
		}
	}
	if jobs.code != 0 || !strings.Contains(jobs.out, "attach network") || !strings.Contains(jobs.out, "(slow)") || len(id) < 12 {
		t.Errorf("berth jobs: %d\n%s", jobs.code, jobs.out)
	}
	if err := os.WriteFile(gate, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if got := b.RunSandbox(config); !strings.HasPrefix(got, id) {
		t.Errorf("the sandbox is %s, the job was for %s", got, id)
	}
}

// TestHostPortsOfCNI: berth refuses a pod with a host port that no plugin serves, and names the
// port and the file, unless the configuration says that the network serves it.
func TestHostPortsOfCNI(t *testing.T) {
	for _, key := range []string{"", "host_ports = 'cni'\n"} {
		opts := fakeCNI(t, `test "$CNI_COMMAND" = ADD && echo '`+fakeResult+`'; exit 0`)
		opts.NoImages = true
		opts.Config += key
		b := harness.Start(t, opts)
		config := b.Sandbox("web")
		config.PortMappings = []*runtimeapi.PortMapping{{HostPort: 8080, ContainerPort: 80}}
		answer, err := b.Runtime.RunPodSandbox(b.Ctx(), &runtimeapi.RunPodSandboxRequest{Config: config})
		if key != "" {
			if err != nil {
				t.Errorf("with %s%v", key, err)
			}
			b.RemovePod(answer.GetPodSandboxId())
			continue
		}
		checkRefusal(t, err, codes.Unimplemented, []string{"port_mappings", "8080", "10-fake.conflist", "network.host_ports"})
	}
}

// TestPendingDELHasResults: a DEL of an ADD that failed is pending while the daemon stops. The DEL of the
// next daemon has the result of the plugin that succeeded.
func TestPendingDELHasResults(t *testing.T) {
	dir := t.TempDir()
	gate, input := filepath.Join(dir, "gate"), filepath.Join(dir, "input")
	opts := fakeCNI(t, "")
	opts.NoImages = true
	var conf, bin string
	if _, err := fmt.Sscanf(opts.Config, "[network]\nconf_dir = %q\nbin_dirs = [%q]\n", &conf, &bin); err != nil {
		t.Fatal(err)
	}
	for file, text := range map[string]string{
		filepath.Join(conf, "10-fake.conflist"): `{"cniVersion":"1.0.0","name":"fake","plugins":[{"type":"gives"},{"type":"fails"}]}`,
		filepath.Join(bin, "gives"): "#!/bin/sh\n" + `case $CNI_COMMAND in
ADD) echo '` + fakeResult + `';;
DEL) cat >` + input + `; test -e ` + gate + `;;
esac`,
		filepath.Join(bin, "fails"): "#!/bin/sh\ntest $CNI_COMMAND != ADD",
	} {
		if err := os.WriteFile(file, []byte(text), 0o755); err != nil { //nolint:gosec // a program
			t.Fatal(err)
		}
	}
	b := harness.Start(t, opts)
	if _, err := b.Runtime.RunPodSandbox(b.Ctx(), &runtimeapi.RunPodSandboxRequest{Config: b.Sandbox("fails")}); err == nil {
		t.Fatal("the sandbox is there although a plugin of its network fails")
	}
	b.StopDaemon()
	if err := errors.Join(os.Remove(input), os.WriteFile(gate, nil, 0o600)); err != nil {
		t.Fatal(err)
	}
	b.StartDaemon()
	b.Await("the DEL to be repeated", func() bool {
		left, err := filepath.Glob(filepath.Join(b.Root, "network", "cni", "attachments", "[0-9a-f]*.json"))
		return err == nil && len(left) == 0
	})
	if text, err := os.ReadFile(input); err != nil || !strings.Contains(string(text), "10.77.0.5/24") {
		t.Errorf("the repeated DEL got %s, %v; want the result of its own ADD", text, err)
	}
}

// TestModeChangesWithPods: a pod that CNI plugins have attached is detached by them although the network is berth's own
// now. New pods are on berth's own network.
func TestModeChangesWithPods(t *testing.T) {
	dir := t.TempDir()
	calls := filepath.Join(dir, "calls")
	opts := fakeCNI(t, `echo "$CNI_COMMAND $CNI_CONTAINERID" >>`+calls+`; test "$CNI_COMMAND" != ADD || echo '`+fakeResult+`'`)
	opts.NoImages = true
	b := harness.Start(t, opts)
	before := b.RunSandbox(b.Sandbox("before"))
	b.ChangeArgs("--network", "builtin")
	after := b.RunSandbox(b.Sandbox("after"))
	for _, id := range []string{before, after} {
		if _, err := b.Runtime.StopPodSandbox(b.Ctx(), &runtimeapi.StopPodSandboxRequest{PodSandboxId: id}); err != nil {
			t.Fatal(err)
		}
		if _, err := b.Runtime.RemovePodSandbox(b.Ctx(), &runtimeapi.RemovePodSandboxRequest{PodSandboxId: id}); err != nil {
			t.Fatal(err)
		}
	}
	text, err := os.ReadFile(calls)
	if err != nil || !strings.Contains(string(text), "DEL "+before) || strings.Contains(string(text), after) {
		t.Errorf("the plugin was called with %s, %v; want DEL of %s alone", text, err, before)
	}
	left, err := filepath.Glob(filepath.Join(b.Root, "network", "cni", "attachments", "[0-9a-f]*.json"))
	if err != nil || len(left) > 0 {
		t.Errorf("%s are left, %v", left, err)
	}
}

// TestPendingDELAfterAModeChange: `berth net check` has the pods that CNI plugins attached although the network is berth's
// own now, and what their DEL fails with.
func TestPendingDELAfterAModeChange(t *testing.T) {
	gate := filepath.Join(t.TempDir(), "gate")
	opts := fakeCNI(t, `case $CNI_COMMAND in ADD) echo '`+fakeResult+`';; DEL) test -e `+gate+`;; esac`)
	opts.NoImages = true
	b := harness.Start(t, opts)
	id := b.RunSandbox(b.Sandbox("before"))
	b.ChangeArgs("--network", "builtin")
	own := b.RunSandbox(b.Sandbox("after"))
	if out := b.MustCLI("net", "check", id, own); !strings.Contains(out, "only detach it") || !strings.Contains(out, "no CNI plugin has attached it") {
		t.Errorf("of pods that run: %s", out)
	}
	request := &runtimeapi.StopPodSandboxRequest{PodSandboxId: id}
	if _, err := b.Runtime.StopPodSandbox(b.Ctx(), request); err == nil {
		t.Error("the pod has stopped although its DEL fails")
	}
	if out, stderr, err := b.CLI("net", "check"); err == nil || !strings.Contains(out, "before") || !strings.Contains(out, "the last DEL has failed") {
		t.Errorf("while DEL fails: %s %s, %v", out, stderr, err)
	}
	if out := b.MustCLI("info"); !strings.Contains(out, `pendingDeletes: "1"`) {
		t.Errorf("while DEL fails: %s", out)
	}
	if err := os.WriteFile(gate, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := b.Runtime.StopPodSandbox(b.Ctx(), request); err != nil {
		t.Error(err)
	}
	if out := b.MustCLI("net", "check"); strings.Contains(out, "before") {
		t.Errorf("after DEL: %s", out)
	}
}

// TestPendingDELIsReported: the commands where an operator looks report a pod whose DEL fails, until the file is correct.
func TestPendingDELIsReported(t *testing.T) {
	opts := fakeCNI(t, `test "$CNI_COMMAND" != ADD -a "$CNI_COMMAND" != DEL`)
	opts.NoImages = true
	var conf, bin string
	if _, err := fmt.Sscanf(opts.Config, "[network]\nconf_dir = %q\nbin_dirs = [%q]\n", &conf, &bin); err != nil {
		t.Fatal(err)
	}
	b := harness.Start(t, opts)
	if _, err := b.Runtime.RunPodSandbox(b.Ctx(), &runtimeapi.RunPodSandboxRequest{Config: b.Sandbox("web")}); err == nil {
		t.Fatal("the sandbox is there although its plugin fails")
	}
	b.Await("a DEL that fails", func() bool { return strings.Contains(b.MustCLI("info"), "pendingDeletes") })
	commands := map[string][]string{"net check": {"net", "check"}, "doctor": {"doctor", "--check", "network-detach"}}
	for name, args := range commands {
		out, stderr, err := b.CLI(args...)
		if err == nil || !strings.Contains(out, "web") || !strings.Contains(out, `plugin type="fake" failed (delete)`) || !strings.Contains(out, "orrect the configuration of network") {
			t.Errorf("%s: %s %s, %v; want the pod with the error of DEL, and what to do", name, out, stderr, err)
		}
	}
	if err := errors.Join(
		os.WriteFile(filepath.Join(conf, "10-fake.conflist"), []byte(`{"cniVersion":"1.0.0","name":"fake","plugins":[{"type":"right"}]}`), 0o600),
		os.WriteFile(filepath.Join(bin, "right"), []byte("#!/bin/sh\nexit 0\n"), 0o755), //nolint:gosec // a program
	); err != nil {
		t.Fatal(err)
	}
	b.Await("the DEL to succeed", func() bool { return !strings.Contains(b.MustCLI("info"), "pendingDeletes") })
	for name, args := range commands {
		if out, stderr, err := b.CLI(args...); err != nil || strings.Contains(out, "fake") {
			t.Errorf("%s after the correction: %s %s, %v", name, out, stderr, err)
		}
	}
}
