package provider

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"testing/fstest"

	"k8s.io/apimachinery/pkg/util/version"

	"github.com/berthrun/berth/internal/errs"
)

// TestSubnetOfName: the first subnet is the one of every network called kind.
func TestSubnetOfName(t *testing.T) {
	if got := subnet6("kind", 0).String(); got != "fc00:f853:ccd:e793::/64" {
		t.Error(got)
	}
	if subnet6("kind", 1) == subnet6("kind", 0) || subnet6("other", 0) == subnet6("kind", 0) {
		t.Error("other names or tries have the same subnet")
	}
}

func TestMakeNetwork(t *testing.T) {
	const overlap = "Error: subnet fc00::/64 is already used on the host or by another config"
	route := "Iface\tDestination\tGateway\tFlags\tRefCnt\tUse\tMetric\tMask\tMTU\tWindow\tIRTT\n" +
		"eth0\t00000000\t0102000A\t0003\t0\t0\t0\t00000000\t0\t0\t0\n" +
		"br0\t000012AC\t00000000\t0001\t0\t0\t0\t0000FFFF\t0\t0\t0\n" // 172.18.0.0/16
	for name, test := range map[string]struct {
		tool    string
		answers map[string]answer
		want    []string
		kind    error
	}{
		"podman":  {tool: "podman", want: []string{"network create -d=bridge --label run.berth.network=true --ipv6 --subnet fc00:f853:ccd:e793::/64 kind"}},
		"docker":  {tool: "docker", want: []string{"network create -d=bridge --label run.berth.network=true -o com.docker.network.bridge.enable_ip_masquerade=true -o com.docker.network.driver.mtu=1450 --subnet 172.19.0.0/16 --ipv6 --subnet fc00:f853:ccd:e793::/64 kind"}},
		"nerdctl": {tool: "nerdctl", want: []string{"network create -d=bridge --label run.berth.network=true --ipv6 --subnet fc00:f853:ccd:e793::/64 kind"}},
		"taken, says nerdctl": {
			tool:    "nerdctl",
			answers: map[string]answer{"network create -d=bridge --label run.berth.network=true --ipv6 --subnet fc00:f853:ccd:e793::/64": {err: nerdctlOverlap, failed: true}},
			want: []string{
				"network create -d=bridge --label run.berth.network=true --ipv6 --subnet fc00:f853:ccd:e793::/64 kind",
				"network create -d=bridge --label run.berth.network=true --ipv6 --subnet " + subnet6("kind", 1).String() + " kind",
			},
		},
		"all of berth's are taken": {
			tool:    "docker",
			answers: map[string]answer{"network create -d=bridge --label run.berth.network=true -o com.docker.network.bridge.enable_ip_masquerade=true -o com.docker.network.driver.mtu=1450 --subnet": {err: "Error response from daemon: Pool overlaps with other one on this address space", failed: true}},
		},
		"another made, says nerdctl": {tool: "nerdctl", answers: map[string]answer{"network create": {err: `time="2026-11-22T17:01:29Z" level=fatal msg="network with name kind already exists"`, failed: true}}},
		"taken": {
			tool:    "podman",
			answers: map[string]answer{"network create -d=bridge --label run.berth.network=true --ipv6 --subnet fc00:f853:ccd:e793::/64": {err: overlap, failed: true}},
			want: []string{
				"network create -d=bridge --label run.berth.network=true --ipv6 --subnet fc00:f853:ccd:e793::/64 kind",
				"network create -d=bridge --label run.berth.network=true --ipv6 --subnet " + subnet6("kind", 1).String() + " kind",
			},
		},
		"no IPv6": {
			tool:    "podman",
			answers: map[string]answer{"network create -d=bridge --label run.berth.network=true --ipv6": {err: "Error: failed to create bridge: is ipv6 enabled in the kernel?", failed: true}},
			want: []string{
				"network create -d=bridge --label run.berth.network=true --ipv6 --subnet fc00:f853:ccd:e793::/64 kind",
				"network create -d=bridge --label run.berth.network=true kind",
			},
		},
		"all taken":    {tool: "podman", answers: map[string]answer{"network create": {err: overlap, failed: true}}, kind: errs.Exhausted},
		"another made": {tool: "podman", answers: map[string]answer{"network create": {err: "Error: network name kind already used: network already exists", failed: true}}},
		"refused":      {tool: "podman", answers: map[string]answer{"network create": {err: "Error: no space left on device", failed: true}}, kind: errs.Exhausted},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFake()
			f.answers = test.answers
			e := engine(t, test.tool, f)
			e.host = fstest.MapFS{"proc/net/route": {Data: []byte(route)}}
			made, err := e.makeNetwork(t.Context(), "kind")
			if !errors.Is(err, test.kind) || made != (err == nil && !strings.HasPrefix(name, "another made")) {
				t.Errorf("%v, %v, want %v", made, err, test.kind)
			}
			if got := f.called("network create"); test.want != nil && !slices.Equal(got, test.want) {
				t.Errorf("%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(test.want, "\n"))
			}
			if got := f.called("network create"); name == "all of berth's are taken" && (len(got) != attempts || !strings.Contains(got[attempts-1], LabelPool)) {
				t.Errorf("%s", strings.Join(got, "\n"))
			}
			if name == "all taken" && len(f.called("network create")) != attempts {
				t.Errorf("%v", f.calls)
			}
		})
	}
}

