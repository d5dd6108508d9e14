package provider

import (
	"errors"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/berthrun/berth/internal/cluster/config"
	"github.com/berthrun/berth/internal/cluster/plan"
	"github.com/berthrun/berth/internal/errs"
)

// Recordings of nerdctl 2.3.5 with containerd 2.4.2. The files nerdctl-2.3-*.json are part of them.
const (
	nerdctlNoContainer = `time="2026-11-22T17:10:12Z" level=fatal msg="1 errors:\nno such container: b"`
	nerdctlNoNetwork   = `time="2026-11-22T17:01:29Z" level=error msg="no network found matching: kind"` + "\n" +
		`time="2026-11-22T17:01:29Z" level=fatal msg="unable to find any network matching the provided request"`
	nerdctlNoVolume = `time="2026-11-22T17:10:13Z" level=warning msg="volume \"a-var\": not found"` + "\n" +
		`time="2026-11-22T17:10:13Z" level=fatal msg="some volumes could not be removed"`
	nerdctlOverlap = `time="2026-11-22T17:01:29Z" level=fatal msg="subnet fc00:f853:ccd:e793::/64 overlaps with other one on this address space"`
	nerdctlPort    = `time="2026-11-22T17:08:40Z" level=fatal msg="failed to load networking flags: bind for 127.0.0.1:36443 failed: port is already allocated"`
)

func TestNerdctlContainers(t *testing.T) {
	addresses := []netip.Addr{netip.MustParseAddr("10.4.1.128"), netip.MustParseAddr("fc00:f853:ccd:e793::80")}
	api := plan.Port{Listen: "127.0.0.1", Host: 36443, Container: 6443, Protocol: config.TCP}
	for file, ports := range map[string][]plan.Port{
		"nerdctl-2.3-running.json": {{Listen: "0.0.0.0", Host: 49153, Container: 80, Protocol: config.UDP}, api},
		"nerdctl-2.3-stopped.json": {api}, // no ports here: the label has the planned one
	} {
		all, err := readContainers(recorded(t, file))
		if err != nil || len(all) != 1 {
			t.Fatalf("%s: %v, %v", file, all, err)
		}
		n, running := all[0], strings.Contains(file, "running")
		if n.Name != "a-control-plane" || n.Running != running || n.Image != "localhost/node:latest" || n.Labels[plan.LabelCluster] != "a" || n.IPv4 != addresses[0] || n.IPv6 != addresses[1] {
			t.Errorf("%s: %+v", file, n)
		}
		if !strings.HasPrefix(n.started, "2026-11-22T") {
			t.Errorf("%s: started %q", file, n.started)
		}
		slices.SortFunc(n.Ports, func(a, b plan.Port) int { return a.Container - b.Container })
		if diff := cmp.Diff(ports, n.Ports); diff != "" {
			t.Errorf("%s: %s", file, diff)
		}
	}
}

// TestNerdctlRegistry: the port of a stopped registry is in its label.
func TestNerdctlRegistry(t *testing.T) {
	labels := Request{}.Labels(Spec{Container: plan.Registry("i", 5001)})
	if labels[LabelRegistry] != "127.0.0.1:5001" || labels[LabelAPI] != "" {
		t.Errorf("labels %v", labels)
	}
	stopped := strings.Replace(string(recorded(t, "nerdctl-2.3-stopped.json")), `"run.berth.api": "127.0.0.1:36443"`, `"run.berth.registry": "127.0.0.1:5001"`, 1)
	all, err := readContainers([]byte(stopped))
	if err != nil || len(all) != 1 {
		t.Fatalf("%v, %v", all, err)
	}
	if at, err := all[0].Endpoint(plan.RegistryPort); err != nil || at.String() != "127.0.0.1:5001" || all[0].Running {
		t.Errorf("%v, %v", at, err)
	}
}

// TestNerdctlGone: if one of several containers is missing, nerdctl reports none of them.
func TestNerdctlGone(t *testing.T) {
	f := newFake()
	e := engine(t, "nerdctl", f)
	f.containers["a"], f.containers["c"] = map[string]string{}, map[string]string{}
	f.answers["container inspect a b"] = answer{err: nerdctlNoContainer, failed: true}
	f.answers["container inspect b"] = answer{err: nerdctlNoContainer, failed: true}
	found, err := e.inspect(t.Context(), "a", "b", "c")
	if err != nil || len(found) != 2 || found[0].Name != "a" || found[1].Name != "c" {
		t.Errorf("%+v, %v", found, err)
	}
	if found, err := e.inspect(t.Context(), "b"); err != nil || len(found) != 0 {
		t.Errorf("%+v, %v", found, err)
	}
}

// TestNerdctlRemoves: rm -f exits with status 0 although a container still exists, for example one
// that containerd's restart monitor has started meanwhile.
func TestNerdctlRemoves(t *testing.T) {
	const words = `time="2026-11-22T17:10:12Z" level=error msg="1 errors:\ncannot delete running task a: failed precondition"`
	for _, test := range []struct {
		refused int
		removed bool
	}{{0, true}, {2, true}, {3, false}} {
		for _, all := range []bool{true, false} {
			f := newFake()
			e := engine(t, "nerdctl", f)
			labels := map[string]string{plan.LabelCluster: "dev"}
			f.containers["a"], f.containers["b"], f.containers["other"] = labels, labels, map[string]string{}
			left := test.refused
			f.stays = func(name string) string {
				if name != "a" || left == 0 {
					return ""
				}
				left--
				return words
			}
			remove := func() error { return e.Delete(t.Context(), "a", "b") }
			if all {
				remove = func() error { return e.DeleteCluster(t.Context(), "dev") }
			}
			err := remove()
			if test.removed && (err != nil || len(f.containers) != 1) {
				t.Errorf("%+v: %v; %v are left", test, err, f.containers)
			}
			if !test.removed && (!errors.Is(err, errs.State) || !strings.Contains(err.Error(), "rm left a: ") || !strings.Contains(err.Error(), "cannot delete running task")) {
				t.Errorf("%+v: %v", test, err)
			}
			if f.containers["b"] != nil || f.containers["other"] == nil {
				t.Errorf("%+v: %v are left", test, f.containers)
			}
			for _, call := range f.called("rm -f -v b")[min(1, len(f.called("rm -f -v b"))):] {
				t.Errorf("%+v: %s once more", test, call)
			}
		}
	}
}

