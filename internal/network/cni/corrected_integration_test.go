//go:build integration

package cni_test

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/berthrun/berth/internal/network"
	"github.com/berthrun/berth/internal/network/cni"
	"github.com/berthrun/berth/internal/require"
)

// mistake is a configuration that no ADD and no DEL accepts, and its correction.
type mistake struct{ name, wrong, right string }

// chainOf is a list of bridge with host-local and of further plugins, for wantNothingLeft.
func (l *lab) chainOf(version, subnet, more string) string {
	return fmt.Sprintf(`{"cniVersion":%q,"name":"faults","plugins":[{"type":"bridge","bridge":"cni0","isGateway":true,"ipMasq":true,
 "ipam":{"type":"host-local","dataDir":%q,"subnet":%s}}%s]}`, version, l.path("store"), subnet, more)
}

func (l *lab) mistakes() []mistake {
	const subnet, firewall, slow, fast = `"10.88.0.0/24"`, `,{"type":"firewall"}`, `,{"type":"bandwidth","ingressRate":1000}`,
		`,{"type":"bandwidth","ingressRate":100000000,"ingressBurst":10000000}`
	right := l.chainOf("1.0.0", subnet, "")
	return []mistake{
		{"a wrong type", strings.Replace(right, `"isGateway"`, `"mtu":"1400","isGateway"`, 1), right},
		{"a subnet that is a number", l.chainOf("1.0.0", "10", ""), right},
		{"a subnet that cannot be", l.chainOf("1.0.0", `"10.88.0.0/33"`, ""), right},
		{"a missing IPAM plugin", strings.Replace(right, "host-local", "nosuch", 1), right},
		{"a missing plugin in the chain", l.chainOf("1.0.0", subnet, firewall+`,{"type":"nosuch"}`), l.chainOf("1.0.0", subnet, firewall)},
		{"a bad rate", l.chainOf("1.0.0", subnet, firewall+slow), l.chainOf("1.0.0", subnet, firewall+fast)},
		{"a bad rate, and another version", l.chainOf("1.0.0", subnet, firewall+slow), l.chainOf("0.4.0", subnet, firewall+fast)},
		{"plugins that are gone", l.chainOf("1.0.0", subnet, firewall+slow), right},
		{"another store", l.chainOf("1.0.0", subnet, slow), strings.Replace(right, l.path("store"), l.path("other"), 1)},
		{"another kind of network", l.chainOf("1.0.0", subnet, slow), strings.Replace(right, `"bridge","bridge":"cni0","isGateway":true`, `"ptp"`, 1)},
	}
}

// meet has a pod meet a mistake: its DEL fails too.
func (l *lab) meet(m mistake, cfg cni.Config) (*cni.Network, *network.Attachment) {
	l.t.Helper()
	l.write("conf/10.conflist", m.wrong, 0o644)
	n := l.open(cfg)
	l.t.Cleanup(func() { n.Close() })
	pod := l.pod()
	if _, err := n.Attach(l.t.Context(), pod); err == nil {
		l.t.Fatalf("%s: ADD succeeded", m.name)
	}
	if err := n.Detach(l.t.Context(), pod); err == nil {
		l.t.Fatalf("%s: DEL succeeded", m.name)
	}
	return n, pod
}

// wantPending: a check has the error of the last DEL, and so has the record of the attachment.
func (l *lab) wantPending(n *cni.Network, pod *network.Attachment) {
	l.t.Helper()
	checks, err := n.Check(l.t.Context(), nil)
	if err != nil || len(checks) != 1 || checks[0].Fault == nil || !strings.Contains(checks[0].Fault.Error(), "the last DEL has failed") || !strings.Contains(checks[0].Fault.Error(), `network "faults"`) {
		l.t.Errorf("%+v, %v, want the error of DEL", checks, err)
	}
	pending, err := cni.ReadPending(l.path("root"))
	if err != nil || len(pending) != 1 || pending[0].SandboxID != pod.SandboxID || !strings.Contains(pending[0].Fault, `network "faults"`) {
		l.t.Errorf("%+v, %v, want the attachment with the error of DEL", pending, err)
	}
}