// TestRoutedSubnets: where a route, such as that of a VPN, leads to all subnets that berth knows, docker
// chooses one, and refuses chosen addresses in it.
func TestRoutedSubnets(t *testing.T) {
	const head = "Iface\tDestination\tGateway\tFlags\tRefCnt\tUse\tMetric\tMask\tMTU\tWindow\tIRTT\n"
	for name, test := range map[string]struct {
		route, taken string
		stable       bool
	}{
		"no route":      {stable: true},
		"172.16.0.0/12": {route: "tun0\t000010AC\t00000000\t0001\t0\t0\t0\t0000F0FF\t0\t0\t0\n"},
		"one, and in docker": {route: "tun0\t000010AC\t00000000\t0001\t0\t0\t0\t0000F8FF\t0\t0\t0\n" + // 172.16.0.0/13
			"tun0\t000018AC\t00000000\t0001\t0\t0\t0\t0000FCFF\t0\t0\t0\n" + // 172.24.0.0/14
			"tun0\t00001CAC\t00000000\t0001\t0\t0\t0\t0000FEFF\t0\t0\t0\n" + // 172.28.0.0/15
			"tun0\t00001EAC\t00000000\t0001\t0\t0\t0\t0000FFFF\t0\t0\t0\n", taken: "172.31.0.0/16"},
	} {
		f := newFake()
		e := engine(t, "docker", f)
		e.host = fstest.MapFS{"proc/net/route": {Data: []byte(head + test.route)}}
		var labels []string
		f.on = func(args []string) error {
			line := strings.Join(args, " ")
			if !strings.HasPrefix(line, "network create") {
				return nil
			}
			if test.taken != "" && strings.Contains(line, test.taken) {
				return errors.New("Error response from daemon: Pool overlaps with other one on this address space")
			}
			for label, value := range labelsOf(args) {
				labels = append(labels, fmt.Sprintf("%q:%q", label, value))
			}
			f.mu.Lock()
			defer f.mu.Unlock()
			f.answers["network inspect kind"] = answer{out: `[{"Id":"b","Labels":{` + strings.Join(labels, ",") +
				`},"IPAM":{"Config":[{"Subnet":"192.168.0.0/20"},{"Subnet":"fc00:f853:ccd:e793::/64"}]}}]`}
			return nil
		}
		n, err := e.EnsureNetwork(t.Context(), "kind")
		if err != nil || !n.Made || n.StableV4 != test.stable || !n.StableV6 {
			t.Errorf("%s: %+v, %v", name, n, err)
		}
		if created := f.called("network create"); strings.Contains(created[len(created)-1], "--subnet 172.") != test.stable {
			t.Errorf("%s: %q", name, created)
		}
	}
}