// TestNerdctlWords: nerdctl's messages, and the errors that berth returns for them.
func TestNerdctlWords(t *testing.T) {
	f := newFake()
	e := engine(t, "nerdctl", f)
	f.answers["network inspect kind"] = answer{err: nerdctlNoNetwork, failed: true}
	if err := e.RemoveNetwork(t.Context(), "kind"); err != nil {
		t.Errorf("an absent network: %v", err)
	}
	f.volumes["a-var"] = map[string]string{LabelNode: "a"}
	f.answers["volume rm a-var"] = answer{err: nerdctlNoVolume, failed: true}
	if err := e.Delete(t.Context(), "a"); err != nil {
		t.Errorf("an absent volume: %v", err)
	}
	f.answers["image inspect"] = answer{err: `time="2026-11-22T17:01:56Z" level=fatal msg="1 errors:\nno such image: localhost/bb:1"`, failed: true}
	if image, err := e.Present(t.Context(), "localhost/bb:1"); err != nil || image.ID != "" {
		t.Errorf("an absent image: %v, %v", image, err)
	}
	f = newFake()
	e = engine(t, "nerdctl", f)
	r := request(t, e)
	r.Specs[0].Ports[0].Host = 36443
	f.answers["run --name dev-external-load-balancer"] = answer{err: nerdctlPort, failed: true}
	if err := e.Create(t.Context(), r); !errors.Is(err, errs.Exists) || !strings.Contains(err.Error(), "choose another in networking.apiServerPort") {
		t.Errorf("a port in use: %v", err)
	}
	const held = `time="2026-11-22T17:08:41Z" level=fatal msg="failed to create shim task: OCI runtime create failed: ... requested IP address 10.4.1.128 is not available in range set 10.4.1.1-10.4.1.254\""`
	f.answers["run --name dev-external-load-balancer"] = answer{err: held, failed: true}
	if err := e.Create(t.Context(), r); !errors.Is(err, errs.Exists) || !strings.Contains(err.Error(), "/var/lib/cni/networks/kind") {
		t.Errorf("an address in use: %v", err)
	}
}

func TestNerdctlNetwork(t *testing.T) {
	for name, test := range map[string]struct {
		native answer
		want   bool
	}{
		"as 2.3 makes it": {native: answer{out: string(recorded(t, "nerdctl-2.3-network-native.json"))}, want: true},
		"an older one":    {native: answer{out: `[{"CNI":{"plugins":[{"type":"bridge"},{"type":"portmap","capabilities":{"ips":true}}]}}]`}},
		"unknown":         {native: answer{err: "unknown flag: --mode", failed: true}},
	} {
		f := newFake()
		e := engine(t, "nerdctl", f)
		f.answers["network inspect kind"] = answer{out: string(recorded(t, "nerdctl-2.3-network.json"))}
		f.answers["network inspect --mode=native kind"] = test.native
		n, err := e.EnsureNetwork(t.Context(), "kind")
		if err != nil || len(n.Subnets) != 2 || !n.StableV4 || n.StableV6 != test.want {
			t.Errorf("%s: %+v, %v", name, n, err)
		}
		// Its network rm ignores stopped containers.
		f.answers["ps -aq --no-trunc --filter network=kind"] = answer{out: "46a56fc5268c\n"}
		if err := e.RemoveNetwork(t.Context(), "kind"); err != nil || len(f.called("network rm")) != 0 {
			t.Errorf("%s: %v, %v", name, err, f.calls)
		}
		f.answers["ps -aq --no-trunc --filter network=kind"] = answer{}
		if err := e.RemoveNetwork(t.Context(), "kind"); err != nil || len(f.called("network rm kind")) != 1 {
			t.Errorf("%s: %v, %v", name, err, f.calls)
		}
	}
}

// TestLoopback6: nerdctl and podman accept a port on ::1 that no client can reach. berth refuses it
// and names its field. Other engines, such as podman without root, get the port.
func TestLoopback6(t *testing.T) {
	const six = "networking: {ipFamily: ipv6}\nnodes: [{}]\n"
	for text, field := range map[string]string{
		six: "networking.apiServerPort",
		"nodes: [{extraPortMappings: [{containerPort: 80, hostPort: 80, listenAddress: \"::1\"}]}]\n": "nodes[0].extraPortMappings[0]",
		"networking: {ipFamily: ipv6, apiServerAddress: 127.0.0.1}\nnodes: [{}]\n":                    "",
	} {
		for _, tool := range []string{"nerdctl", "docker", "podman", "podman-rootless"} {
			program, rootless := strings.CutSuffix(tool, "-rootless")
			e := engine(t, program, newFake())
			e.facts.Loopback6 = e.loopback6 || rootless
			_, err := e.runArgs(Request{}, planned(t, e.PlanHost(Network{Name: "kind"}), text)[0], nil, "ATTEMPT")
			if refused := (tool == "nerdctl" || tool == "podman") && field != ""; errors.Is(err, errs.Unsupported) != refused || refused && !strings.Contains(err.Error(), field+" needs another address") {
				t.Errorf("%s, %q: %v", tool, text, err)
			}
		}
	}
}
