package nodenet

import (
	"strings"
	"testing"

	"github.com/berthrun/berth/internal/cluster/clustertest"
	"github.com/berthrun/berth/internal/cluster/kubeapi"
	"github.com/berthrun/berth/internal/cluster/provider"
)

func TestRoutes(t *testing.T) {
	nodes := []kubeapi.Node{
		{Name: "a", PodCIDRs: []string{"10.244.0.0/24", "fd00:10:244::/64"}, Addresses: []string{"10.89.0.2", "fd00::2"}},
		{Name: "b", PodCIDRs: []string{"fd00:10:244:1::/64", "10.244.1.0/24"}, Addresses: []string{"10.89.0.3", "fd00::3"}},
		{Name: "c", PodCIDRs: []string{"10.244.2.0/24"}, Addresses: []string{"10.89.0.4"}},
	}
	want := "# Written by `berth cluster`: the pods of the other nodes.\nfd00:10:244:1::/64 via fd00::3\n10.244.1.0/24 via 10.89.0.3\n10.244.2.0/24 via 10.89.0.4\n"
	if got := routes("a", nodes); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}

func TestServices(t *testing.T) {
	net := clustertest.Describe(t, "networking: {ipFamily: dual}\n").Networking
	script, err := Services(net)
	want := `ip -4 rule flush protocol 177
ip -6 rule flush protocol 177 || :
ip -4 rule add iif berth0 to 10.96.0.0/16 type unreachable protocol 177
ip -6 rule add iif berth0 to fd00:10:96::/112 type unreachable protocol 177
`
	if err != nil || script != want {
		t.Errorf("%v\n%s", err, script)
	}
}

func TestServersOfBothFamilies(t *testing.T) {
	all := []provider.Node{
		{Name: "a", Labels: map[string]string{"run.berth.role": "control-plane", provider.LabelAddresses: "10.0.0.3,fd00::3"}},
		{Name: "b", Labels: map[string]string{"run.berth.role": "control-plane", provider.LabelAddresses: "10.0.0.4"}},
		{Name: "c", Labels: map[string]string{"run.berth.role": "worker", provider.LabelAddresses: "10.0.0.5"}},
	}
	for v4, want := range map[bool]string{true: "a=10.0.0.3 b=10.0.0.4", false: "a=fd00::3 b=b"} {
		var got []string
		for _, s := range servers(all, v4) {
			got = append(got, s.Name+"="+s.Host)
		}
		if strings.Join(got, " ") != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}