func (l *lab) inProcessConfig() cni.Config {
	cfg := l.config()
	cfg.BinDirs = []string{l.path("bin")}
	return cfg
}

// TestCorrectedConfiguration: an attachment that a mistake in the configuration has made impossible is detached once the
// file is correct, and nothing of it is left. Of plugins in process most mistakes never come into use.
func TestCorrectedConfiguration(t *testing.T) {
	for i, m := range newLab(t).mistakes() {
		if !strings.HasPrefix(m.name, "a missing") {
			continue
		}
		t.Run(m.name, func(t *testing.T) {
			t.Parallel()
			newLab(t).correct(i, (*lab).inProcessConfig)
		})
	}
}

// TestCorrectedConfigurationOfPrograms: the same with the reference plugins, where earlier plugins of the chain have run.
func TestCorrectedConfigurationOfPrograms(t *testing.T) {
	for _, plugin := range []string{"bridge", "ptp", "host-local", "firewall", "bandwidth"} {
		require.Binary(t, real(plugin))
	}
	for i, m := range newLab(t).mistakes() {
		t.Run(m.name, func(t *testing.T) {
			t.Parallel()
			newLab(t).correct(i, func(l *lab) cni.Config {
				cfg := l.config()
				cfg.ProgramsOnly = true
				return cfg
			})
		})
	}
}

// correct has a pod meet the mistake with an index, and corrects it.
func (l *lab) correct(index int, config func(*lab) cni.Config) {
	l.t.Helper()
	m := l.mistakes()[index]
	n, pod := l.meet(m, config(l))
	l.wantPending(n, pod)
	l.write("conf/10.conflist", m.right, 0o644)
	if err := n.Detach(l.t.Context(), pod); err != nil {
		l.t.Error(err)
	}
	l.wantNoAttachment(n)
	if pending, err := cni.ReadPending(l.path("root")); err != nil || len(pending) > 0 {
		l.t.Errorf("after the correction: %+v, %v", pending, err)
	}
	l.wantNothingLeft(plantedFault{inProcess: true}, pod.SandboxID)
	l.mustAttach(n, pod)
	l.mustDetach(n, pod)
}

// TestCorrectionIsFoundInTheBackground: nobody has to ask for it, also after a restart.
func TestCorrectionIsFoundInTheBackground(t *testing.T) {
	for _, restart := range []bool{false, true} {
		t.Run(fmt.Sprintf("restart %t", restart), func(t *testing.T) {
			t.Parallel()
			l := newLab(t)
			for _, m := range l.mistakes() {
				if m.name != "a missing plugin in the chain" {
					continue
				}
				n, pod := l.meet(m, l.inProcessConfig())
				if restart {
					n.Close()
				}
				l.write("conf/10.conflist", m.right, 0o644)
				if restart {
					n = l.open(l.inProcessConfig())
					defer n.Close()
				}
				l.wantNoAttachment(n)
				l.wantNothingLeft(plantedFault{inProcess: true}, pod.SandboxID)
			}
		})
	}
}

// gone is a plugin whose DEL fails for a configuration with the word "wrong", and otherwise notes what it gets.
func (l *lab) gone(name, atADD string) {
	l.t.Helper()
	l.plugin(name, fmt.Sprintf(`case $CNI_COMMAND in ADD) %s;; DEL) grep -q wrong %[2]s/input.DEL && exit 1; cp %[2]s/input.DEL %[2]s/%s.$CNI_IFNAME;; esac`, atADD, l.dir, name))
}