func TestEnsureNetwork(t *testing.T) {
	f := newFake()
	e := engine(t, "podman", f)
	for _, made := range []bool{true, false} {
		n, err := e.EnsureNetwork(t.Context(), "kind")
		if err != nil || n.Made != made || len(n.Subnets) != 2 || !n.StableV4 || !n.StableV6 {
			t.Fatalf("%+v, %v", n, err)
		}
	}
	if err := e.RemoveNetwork(t.Context(), "kind"); err != nil || len(f.called("network rm kind")) != 1 {
		t.Errorf("%v: %v", err, f.calls)
	}
	f.answers["network rm"] = answer{err: `Error: "kind" has associated containers with it. Use -f to forcibly delete containers and pods: network is being used`, failed: true}
	if err := e.RemoveNetwork(t.Context(), "kind"); err != nil {
		t.Errorf("in use: %v", err)
	}
	f.answers["network inspect kind"] = answer{out: string(recorded(t, "podman-4.3-network.json"))}
	f.calls = nil
	if err := e.RemoveNetwork(t.Context(), "kind"); err != nil || len(f.called("network rm")) != 0 {
		t.Errorf("a network of somebody else: %v, %v", err, f.calls)
	}
	if err := e.RemoveNetwork(t.Context(), "absent"); err != nil {
		t.Errorf("absent: %v", err)
	}
}

// TestPodman3: its run has no --ip6, so that a network of both families has no stable addresses.
func TestPodman3(t *testing.T) {
	f := newFake()
	f.answers["network inspect kind"] = answer{out: string(recorded(t, "podman-3-network-cni.json"))}
	e := engine(t, "podman", f)
	for text, want := range map[string]bool{"3.4.4": false, "4.0.0": true} {
		e.version = version.MustParseGeneric(text)
		r := request(t, e)
		if r.Network.StableV4 != want || r.Network.StableV6 != want || len(r.Network.Subnets) != 2 {
			t.Errorf("%s: %+v", text, r.Network)
		}
		if err := e.Create(t.Context(), r); err != nil {
			t.Fatal(err)
		}
		if calls := strings.Join(f.called("run"), "\n"); strings.Contains(calls, "--ip") != want {
			t.Errorf("%s: %s", text, calls)
		}
		if err := e.DeleteCluster(t.Context(), "dev"); err != nil {
			t.Fatal(err)
		}
		f.calls = nil
	}
}

// TestNamesakes: if several networks have the same name, every process keeps the same one.
func TestNamesakes(t *testing.T) {
	f := newFake()
	f.answers["network ls"] = answer{out: "c\na\nb\n"}
	f.answers["network inspect c a b"] = answer{out: `[{"Id":"c","Containers":{}},{"Id":"a","Containers":{}},{"Id":"b","Containers":{"x":{},"y":{}}}]`}
	f.answers["network inspect kind"] = answer{out: `[{"Id":"b","Labels":{},"IPAM":{"Config":[{"Subnet":"172.18.0.0/16","Gateway":"172.18.0.1"},{"Subnet":"fc00:f853:ccd:e793::/64"}]}}]`}
	f.answers["network rm a"] = answer{err: "Error response from daemon: network a not found", failed: true}
	e := engine(t, "docker", f)
	n, err := e.EnsureNetwork(t.Context(), "kind")
	if err != nil || n.StableV4 || !n.StableV6 {
		t.Errorf("%+v, %v; docker takes no IPv4 address in a subnet that it chose itself", n, err)
	}
	if got := f.called("network rm"); !slices.Equal(got, []string{"network rm a", "network rm c"}) {
		t.Errorf("%v", got)
	}
}

