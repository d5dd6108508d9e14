//go:build integration

package cni_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/network"
	"github.com/berthrun/berth/internal/require"
	"github.com/berthrun/berth/internal/sys/sysns"
)

const okResult = `echo '{"cniVersion":"1.0.0","interfaces":[{"name":"br"},{"name":"eth0","sandbox":"/x"}],
 "ips":[{"address":"fd00::7/64","interface":1},{"address":"10.1.2.3/24","interface":1},{"address":"10.1.2.1/24","interface":0}]}'`

const fakeConf = `{"cniVersion":"1.0.0","name":"fake-net","plugins":[{"type":"fake","capabilities":
 {"portMappings":true,"bandwidth":true,"dns":true,"cgroupPath":true,"ipRanges":true,"io.kubernetes.cri.pod-annotations":true}}]}`

func TestFakePluginGetsAllParameters(t *testing.T) {
	l := newLab(t)
	l.plugin("fake", okResult)
	l.write("conf/10-fake.conflist", fakeConf, 0o644)
	n := l.open(l.config())
	defer n.Close()
	if err := n.SetPodCIDR(t.Context(), "10.1.2.0/24,fd00::/64"); err != nil {
		t.Fatal(err)
	}
	att := l.pod(network.Port{Protocol: "UDP", HostPort: 53, ContainerPort: 5353, HostIP: "127.0.0.1"}, network.Port{ContainerPort: 80})
	att.Annotations = map[string]string{"kubernetes.io/ingress-bandwidth": "1M"}
	att.CgroupParent = "/kubepods/x"
	att.DNS = &network.DNS{Servers: []string{"10.96.0.10"}}
	res, err := n.Attach(t.Context(), att)
	if err != nil {
		t.Fatal(err)
	}
	if fmt.Sprint(res.IPs) != "[10.1.2.3 fd00::7]" {
		t.Errorf("addresses %v, want those of eth0, IPv4 first", res.IPs)
	}
	again, err := n.Attach(t.Context(), att)
	if err != nil || fmt.Sprint(again.IPs) != fmt.Sprint(res.IPs) {
		t.Errorf("repeated: %v, %v", again, err)
	}
	if err := n.Detach(t.Context(), att); err != nil {
		t.Error(err)
	}
	if err := n.Detach(t.Context(), att); err != nil {
		t.Error(err)
	}
	if got := l.verbs(); got != "ADD DEL" {
		t.Errorf("the plugin saw %q, want one ADD and one DEL", got)
	}
	for _, verb := range []string{"ADD", "DEL"} {
		checkInput(t, l, verb)
	}
	calls, _ := os.ReadFile(l.path("calls"))
	want := "IgnoreUnknown=1;K8S_POD_NAMESPACE=default;K8S_POD_NAME=pod;K8S_POD_INFRA_CONTAINER_ID=" + att.SandboxID + ";K8S_POD_UID=uid-1"
	if !strings.Contains(string(calls), want) {
		t.Errorf("calls %s lack %s", calls, want)
	}
}

// TestDirectoryOfAHandler: a pod of a handler with a directory of its own is on the network of that one, also after it
// has changed.
func TestDirectoryOfAHandler(t *testing.T) {
	l := newLab(t)
	l.plugin("fake", okResult)
	l.write("conf/10-fake.conflist", fakeConf, 0o644)
	cfg := l.config()
	cfg.ConfDirOf = func(handler string) string {
		if handler == "own" {
			return l.path("own")
		}
		return ""
	}
	n := l.open(cfg)
	defer n.Close()
	att := l.pod()
	att.Handler = "own"
	_, err := n.Attach(t.Context(), att)
	if !errors.Is(err, errs.Unavailable) || !strings.Contains(err.Error(), l.path("own")) {
		t.Errorf("a directory that is not there: %v", err)
	}
	if err := n.Ready(t.Context()); err != nil {
		t.Errorf("the node's network depends on the handler's: %v", err)
	}
	if err := os.Mkdir(l.path("own"), 0o755); err != nil {
		t.Fatal(err)
	}
	l.write("own/10-own.conflist", strings.ReplaceAll(fakeConf, "fake-net", "own-net"), 0o644)
	other := l.pod()
	other.Handler = "other"
	for _, pod := range []*network.Attachment{att, other} {
		if _, err := n.Attach(t.Context(), pod); err != nil {
			t.Fatal(err)
		}
		input, err := os.ReadFile(l.path("input.ADD"))
		if err != nil {
			t.Fatal(err)
		}
		if own := strings.Contains(string(input), `"own-net"`); own != (pod == att) {
			t.Errorf("handler %s: the plugin got %s", pod.Handler, input)
		}
	}
	if err := os.Remove(l.path("own/10-own.conflist")); err != nil {
		t.Fatal(err)
	}
	for _, pod := range []*network.Attachment{att, other} {
		if err := n.Detach(t.Context(), pod); err != nil {
			t.Error(err)
		}
	}
}