// TestCorrectionGetsTheResults: the plugins get the result of the incomplete ADD, those that the corrected configuration
// does not have, too. Of several networks, each is detached with the configuration of its name.
func TestCorrectionGetsTheResults(t *testing.T) {
	l := newLab(t)
	l.gone("first", okResult)
	l.gone("dropped", okResult)
	l.gone("last", "exit 1")
	l.write("conf/10.conflist", `{"cniVersion":"1.0.0","name":"a","plugins":[{"type":"first"},{"type":"dropped"},{"type":"last","x":"wrong"}]}`, 0o644)
	l.write("conf/20.conflist", `{"cniVersion":"1.0.0","name":"b","plugins":[{"type":"first"}]}`, 0o644)
	cfg := l.config()
	cfg.MaxNetworks = 0
	n := l.open(cfg)
	defer n.Close()
	pod := l.pod()
	if _, err := n.Attach(t.Context(), pod); err == nil {
		t.Fatal("ADD succeeded")
	}
	err := n.Detach(t.Context(), pod)
	if err == nil || !strings.Contains(err.Error(), `correct the configuration of network "a"`) || !strings.Contains(err.Error(), l.path("conf")) {
		t.Errorf("DEL before the correction: %v, want what to do", err)
	}
	for _, file := range []string{"first.eth0", "dropped.eth0"} {
		if _, err := os.Stat(l.path(file)); err == nil {
			t.Errorf("%s: DEL came too early", file)
		}
	}
	// The network b is first in the list now.
	l.write("conf/30.conflist", `{"cniVersion":"0.4.0","name":"a","plugins":[{"type":"first","y":"new"},{"type":"last"}]}`, 0o644)
	if err := os.Remove(l.path("conf/10.conflist")); err != nil {
		t.Fatal(err)
	}
	if err := n.Detach(t.Context(), pod); err != nil || l.records() != 0 {
		t.Errorf("DEL after the correction: %v, %d records", err, l.records())
	}
	for file, words := range map[string][]string{
		"first.eth0":   {`"name":"a"`, `"prevResult":{`, "10.1.2.3/24"},
		"dropped.eth0": {`"name":"a"`, `"prevResult":{`, `"cniVersion":"1.0.0"`},
		"last.eth0":    {`"name":"a"`, `"prevResult":{"cniVersion":"0.4.0"`, "10.1.2.3/24"},
		"first.eth1":   {`"name":"b"`},
	} {
		content, err := os.ReadFile(l.path(file))
		for _, word := range words {
			if err != nil || !strings.Contains(string(content), word) {
				t.Errorf("%s got %s, %v, want %s", file, content, err, word)
			}
		}
	}
}

// TestCompleteAttachmentKeepsItsConfiguration: DEL of a pod that was attached does not use another configuration.
func TestCompleteAttachmentKeepsItsConfiguration(t *testing.T) {
	l := newLab(t)
	l.gone("fake", okResult)
	l.write("conf/10.conflist", `{"cniVersion":"1.0.0","name":"a","plugins":[{"type":"fake","x":"wrong"}]}`, 0o644)
	n := l.open(l.config())
	defer n.Close()
	pod := l.pod()
	if _, err := n.Attach(t.Context(), pod); err != nil {
		t.Fatal(err)
	}
	l.write("conf/10.conflist", `{"cniVersion":"1.0.0","name":"a","plugins":[{"type":"fake"}]}`, 0o644)
	if err := n.Detach(t.Context(), pod); err == nil || l.records() != 1 {
		t.Errorf("%v, %d records, want the error of DEL", err, l.records())
	}
}

