package view

import (
	"encoding/json"
	"net/netip"
	"testing"

	"github.com/berthrun/berth/internal/engine"
	"github.com/berthrun/berth/internal/network"
	"github.com/berthrun/berth/internal/pod/record"
)

func TestNetworkIsShownAsContainerdDoes(t *testing.T) {
	const own = `{"Interfaces":{"eth0":{"IPConfigs":[{"IP":"10.0.0.2","Gateway":""},{"IP":"fd00::2","Gateway":""}],"Mac":"","Sandbox":"/ns","PciID":"","SocketPath":""}},"DNS":[],"Routes":[]}`
	for name, c := range map[string]struct{ answer, want string }{
		"the built-in network":     {"", own},
		"an answer that is broken": {`{"ips":5}`, own},
		"plugins": {
			`{"cniVersion":"1.0.0","interfaces":[{"name":"veth1","mac":"aa"},{"name":"net1","mac":"bb","sandbox":"/ns"}],
			"ips":[{"interface":1,"address":"10.1.0.2/24","gateway":"10.1.0.1"},{"interface":7,"address":"10.1.0.3/24"},{"address":"fd01::3/64"}],
			"routes":[{"dst":"0.0.0.0/0"}],"dns":{"nameservers":["10.1.0.1"]}}`,
			`{"Interfaces":{"eth0":{"IPConfigs":[{"IP":"10.1.0.3","Gateway":""},{"IP":"fd01::3","Gateway":""}],"Mac":"","Sandbox":"","PciID":"","SocketPath":""},` +
				`"net1":{"IPConfigs":[{"IP":"10.1.0.2","Gateway":"10.1.0.1"}],"Mac":"bb","Sandbox":"/ns","PciID":"","SocketPath":""},` +
				`"veth1":{"IPConfigs":[],"Mac":"aa","Sandbox":"","PciID":"","SocketPath":""}},"DNS":[{"nameservers":["10.1.0.1"]}],"Routes":[{"dst":"0.0.0.0/0"}]}`,
		},
	} {
		rec := &record.Sandbox{
			Engine: &engine.Sandbox{NetNS: "/ns"},
			Network: &network.Result{
				IPs: []netip.Addr{netip.MustParseAddr("10.0.0.2"), netip.MustParseAddr("fd00::2")}, CNI: json.RawMessage(c.answer),
			},
		}
		got, err := json.Marshal(shownNetworkOf(rec))
		if err != nil || string(got) != c.want {
			t.Errorf("%s: %v\n%s, want\n%s", name, err, got, c.want)
		}
	}
	if shownNetworkOf(&record.Sandbox{Engine: &engine.Sandbox{}, Network: &network.Result{}}) != nil {
		t.Error("a pod in the host's network is shown with one of its own")
	}
}