// TestResultWithoutAddress: the error names the sandbox, in containerd's words, and the plugin's DEL follows.
func TestResultWithoutAddress(t *testing.T) {
	l := newLab(t)
	l.plugin("fake", `echo '{"cniVersion":"1.0.0","interfaces":[{"name":"eth0","sandbox":"/x"}]}'`)
	l.write("conf/10-fake.conflist", fakeConf, 0o644)
	n := l.open(l.config())
	defer n.Close()
	att := l.pod()
	_, err := n.Attach(t.Context(), att)
	if err == nil || !strings.Contains(err.Error(), fmt.Sprintf("failed to find network info for sandbox %q", att.SandboxID)) || !strings.Contains(err.Error(), "eth0 no address") {
		t.Errorf("error %v", err)
	}
	if err := n.Detach(t.Context(), att); err != nil {
		t.Error(err)
	}
	if got := l.verbs(); got != "ADD DEL" {
		t.Errorf("the plugin saw %q, want one ADD and one DEL", got)
	}
}

func checkInput(t *testing.T, l *lab, verb string) {
	t.Helper()
	data, err := os.ReadFile(l.path("input." + verb))
	if err != nil {
		t.Fatal(err)
	}
	var input struct{ RuntimeConfig json.RawMessage }
	if err := json.Unmarshal(data, &input); err != nil {
		t.Fatal(err)
	}
	want := `{"bandwidth":{"ingressBurst":4294967295,"ingressRate":1000000},"cgroupPath":"/kubepods/x","dns":{"servers":["10.96.0.10"]},` +
		`"io.kubernetes.cri.pod-annotations":{"kubernetes.io/ingress-bandwidth":"1M"},"ipRanges":[[{"subnet":"10.1.2.0/24"}],[{"subnet":"fd00::/64"}]],` +
		`"portMappings":[{"containerPort":5353,"hostIP":"127.0.0.1","hostPort":53,"protocol":"udp"}]}`
	var got, wanted any
	if json.Unmarshal(input.RuntimeConfig, &got) != nil || json.Unmarshal([]byte(want), &wanted) != nil || fmt.Sprint(got) != fmt.Sprint(wanted) {
		t.Errorf("%s was told\n%s\nwant\n%s", verb, input.RuntimeConfig, want)
	}
}

// TestDelUsesTheConfigurationOfAdd: an operator's change does not affect pods that are already
// attached, also after a restart and without the namespace.
func TestDelUsesTheConfigurationOfAdd(t *testing.T) {
	l := newLab(t)
	l.plugin("fake", okResult)
	l.write("conf/10-fake.conflist", fakeConf, 0o644)
	n := l.open(l.config())
	att := l.pod()
	if _, err := n.Attach(t.Context(), att); err != nil {
		t.Fatal(err)
	}
	n.Close()
	if err := os.RemoveAll(l.path("conf")); err != nil {
		t.Fatal(err)
	}
	if err := sysns.RemoveNetNS(att.NetNS); err != nil {
		t.Fatal(err)
	}
	n = l.open(l.config())
	defer n.Close()
	if err := n.Ready(t.Context()); !errors.Is(err, errs.Unavailable) || !strings.Contains(err.Error(), "cni config not initialized") {
		t.Errorf("without a directory: %v, want Unavailable", err)
	}
	if err := n.GC(t.Context(), []string{att.SandboxID}); err != nil {
		t.Error(err)
	}
	if got := l.verbs(); got != "ADD" {
		t.Errorf("GC with the sandbox alive: %q", got)
	}
	if err := n.GC(t.Context(), nil); err != nil {
		t.Error(err)
	}
	if got := l.verbs(); got != "ADD DEL" {
		t.Errorf("GC with the sandbox gone: %q", got)
	}
	if left := l.records(); left != 0 {
		t.Errorf("%d records are left", left)
	}
}

