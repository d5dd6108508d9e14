package kubeadm

import (
	"errors"
	"net/netip"
	"regexp"
	"strings"
	"testing"

	"github.com/berthrun/berth/internal/cluster/config"
	"github.com/berthrun/berth/internal/cluster/patch"
	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/golden"
)

func load(t *testing.T, text string) *config.Cluster {
	t.Helper()
	c, err := config.Load("f", []byte("apiVersion: berth.run/v1alpha1\nkind: Cluster\n"+text), config.Options{})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// TestWhole shows a complete configuration, including the differences from kind.
func TestWhole(t *testing.T) {
	c := load(t, `name: dev
nodes: [{labels: {tier: front, a: b}}]
networking: {ipFamily: dual, apiServerAddress: 0.0.0.0, kubeProxyMode: nftables}
featureGates: {B: true, A: false}
runtimeConfig: {api/alpha: "true"}
`)
	n := node(c, 0, "v1.36.3")
	n.CRISocket, n.Engine = BerthSocket, "berth"
	text, err := Config(n)
	if err != nil {
		t.Fatal(err)
	}
	golden.Check(t, "testdata/whole.yaml", text)
}

// field returns one field of a document of the configuration.
func field(t *testing.T, n Node, kind string, path ...string) any {
	t.Helper()
	text, err := Config(n)
	if err != nil {
		t.Fatal(err)
	}
	docs, err := patch.Parse(text)
	if err != nil {
		t.Fatal(err)
	}
	for _, doc := range docs {
		if doc["kind"] != kind {
			continue
		}
		var value any = map[string]any(doc)
		for _, name := range path {
			inside, _ := value.(map[string]any)
			value = inside[name]
		}
		return value
	}
	return nil
}

func TestVersions(t *testing.T) {
	c := load(t, "")
	for version, want := range map[string]struct {
		api, driver  string
		failCgroupV1 any
	}{
		"v1.23.0":               {"kubeadm.k8s.io/v1beta3", "cgroupfs", nil},
		"1.30.14":               {"kubeadm.k8s.io/v1beta3", "systemd", nil},
		"v1.31.0":               {"kubeadm.k8s.io/v1beta3", "systemd", false},
		"v1.35.9":               {"kubeadm.k8s.io/v1beta3", "systemd", false},
		"v1.36.0-rc.1":          {"kubeadm.k8s.io/v1beta4", "systemd", false},
		"v1.37.2+a1b2c3":        {"kubeadm.k8s.io/v1beta4", "systemd", false},
		"v1.38.0-alpha.1.12+ab": {"kubeadm.k8s.io/v1beta4", "systemd", false},
	} {
		n := node(c, 0, version)
		if got := field(t, n, "ClusterConfiguration", "apiVersion"); got != want.api {
			t.Errorf("%s: %v, want %s", version, got, want.api)
		}
		if got := field(t, n, "KubeletConfiguration", "cgroupDriver"); got != want.driver {
			t.Errorf("%s: %v, want %s", version, got, want.driver)
		}
		if got := field(t, n, "KubeletConfiguration", "failCgroupV1"); got != want.failCgroupV1 {
			t.Errorf("%s: failCgroupV1 is %v, want %v", version, got, want.failCgroupV1)
		}
	}
	for version, kind := range map[string]error{"v1.22.17": errs.Unsupported, "": errs.Invalid, "latest": errs.Invalid} {
		if _, err := Config(node(c, 0, version)); !errors.Is(err, kind) {
			t.Errorf("%q: %v, want %v", version, err, kind)
		}
	}
}

func TestRootless(t *testing.T) {
	for text, want := range map[string]any{"": "0s", "networking: {kubeProxyMode: nftables}": "0s"} {
		c := load(t, text)
		n := node(c, 0, "v1.37.0")
		n.Rootless = true
		if got := field(t, n, "KubeProxyConfiguration", "conntrack", "tcpEstablishedTimeout"); got != want {
			t.Errorf("%s: %v", text, got)
		}
		if got := field(t, n, "KubeProxyConfiguration", "conntrack", "tcpBeLiberal"); got != nil {
			t.Errorf("%s: %v", text, got)
		}
		if got := field(t, n, "KubeletConfiguration", "featureGates", "KubeletInUserNamespace"); got != true {
			t.Errorf("%s: %v", text, got)
		}
		if c.FeatureGates != nil {
			t.Error("the description itself was changed")
		}
	}
}

// TestTaints: the only node of a cluster runs pods. In all other clusters control planes keep their
// taint.
func TestTaints(t *testing.T) {
	if got, ok := field(t, node(load(t, ""), 0, "v1.37.0"), "InitConfiguration", "nodeRegistration", "taints").([]any); !ok || len(got) != 0 {
		t.Errorf("%v, want an empty list", got)
	}
	if got := field(t, node(load(t, "pools: [{name: a}]"), 0, "v1.37.0"), "InitConfiguration", "nodeRegistration", "taints"); got != nil {
		t.Errorf("%v, want none", got)
	}
}

// TestNameOfOldPatches: a name that kind's early documentation puts into patches is removed.
func TestNameOfOldPatches(t *testing.T) {
	c := load(t, "kubeadmConfigPatches: ['{kind: ClusterConfiguration, metadata: {name: config}, clusterName: other}', '{kind: KubeletConfiguration, metadata: {name: mine}}']")
	n := node(c, 0, "v1.37.0")
	if field(t, n, "ClusterConfiguration", "metadata") != nil || field(t, n, "ClusterConfiguration", "clusterName") != "other" {
		t.Error("the patch's name was kept, or the patch left out")
	}
	if field(t, n, "KubeletConfiguration", "metadata") == nil {
		t.Error("a name that is not ours is kubeadm's to judge")
	}
}

func TestErrors(t *testing.T) {
	none := netip.Addr{}
	for text, c := range map[string]struct {
		v4, v6 netip.Addr
		kind   error
		want   string
	}{
		"networking: {ipFamily: ipv6}": {netip.MustParseAddr("10.0.0.1"), none, errs.Unavailable, "failed to get IPv6 address for node berth-control-plane; is podman configured to use IPv6 correctly?"},
		"networking: {ipFamily: dual}": {none, netip.MustParseAddr("fd00::1"), errs.Unavailable, "failed to get IPv4 address for node berth-control-plane"},
		"name: a":                      {none, none, errs.Unavailable, "cannot make the kubeadm configuration of a-control-plane: failed to get IPv4"},
		"kubeadmConfigPatchesJSON6902: [{kind: ClusterConfiguration, patch: '[{op: remove, path: /none}]'}]":                                    {netip.MustParseAddr("10.0.0.1"), none, errs.Invalid, "patches of the cluster: cannot apply a JSON patch to ClusterConfiguration"},
		"nodes: [{kubeadmConfigPatches: ['{kind: ClusterConfiguration, apiVersion: kubeadm.k8s.io/v1beta4, apiServer: {extraArgs: {a: b}}}']}]": {netip.MustParseAddr("10.0.0.1"), none, errs.Invalid, "patches of the node: cannot merge a patch into ClusterConfiguration"},
	} {
		n := node(load(t, text), 0, "v1.37.0")
		n.IPv4, n.IPv6 = c.v4, c.v6
		if _, err := Config(n); !errors.Is(err, c.kind) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v; want %s", text, err, c.want)
		}
	}
}

func TestNewToken(t *testing.T) {
	first := NewToken()
	if !regexp.MustCompile(`^[a-z0-9]{6}\.[a-z0-9]{16}$`).MatchString(first) || first == NewToken() {
		t.Errorf("%q is no token, or the same each time", first)
	}
}

func TestNewer(t *testing.T) {
	for pair, want := range map[[2]string]bool{
		{"v1.36.3", "v1.36.0"}: false, {"v1.37.0", "v1.36.3"}: true, {"v1.35.9", "v1.36.0"}: false, {"v2.0.0", "v1.36.0"}: true,
	} {
		if got, err := Newer(pair[0], pair[1]); err != nil || got != want {
			t.Errorf("%v: %v, %v", pair, got, err)
		}
	}
	if _, err := Newer("v1.36.0", "new"); !errors.Is(err, errs.Invalid) {
		t.Errorf("no version: %v", err)
	}
}