// TestBridgeOfAnotherSubnet: the error of a pod whose bridge has an address of an earlier configuration says what to do,
// and that works. Other errors do not mention it.
func TestBridgeOfAnotherSubnet(t *testing.T) {
	require.Binary(t, real("bridge"))
	for _, programs := range []bool{false, true} {
		t.Run(fmt.Sprintf("programs %t", programs), func(t *testing.T) {
			t.Parallel()
			l := newLab(t)
			cfg := l.config()
			cfg.ProgramsOnly = programs
			n := l.open(cfg)
			defer n.Close()
			use := func(version, conf string) {
				l.write("conf/10.conflist", strings.Replace(conf, "1.0.0", version, 1), 0o644)
			}
			use("1.0.0", l.chainOf("1.0.0", `"10.94.0.0/24"`, ""))
			pod := l.pod()
			l.mustAttach(n, pod)
			l.mustDetach(n, pod)
			use("1.0.0", strings.Replace(l.chainOf("1.0.0", `"10.94.0.0/24"`, ""), `"isGateway"`, `"mtu":1,"isGateway"`, 1))
			if _, err := n.Attach(t.Context(), pod); err == nil || strings.Contains(err.Error(), "ip link delete") {
				t.Errorf("another mistake: %v", err)
			}
			changed := l.chainOf("1.0.0", `"10.95.0.0/24"`, "")
			use("1.0.0", changed)
			_, err := n.Attach(t.Context(), pod)
			for _, words := range []string{"the bridge cni0 has the address 10.94.0.1/24, and the configuration wants 10.95.0.1/24", "ip link delete cni0", `"forceAddress": true`} {
				if err == nil || !strings.Contains(err.Error(), words) {
					t.Errorf("%v, want %q", err, words)
				}
			}
			use("1.0.0", strings.Replace(changed, `"isGateway"`, `"forceAddress":true,"isGateway"`, 1))
			l.mustAttach(n, pod)
			l.mustDetach(n, pod)
			use("1.0.0", l.chainOf("1.0.0", `"10.96.0.0/24"`, ""))
			l.run(l.host, "ip", "link", "delete", "cni0")
			l.mustAttach(n, pod)
			l.mustDetach(n, pod)
		})
	}
}

// TestRenamedNetwork: a configuration of another name is that of another network. The error says so, and the former name
// helps.
func TestRenamedNetwork(t *testing.T) {
	l := newLab(t)
	const right = `{"cniVersion":"1.0.0","name":%q,"plugins":[{"type":"fake"}]}`
	l.gone("fake", "exit 1")
	l.write("conf/10.conflist", `{"cniVersion":"1.0.0","name":"former","plugins":[{"type":"fake","x":"wrong"}]}`, 0o644)
	n := l.open(l.config())
	defer n.Close()
	pod := l.pod()
	if _, err := n.Attach(t.Context(), pod); err == nil {
		t.Fatal("ADD succeeded")
	}
	l.write("conf/10.conflist", fmt.Sprintf(right, "new"), 0o644)
	if err := n.Detach(t.Context(), pod); err == nil || !strings.Contains(err.Error(), `network "former" in `+l.path("conf")+" under the same name") {
		t.Errorf("with another name: %v", err)
	}
	l.write("conf/10.conflist", fmt.Sprintf(right, "former"), 0o644)
	if err := n.Detach(t.Context(), pod); err != nil || l.records() != 0 {
		t.Errorf("with the former name: %v, %d records", err, l.records())
	}
}

// TestFlushedRules: CHECK finds that the rules of host ports are gone, and the fault says what to do. Rules of masquerade
// are not checked, as docs/running.md says.
func TestFlushedRules(t *testing.T) {
	l := newLab(t)
	require.Binary(t, "iptables")
	l.write("conf/10.conflist", l.chainOf("1.0.0", `"10.88.0.0/24"`, `,{"type":"portmap","capabilities":{"portMappings":true}}`), 0o644)
	n := l.open(l.inProcessConfig())
	defer n.Close()
	with, without := l.pod(network.Port{Protocol: "tcp", HostPort: 8080, ContainerPort: 80}), l.pod()
	for _, pod := range []*network.Attachment{with, without} {
		l.mustAttach(n, pod)
	}
	l.run(l.host, "iptables", "-t", "nat", "-F")
	checks, err := n.Check(t.Context(), []string{with.SandboxID})
	if err != nil || len(checks) != 1 || checks[0].Fault == nil || !strings.Contains(checks[0].Fault.Error(), "recreate the pod") {
		t.Errorf("a pod with a host port: %+v, %v", checks, err)
	}
	if checks, err = n.Check(t.Context(), []string{without.SandboxID}); err != nil || len(checks) != 1 || checks[0].Fault != nil {
		t.Errorf("a pod without: %+v, %v", checks, err)
	}
	for _, pod := range []*network.Attachment{with, without} {
		l.mustDetach(n, pod)
	}
	l.mustAttach(n, with)
	if checks, err = n.Check(t.Context(), nil); err != nil || len(checks) != 1 || checks[0].Fault != nil {
		t.Errorf("a new pod: %+v, %v", checks, err)
	}
	l.mustDetach(n, with)
}