func (l *lab) records() int {
	files, _ := filepath.Glob(l.path("root", "attachments", "*.json"))
	return len(files)
}

// TestFailures: the error names the plugin that failed. Before a retry, DEL runs.
func TestFailures(t *testing.T) {
	l := newLab(t)
	l.plugin("fake", `[ $CNI_COMMAND = DEL ] || { echo '{"code":11,"msg":"no room"}'; exit 1; }`)
	l.write("conf/10-fake.conflist", fakeConf, 0o644)
	n := l.open(l.config())
	defer n.Close()
	att := l.pod()
	_, err := n.Attach(t.Context(), att)
	if !errors.Is(err, errs.Unavailable) || !strings.Contains(err.Error(), "no room") || !strings.Contains(err.Error(), `"fake"`) {
		t.Errorf("a plugin that fails: %v, want Unavailable with its type and words", err)
	}
	if l.records() != 1 {
		t.Error("a failed ADD left no record")
	}
	l.plugin("fake", okResult)
	if _, err := n.Attach(t.Context(), att); err != nil {
		t.Fatal(err)
	}
	if got := l.verbs(); got != "ADD DEL ADD" {
		t.Errorf("the plugin saw %q, want DEL before the second ADD", got)
	}
	if err := n.Detach(t.Context(), att); err != nil {
		t.Error(err)
	}
}

// deadline is a context whose deadline expires when the test closes the channel.
type deadline struct {
	context.Context //nolint:containedctx // it is one
	expired         chan struct{}
}

func (d deadline) Done() <-chan struct{} { return d.expired }

func (d deadline) Err() error {
	select {
	case <-d.expired:
		return context.DeadlineExceeded
	default:
		return nil
	}
}

// TestHungPlugin: a plugin that hangs is killed with all its children when the caller's deadline
// expires. DEL runs all the same.
func TestHungPlugin(t *testing.T) {
	l := newLab(t)
	l.plugin("fake", `[ $CNI_COMMAND = DEL ] || { sleep 600 & echo $! >`+l.path("child")+`; wait; }`)
	l.write("conf/10-fake.conflist", fakeConf, 0o644)
	n := l.open(l.config())
	defer n.Close()
	att := l.pod()
	ctx, attached := deadline{t.Context(), make(chan struct{})}, make(chan error, 1)
	go func() {
		_, err := n.Attach(ctx, att)
		attached <- err
	}()
	var pid []byte
	await(t, "the child of the plugin", func() bool {
		pid, _ = os.ReadFile(l.path("child")) // absent at first
		return bytes.HasSuffix(pid, []byte("\n"))
	})
	close(ctx.expired)
	if err := <-attached; !errors.Is(err, errs.Deadline) || !strings.Contains(err.Error(), `"fake"`) {
		t.Errorf("a plugin that hangs: %v, want Deadline with its type", err)
	}
	awaitGone(t, strings.TrimSpace(string(pid)))
	if err := n.Detach(ctx, att); err != nil && !errors.Is(err, errs.Deadline) {
		t.Errorf("DEL on a context that is over: %v", err)
	}
	await(t, "the record to go", func() bool { return l.records() == 0 })
	if got := l.verbs(); got != "ADD DEL" {
		t.Errorf("the plugin saw %q", got)
	}
}