func TestReadNetworks(t *testing.T) {
	want := []netip.Prefix{netip.MustParsePrefix("10.89.0.0/24"), netip.MustParsePrefix("fc00:f853:ccd:e793::/64")}
	for _, file := range []string{"podman-4.3-network.json", "podman-3-network-cni.json"} {
		all, err := readNetworks(recorded(t, file))
		if err != nil || len(all) != 1 {
			t.Fatalf("%s: %v, %v", file, all, err)
		}
		slices.SortFunc(all[0].subnets, func(a, b netip.Prefix) int { return a.Addr().Compare(b.Addr()) })
		if !slices.Equal(all[0].subnets, want) {
			t.Errorf("%s: %v", file, all[0].subnets)
		}
	}
	if all, err := readNetworks(recorded(t, "docker-20.10-network.json")); err != nil || len(all[0].subnets) != 2 || all[0].labels[LabelNetwork] != "true" || all[0].id == "" {
		t.Errorf("docker: %+v, %v", all, err)
	}
	if all, err := readNetworks(recorded(t, "podman-3-network-cni.json")); err != nil || all[0].labels[LabelNetwork] != "true" {
		t.Errorf("labels of CNI: %v, %v", all, err)
	}
}

// TestAddresses: berth picks free addresses in the upper half of the subnet, and none beyond its
// end.
func TestAddresses(t *testing.T) {
	f := newFake()
	f.containers["x"] = map[string]string{LabelAddresses: "10.89.0.129,fc00::80"}
	e := engine(t, "podman", f)
	specs := make([]Spec, 3)
	n := Network{Name: "kind", StableV4: true, StableV6: true, Subnets: []netip.Prefix{netip.MustParsePrefix("fc00::/64"), netip.MustParsePrefix("10.89.0.0/24"), netip.MustParsePrefix("10.90.0.0/24")}}
	got, err := e.addresses(t.Context(), n, specs, &choices{})
	if err != nil {
		t.Fatal(err)
	}
	for i, want := range []string{"fc00::81 10.89.0.128", "fc00::82 10.89.0.130", "fc00::83 10.89.0.131"} {
		if text := got[i][0].String() + " " + got[i][1].String(); text != want {
			t.Errorf("%d: %s, want %s", i, text, want)
		}
	}
	n.Subnets = []netip.Prefix{netip.MustParsePrefix("10.89.0.0/30")}
	if _, err := e.addresses(t.Context(), n, specs, &choices{}); !errors.Is(err, errs.Exhausted) {
		t.Errorf("a subnet of two: %v", err)
	}
	if got := middle(netip.MustParsePrefix("172.18.0.0/16")).String(); got != "172.18.128.1" {
		t.Error(got)
	}
}

// TestRoutes: a recording of the kernel's routes on a host with two networks, in both families.
func TestRoutes(t *testing.T) {
	e := engine(t, "podman", newFake())
	e.host = fstest.MapFS{
		"proc/net/route": {Data: []byte("Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\t\tMTU\tWindow\tIRTT\n" +
			"eth0\t00000000\t010200C0\t0003\t0\t0\t0\t00000000\t0\t0\t0\n" +
			"eth0\t0000F40A\t00000000\t0001\t0\t0\t0\t00FFFFFF\t0\t0\t0\n")},
		"proc/net/ipv6_route": {Data: []byte("" +
			"fd000010024400010000000000000000 40 00000000000000000000000000000000 00 00000000000000000000000000000000 00000100 00000001 00000000 00000001     eth0\n" +
			"00000000000000000000000000000000 00 00000000000000000000000000000000 00 fe800000000000000000000000000001 00000400 00000001 00000000 00000003     eth0\n" +
			"fd000010024400010000000000000002 80 00000000000000000000000000000000 00 00000000000000000000000000000000 00000000 00000002 00000000 80200001     eth0\n" +
			"fd000000000000000000000000000000 08 00000000000000000000000000000000 00 00000000000000000000000000000000 00000400 00000001 00000000 00000200       lo\n")},
	}
	// 10.244.0.0/24 is in the kernel's table in little-endian byte order.
	want := []string{"10.244.0.0/24", "fd00:10:244:1::/64"}
	var got []string
	for _, route := range e.PlanHost(Network{}).Routes {
		got = append(got, route.String())
	}
	if !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
	e.facts.Remote = true
	if routes := e.PlanHost(Network{}).Routes; len(routes) > 0 {
		t.Errorf("of another host: %v", routes)
	}
}
