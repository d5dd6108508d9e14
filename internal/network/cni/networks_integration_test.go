//go:build integration

package cni_test

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/network/cni"
)

// oneOf is a configuration of a network with a plugin of its own.
func (l *lab) oneOf(index int, script string) {
	l.t.Helper()
	plugin := fmt.Sprintf("fake%d", index)
	l.plugin(plugin, fmt.Sprintf("echo %s $CNI_COMMAND $CNI_IFNAME >>%s\n%s", plugin, l.path("links"), script))
	l.write(fmt.Sprintf("conf/%d0.conflist", index), fmt.Sprintf(`{"cniVersion":"1.0.0","name":"net%d","plugins":[{"type":%q}]}`, index, plugin), 0o644)
}

// answerOf is an ADD that answers with an address of each family for its link.
func answerOf(index int) string {
	return fmt.Sprintf(`[ $CNI_COMMAND != ADD ] || echo '{"cniVersion":"1.0.0","interfaces":[{"name":"'$CNI_IFNAME'","sandbox":"/x"}],
 "ips":[{"address":"fd0%[1]d::7/64","interface":0},{"address":"10.%[1]d.0.3/24","interface":0}],"routes":[{"dst":"10.%[1]d.0.0/16"}]}'`, index)
}

// links are the calls of all plugins since the last time.
func (l *lab) links() []string {
	l.t.Helper()
	data, err := os.ReadFile(l.path("links"))
	if err := errs.IgnoreNotExist(err); err != nil {
		l.t.Fatal(err)
	}
	l.write("links", "", 0o644)
	return strings.Split(strings.TrimSpace(string(data)), "\n")
}

// TestSeveralNetworks: a pod has a link in the first networks, the first decides its addresses, and
// DEL of all follows the record, also after a restart with fewer networks.
func TestSeveralNetworks(t *testing.T) {
	for _, serially := range []bool{true, false} {
		l := newLab(t)
		for i := range 3 {
			l.oneOf(i, answerOf(i))
		}
		cfg := l.config()
		cfg.MaxNetworks, cfg.Serially, cfg.Preference = 2, serially, cni.IPv6First
		n := l.open(cfg)
		if err := n.Ready(t.Context()); err != nil {
			t.Fatal(err)
		}
		att := l.pod()
		res, err := n.Attach(t.Context(), att)
		if err != nil {
			t.Fatal(err)
		}
		if got := fmt.Sprint(res.IPs); got != "[fd00::7 10.0.0.3]" {
			t.Errorf("addresses %s, want those of the first network, IPv6 first", got)
		}
		for _, part := range []string{`"name":"eth0"`, `"name":"eth1"`, `"address":"10.1.0.3/24"`, `"dst":"10.1.0.0/16"`} {
			if !strings.Contains(string(res.CNI), part) {
				t.Errorf("the result %s lacks %s", res.CNI, part)
			}
		}
		got := l.links()
		if serially && strings.Join(got, ", ") != "fake0 ADD eth0, fake1 ADD eth1" || len(got) != 2 {
			t.Errorf("the plugins saw %q", got)
		}
		if info := n.Info(); info["network"] != "net0,net1" {
			t.Errorf("info %v", info)
		}
		n.Close()
		cfg.MaxNetworks = 1
		n = l.open(cfg)
		if err := n.Detach(t.Context(), att); err != nil {
			t.Error(err)
		}
		if got := strings.Join(l.links(), ", "); got != "fake1 DEL eth1, fake0 DEL eth0" {
			t.Errorf("the plugins saw %q, want a DEL of each link", got)
		}
		n.Close()
	}
}

// TestOneNetworkOfSeveralFails: the error names it, and DEL undoes all. A DEL that fails does not keep
// the others.
func TestOneNetworkOfSeveralFails(t *testing.T) {
	l := newLab(t)
	l.oneOf(0, answerOf(0))
	l.oneOf(1, "exit 1")
	cfg := l.config()
	cfg.MaxNetworks = 0
	n := l.open(cfg)
	defer n.Close()
	att := l.pod()
	if _, err := n.Attach(t.Context(), att); err == nil || !strings.Contains(err.Error(), `"net1"`) {
		t.Errorf("%v, want the network that failed", err)
	}
	l.links()
	if err := n.Detach(t.Context(), att); err == nil || l.records() != 1 {
		t.Errorf("a DEL that fails: %v, %d records", err, l.records())
	}
	if got := strings.Join(l.links(), ", "); !strings.HasPrefix(got, "fake1 DEL eth1, fake0 DEL eth0") { // it may be repeated already
		t.Errorf("the plugins saw %q, want a DEL of each link", got)
	}
	l.oneOf(1, "exit 0")
	if err := n.Detach(t.Context(), att); err != nil || l.records() != 0 {
		t.Errorf("%v, %d records", err, l.records())
	}
}