// TestSlowDel: if a DEL exceeds its timeout it is killed and Detach returns. The attachment's
// record survives a restart, and DEL is repeated until it succeeds.
func TestSlowDel(t *testing.T) {
	l := newLab(t)
	l.plugin("fake", `if [ $CNI_COMMAND = DEL ]; then until test -e `+l.path("gate")+`; do sleep 0.05; done; else `+okResult+`; fi`)
	l.write("conf/10-fake.conflist", fakeConf, 0o644)
	cfg := l.config()
	cfg.DelTimeout = 500 * time.Millisecond
	n := l.open(cfg)
	att := l.pod(network.Port{HostPort: 8080, ContainerPort: 80})
	if _, err := n.Attach(t.Context(), att); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		start := time.Now()
		if err := n.Detach(t.Context(), att); !errors.Is(err, errs.Deadline) || time.Since(start) > require.Patience(10*time.Second) {
			t.Errorf("a DEL that hangs: %v after %v", err, time.Since(start))
		}
	}
	if l.records() != 1 {
		t.Error("an attachment whose DEL did not succeed is forgotten")
	}
	if _, err := n.Attach(t.Context(), l.pod(network.Port{HostPort: 8080, ContainerPort: 80})); !errors.Is(err, errs.Exists) {
		t.Errorf("its host port was given to another: %v", err)
	}
	n.Close()
	n = l.open(cfg)
	defer n.Close()
	l.write("gate", "", 0o644)
	for deadline := time.Now().Add(require.Patience(10 * time.Second)); l.records() != 0; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("DEL is not repeated, the plugin saw %q", l.verbs())
		}
	}
	if err := n.Detach(t.Context(), att); err != nil {
		t.Errorf("once it has succeeded: %v", err)
	}
}

// awaitGone waits until a process is dead, even if no parent has reaped it.
func awaitGone(t *testing.T, pid string) {
	t.Helper()
	for deadline := time.Now().Add(10 * time.Second); time.Now().Before(deadline); time.Sleep(10 * time.Millisecond) {
		stat, err := os.ReadFile("/proc/" + pid + "/stat")
		if err != nil || strings.Contains(string(stat), ") Z ") {
			return
		}
	}
	t.Errorf("process %s of the plugin still runs", pid)
}

// TestLostDelIsRepeated: a lost DEL is repeated in the background and after a restart.
func TestLostDelIsRepeated(t *testing.T) {
	l := newLab(t)
	l.plugin("fake", `[ $CNI_COMMAND = ADD ] && { `+okResult+`; exit; }; [ -e `+l.path("heal")+` ]`)
	l.write("conf/10-fake.conflist", fakeConf, 0o644)
	n := l.open(l.config())
	att := l.pod()
	if _, err := n.Attach(t.Context(), att); err != nil {
		t.Fatal(err)
	}
	if err := n.Detach(t.Context(), att); err == nil || !strings.Contains(err.Error(), `"fake"`) {
		t.Errorf("a DEL that fails: %v, want an error with the plugin's type", err)
	}
	n.Close()
	l.write("heal", "", 0o644)
	n = l.open(l.config())
	defer n.Close()
	for deadline := time.Now().Add(15 * time.Second); l.records() != 0; time.Sleep(20 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("the DEL was not repeated: %s", l.verbs())
		}
	}
}

// TestPortIsHeld: two pods cannot have the same host port, also across a restart.
func TestPortIsHeld(t *testing.T) {
	l := newLab(t)
	l.plugin("fake", okResult)
	l.write("conf/10-fake.conflist", fakeConf, 0o644)
	n := l.open(l.config())
	port := network.Port{Protocol: "tcp", HostPort: 8080, ContainerPort: 80}
	holder, second := l.pod(port), l.pod(port)
	if _, err := n.Attach(t.Context(), holder); err != nil {
		t.Fatal(err)
	}
	n.Close()
	n = l.open(l.config())
	defer n.Close()
	_, err := n.Attach(t.Context(), second)
	if !errors.Is(err, errs.Exists) || !strings.Contains(err.Error(), "8080/tcp") || !strings.Contains(err.Error(), holder.SandboxID) {
		t.Errorf("%v, want kind Exists with port and holder", err)
	}
	if err := n.Detach(t.Context(), second); err != nil {
		t.Error(err)
	}
	if err := n.Detach(t.Context(), holder); err != nil {
		t.Error(err)
	}
	if _, err := n.Attach(t.Context(), second); err != nil {
		t.Error(err)
	}
	if err := n.Detach(t.Context(), second); err != nil {
		t.Error(err)
	}
}

