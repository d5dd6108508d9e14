package plan

import (
	"context"
	"errors"
	"net"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"sigs.k8s.io/yaml"

	"github.com/berthrun/berth/internal/cluster/config"
	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/golden"
)

const head = "apiVersion: berth.run/v1alpha1\nkind: Cluster\n"

func load(t *testing.T, text string) *config.Cluster {
	t.Helper()
	c, err := config.Load("f", []byte(head+text), config.Options{Dir: "/"})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// TestPlan: plans that kind's format cannot describe, and other engines.
func TestPlan(t *testing.T) {
	c := load(t, `name: dev
nodes:
- role: control-plane
  extraMounts: [{hostPath: /srv/var, containerPath: /var/}, {hostPath: /m, containerPath: /lib/modules}, {hostPath: /t, containerPath: /tmp}]
- {role: worker, name: db, image: "db:1"}
pools:
- {name: web, count: 2, labels: {a: b}, extraPortMappings: [{containerPort: 80}]}
`)
	p := Make(c, Host{Engine: "docker", Network: "other"})
	text, err := yaml.Marshal(p)
	if err != nil {
		t.Fatal(err)
	}
	golden.Check(t, "testdata/pools.yaml", string(text))
}

func TestEntrance(t *testing.T) {
	for text, want := range map[string][3]string{
		"name: a": {"a-control-plane", "a-control-plane:6443", "127.0.0.1"},
		"name: a\nnodes: [{role: worker}, {}, {role: control-plane}]\nnetworking: {apiServerAddress: 192.0.2.1}": {"a-external-load-balancer", "a-external-load-balancer:6443", "192.0.2.1"},
		"name: a\nnodes: [{role: worker}, {name: x}]\nnetworking: {ipFamily: ipv6}":                              {"a-x", "a-x:6443", "::1"},
		"nodes: [{extraPortMappings: [{containerPort: 6443, hostPort: 1}]}]":                                     {"berth-control-plane", "berth-control-plane:6443", "127.0.0.1"},
	} {
		p := Make(load(t, text), Host{})
		c, port := p.Entrance()
		if got := [3]string{c.Name, p.Endpoint, port.Listen}; got != want || port.Host != 0 || port.Container != APIPort {
			t.Errorf("%s: %v %+v, want %v", text, got, port, want)
		}
	}
}

// TestRegistryIsReachedDirectly: the name bypasses proxies, because no proxy can resolve it.
func TestRegistryIsReachedDirectly(t *testing.T) {
	for text, want := range map[string]bool{"": false, "registry: {enabled: true}": true} {
		p := Make(load(t, text), Host{Engine: "podman", Env: map[string]string{"HTTP_PROXY": "http://p"}})
		if no := p.Containers[0].Env["NO_PROXY"]; strings.Contains(no, RegistryName) != want {
			t.Errorf("%q: NO_PROXY is %q", text, no)
		}
	}
}

func TestContextName(t *testing.T) {
	kind, err := config.Load("f", []byte("apiVersion: kind.x-k8s.io/v1alpha4\nkind: Cluster\n"), config.Options{})
	if err != nil {
		t.Fatal(err)
	}
	for want, c := range map[string]*config.Cluster{"kind-kind": kind, "berth-a": load(t, "name: a")} {
		if p := Make(c, Host{}); p.Context != want || p.Containers[0].Labels[LabelContext] != want || p.Network != DefaultNetwork {
			t.Errorf("%+v; want context %s", p, want)
		}
	}
}

// TestDigest: an additional node does not change the others. Another port changes its node.
func TestDigest(t *testing.T) {
	digest := func(text string) string {
		p := Make(load(t, text), Host{Engine: "podman", Env: map[string]string{"https_proxy": "http://p"}})
		if no := p.Containers[0].Env["NO_PROXY"]; !strings.Contains(no, "berth-control-plane,") {
			t.Errorf("NO_PROXY is %q", no)
		}
		return p.Containers[0].Labels[LabelDigest]
	}
	one := digest("nodes: [{}]")
	if digest("nodes: [{}, {role: worker}]") != one {
		t.Error("one more worker changes the control plane")
	}
	for _, text := range []string{
		"nodes: [{extraPortMappings: [{containerPort: 1}]}]", "nodes: [{image: other}]", "nodes: [{}, {}]",
		"nodes: [{extraMounts: [{hostPath: /a, containerPath: /a}]}]", "networking: {apiServerPort: 1}",
	} {
		if digest(text) == one {
			t.Errorf("%s changes nothing", text)
		}
	}
}

// TestNoAddressOfTheHost: the error names the field, because the engine does not know it.
func TestNoAddressOfTheHost(t *testing.T) {
	for _, text := range []string{
		"nodes: [{extraPortMappings: [{containerPort: 80, hostPort: 8080, listenAddress: 203.0.113.7}]}]",
		"nodes: [{extraPortMappings: [{containerPort: 80, listenAddress: 203.0.113.7, protocol: UDP}]}]",
	} {
		_, err := Make(load(t, text), Host{}).PickPorts(t.Context())
		if !errors.Is(err, errs.Invalid) || !strings.Contains(err.Error(), "nodes[0].extraPortMappings[0].listenAddress: 203.0.113.7 is not an address of this host") {
			t.Errorf("%v", err)
		}
	}
	_, err := Make(load(t, "networking: {apiServerAddress: 203.0.113.7}"), Host{}).PickPorts(t.Context())
	if err == nil || !strings.Contains(err.Error(), "networking.apiServerAddress: 203.0.113.7 is not an address of this host, which maps port 6443/TCP of ") {
		t.Errorf("%v", err)
	}
}

func TestPickPorts(t *testing.T) {
	var lc net.ListenConfig
	busy, err := lc.Listen(context.Background(), "tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer busy.Close()
	c := load(t, "nodes: [{extraPortMappings: [{containerPort: 53, protocol: UDP}, {containerPort: 80}, {containerPort: 81, hostPort: -1}, {containerPort: 82, protocol: SCTP}]}, {}]")
	p := Make(c, Host{})
	release, err := p.PickPorts(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	seen := map[string]bool{}
	var first Port
	for _, made := range p.Containers {
		for _, port := range made.Ports {
			if port.Container == 81 {
				if port.Host != config.EnginePort {
					t.Errorf("%+v: is the engine's to pick", port)
				}
				continue
			}
			key := net.JoinHostPort(port.Listen, string(port.Protocol)) + "/" + string(rune(port.Host))
			if port.Host <= 0 || seen[key] {
				t.Errorf("%+v: picked twice or not at all", port)
			}
			seen[key] = true
			if first.Host == 0 && port.Protocol == config.TCP {
				first = port
			}
		}
	}
	if _, _, err := take(t.Context(), first); err == nil {
		t.Errorf("%+v is not held", first)
	}
	release()
	held, _, err := take(t.Context(), first)
	if err != nil {
		t.Errorf("%+v is held after release: %v", first, err)
	} else {
		held.Close()
	}

	number := portOf(busy.Addr())
	p = Make(load(t, "networking: {apiServerPort: 1}"), Host{})
	p.Containers[0].Ports[0].Host = number
	_, err = p.PickPorts(t.Context())
	if want := "of berth-control-plane is in use on this host; choose another in networking.apiServerPort"; !errors.Is(err, errs.Exists) || !strings.Contains(err.Error(), want) {
		t.Errorf("%v; want %s", err, want)
	}
	p = Make(load(t, "networking: {apiServerAddress: 192.0.2.200}"), Host{})
	if _, err = p.PickPorts(t.Context()); err == nil || !strings.Contains(err.Error(), "failed to get random host port for port mapping") {
		t.Errorf("an address that is not this host's: %v", err)
	}
}

func TestAgainst(t *testing.T) {
	existing := map[string]string{}
	for _, c := range Make(load(t, "nodes: [{}, {role: worker}]\npools: [{name: web, count: 3}]"), Host{}).Containers {
		existing[c.Name] = c.Labels[LabelDigest]
	}
	for text, want := range map[string]Changes{
		"nodes: [{}, {role: worker}]\npools: [{name: web, count: 3}]":                                  {},
		"nodes: [{}, {role: worker}, {role: worker}]\npools: [{name: web, count: 2}]":                  {Add: []int{2}, Remove: []string{"berth-web3"}},
		"nodes: [{}]\npools: [{name: web, count: 3, labels: {a: b}}]":                                  {Remove: []string{"berth-worker"}},
		"nodes: [{}, {role: worker, extraPortMappings: [{containerPort: 1}]}]":                         {Replace: []int{1}, Remove: []string{"berth-web", "berth-web2", "berth-web3"}},
		"nodes: [{}, {}, {role: worker}]\npools: [{name: web, count: 3}]":                              {Add: []int{0, 2}}, // the API of one is on a free port of loopback, too
		"nodes: [{}, {role: worker}]\npools: [{name: web, count: 3, image: \"other:1\"}]\nname: berth": {Replace: []int{2, 3, 4}},
	} {
		if diff := cmp.Diff(want, Make(load(t, text), Host{}).Against(existing, nil)); diff != "" {
			t.Errorf("%s: %s", text, diff)
		}
	}
}