// TestStatus: since CNI 1.1 a plugin can report that it is not ready.
func TestStatus(t *testing.T) {
	l := newLab(t)
	l.plugin("fake", `[ $CNI_COMMAND = STATUS ] && { echo '{"code":50,"msg":"agent not up"}'; exit 1; }; exit 0`)
	l.write("conf/10-fake.conflist", strings.Replace(fakeConf, "1.0.0", "1.1.0", 1), 0o644)
	n := l.open(l.config())
	defer n.Close()
	for range 2 {
		err := n.Ready(t.Context())
		if !errors.Is(err, errs.Unavailable) || !strings.Contains(err.Error(), "agent not up") {
			t.Errorf("Ready: %v, want Unavailable with the plugin's words", err)
		}
	}
	if got := l.verbs(); got != "STATUS" {
		t.Errorf("the plugin saw %q, want one STATUS for two questions", got)
	}
	l.write("conf/05-other.conflist", strings.Replace(fakeConf, `"fake"`, `"missing"`, 1), 0o644)
	if err := n.Ready(t.Context()); !errors.Is(err, errs.Unavailable) || !strings.Contains(err.Error(), `"missing"`) {
		t.Errorf("a plugin that is not installed: %v", err)
	}
}

// A bandwidth limit that no plugin applies is reported.
func TestBandwidthWithoutPlugin(t *testing.T) {
	for declares, want := range map[bool]int{true: 0, false: 1} {
		l := newLab(t)
		l.plugin("fake", okResult)
		l.write("conf/10-fake.conflist", fmt.Sprintf(`{"cniVersion":"1.0.0","name":"fake-net","plugins":[{"type":"fake","capabilities":{"bandwidth":%v}}]}`, declares), 0o644)
		var log bytes.Buffer
		cfg := l.config()
		cfg.Log = slog.New(slog.NewTextHandler(&log, nil))
		n := l.open(cfg)
		att := l.pod()
		att.Annotations = map[string]string{"kubernetes.io/ingress-bandwidth": "10M"}
		if _, err := n.Attach(t.Context(), att); err != nil {
			t.Fatal(err)
		}
		if got := strings.Count(log.String(), att.SandboxID); got != want {
			t.Errorf("with a plugin of the capability %v: %d warnings name the sandbox, want %d: %s", declares, got, want, log.String())
		}
		if err := n.Detach(t.Context(), att); err != nil {
			t.Error(err)
		}
		if err := n.Close(); err != nil {
			t.Error(err)
		}
	}
}

// TestHostPortsWithoutPortmap: a host port that no plugin would map is refused before any plugin
// runs, with an error that an operator can act on. Pods without host ports start.
func TestHostPortsWithoutPortmap(t *testing.T) {
	l := newLab(t)
	for _, plugin := range []string{"bridge", "host-local"} {
		require.Binary(t, "/usr/lib/cni/"+plugin)
	}
	file := "conf/10-plain.conflist"
	l.write(file, fmt.Sprintf(`{"cniVersion":"1.0.0","name":"plain","plugins":[
 {"type":"bridge","bridge":"cni0","isGateway":true,"ipam":{"type":"host-local","dataDir":%q,"ranges":[[{"subnet":"10.77.1.0/24"}]]}}]}`, l.path("ipam")), 0o644)
	cfg := l.config()
	n := l.open(cfg)
	asked := l.pod(network.Port{ContainerPort: 8080}, network.Port{Protocol: "udp", HostPort: 5353, ContainerPort: 53})
	_, err := n.Attach(t.Context(), asked)
	if !errors.Is(err, errs.Unsupported) {
		t.Fatalf("%v, want kind Unsupported", err)
	}
	for _, word := range []string{"host port 5353/udp", "container port 53", l.path(file), "network.host_ports", "portMappings"} {
		if !strings.Contains(err.Error(), word) {
			t.Errorf("the error does not say %q: %v", word, err)
		}
	}
	if kept, err := filepath.Glob(l.path("ipam", "plain", "10.*")); err != nil || len(kept) > 0 {
		t.Errorf("a refused pod holds %q, %v", kept, err)
	}
	plain := l.pod(network.Port{ContainerPort: 8080})
	if _, err := n.Attach(t.Context(), plain); err != nil {
		t.Errorf("without a host port: %v", err)
	}
	if err := n.Close(); err != nil {
		t.Error(err)
	}
	cfg.AnyHostPorts = true
	n = l.open(cfg)
	defer n.Close()
	if _, err := n.Attach(t.Context(), asked); err != nil {
		t.Errorf("with network.host_ports = cni: %v", err)
	}
	for _, att := range []*network.Attachment{asked, plain} {
		if err := n.Detach(t.Context(), att); err != nil {
			t.Error(err)
		}
	}
}

// TestDebianPlugins runs bridge, host-local and portmap for real.
func TestDebianPlugins(t *testing.T) {
	l := newLab(t)
	for _, plugin := range []string{"bridge", "host-local", "portmap"} {
		require.Binary(t, "/usr/lib/cni/"+plugin)
	}
	require.Binary(t, "iptables")
	l.write("conf/10-bridge.conflist", fmt.Sprintf(`{"cniVersion":"0.4.0","name":"real","plugins":[
 {"type":"bridge","bridge":"cni0","isGateway":true,"ipMasq":false,"hairpinMode":true,
  "ipam":{"type":"host-local","dataDir":%q,"ranges":[[{"subnet":"10.55.0.0/24"}],[{"subnet":"fd55::/64"}]],"routes":[{"dst":"0.0.0.0/0"},{"dst":"::/0"}]}},
 {"type":"portmap","capabilities":{"portMappings":true}}]}`, l.path("ipam")), 0o644)
	n := l.open(l.config())
	defer n.Close()
	if err := n.Ready(t.Context()); err != nil {
		t.Fatal(err)
	}
	att := l.pod(network.Port{Protocol: "tcp", HostPort: 8080, ContainerPort: 80})
	res, err := n.Attach(t.Context(), att)
	if err != nil {
		t.Fatal(err)
	}
	if fmt.Sprint(res.IPs) != "[10.55.0.2 fd55::2]" {
		t.Errorf("addresses %v", res.IPs)
	}
	var server net.Listener
	if err := sysns.InNetNS(att.NetNS, func() (err error) { server, err = net.Listen("tcp", ":80"); return err }); err != nil {
		t.Fatal(err)
	}
	defer server.Close()
	go func() {
		for {
			c, err := server.Accept()
			if err != nil {
				return
			}
			c.Close()
		}
	}()
	for _, addr := range []string{"10.55.0.2:80", "10.55.0.1:8080"} {
		err := sysns.InNetNS(l.host, func() error {
			c, err := net.DialTimeout("tcp", addr, 3*time.Second)
			if err == nil {
				c.Close()
			}
			return err
		})
		if err != nil {
			t.Errorf("the pod does not answer at %s: %v", addr, err)
		}
	}
	if err := n.Detach(t.Context(), att); err != nil {
		t.Fatal(err)
	}
	left, _ := filepath.Glob(l.path("ipam", "real", "10.*"))
	if len(left) != 0 || l.records() != 0 {
		t.Errorf("left: addresses %v, %d records", left, l.records())
	}
	if rules := l.run(l.host, "iptables", "-t", "nat", "-S"); strings.Contains(rules, "8080") {
		t.Errorf("rules of the host port are left:\n%s", rules)
	}
}
