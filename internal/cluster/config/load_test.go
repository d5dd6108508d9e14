package config

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/registries"
)

const (
	kindHead = "apiVersion: kind.x-k8s.io/v1alpha4\nkind: Cluster\n"
	ourHead  = "apiVersion: berth.run/v1alpha1\nkind: Cluster\n"
)

// TestEveryFieldOfKind reads a file that sets every field.
func TestEveryFieldOfKind(t *testing.T) {
	text := kindHead + `name: full
featureGates: {NodeSwap: true, "AllAlpha": no}
runtimeConfig: {"api/alpha": false, batch/v2alpha1: "true"}
kubeadmConfigPatches:
- |
  kind: ClusterConfiguration
  apiServer: {extraArgs: {v: "4"}}
kubeadmConfigPatchesJSON6902:
- group: kubeadm.k8s.io
  version: v1beta4
  kind: ClusterConfiguration
  patch: |
    - {op: add, path: /apiServer/certSANs/-, value: me.example}
containerdConfigPatches:
- |-
  [plugins."io.containerd.grpc.v1.cri".registry]
    config_path = "/etc/containerd/certs.d"
containerdConfigPatchesJSON6902:
- '[{"op": "add", "path": "/oom_score", "value": -999}]'
networking:
  ipFamily: dual
  apiServerAddress: 0.0.0.0
  apiServerPort: 6443
  podSubnet: fd00:1::/56,10.10.0.0/16
  serviceSubnet: fd00:2::/112,10.11.0.0/16
  disableDefaultCNI: true
  kubeProxyMode: nftables
  dnsSearch: [corp.example]
nodes:
- role: control-plane
  image: kindest/node:v1.36.0@sha256:0000000000000000000000000000000000000000000000000000000000000000
  extraPortMappings:
  - {containerPort: 80, hostPort: 8080, listenAddress: 127.0.0.1, protocol: udp}
  - {containerPort: 81}
  - {containerPort: 82, hostPort: -1, protocol: SCTP}
- role: worker
  labels: {tier: frontend, zone: 1}
  extraMounts:
  - {hostPath: ./files, containerPath: /files, readOnly: true, selinuxRelabel: true, propagation: Bidirectional}
  - {hostPath: /abs, containerPath: /abs}
  kubeadmConfigPatches: ["kind: JoinConfiguration\nnodeRegistration: {taints: []}"]
  kubeadmConfigPatchesJSON6902:
  - {group: kubeadm.k8s.io, version: v1beta4, kind: JoinConfiguration, patch: "[]"}
`
	got, err := Load("f", []byte(text), Options{Dir: "/here"})
	if err != nil {
		t.Fatal(err)
	}
	want := &Cluster{
		APIVersion: APIVersion, Kind: Kind, Name: "full", FromKind: true, Registry: BuiltIn{Port: 5001},
		Settings: Settings{
			Networking: Networking{
				IPFamily: DualStack, APIServerAddress: "0.0.0.0", APIServerPort: 6443, PodSubnet: "fd00:1::/56,10.10.0.0/16",
				ServiceSubnet: "fd00:2::/112,10.11.0.0/16", DisableDefaultCNI: true, KubeProxyMode: ProxyNFTables, DNSSearch: &[]string{"corp.example"},
			},
			FeatureGates:         map[string]bool{"NodeSwap": true, "AllAlpha": false},
			RuntimeConfig:        map[string]string{"api/alpha": "false", "batch/v2alpha1": "true"},
			KubeadmConfigPatches: []string{"kind: ClusterConfiguration\napiServer: {extraArgs: {v: \"4\"}}\n"},
			KubeadmConfigPatchesJSON6902: []PatchJSON6902{{
				Group: "kubeadm.k8s.io", Version: "v1beta4", Kind: "ClusterConfiguration",
				Patch: "- {op: add, path: /apiServer/certSANs/-, value: me.example}\n",
			}},
			ContainerdConfigPatches:         []string{"[plugins.\"io.containerd.grpc.v1.cri\".registry]\n  config_path = \"/etc/containerd/certs.d\""},
			ContainerdConfigPatchesJSON6902: []string{`[{"op": "add", "path": "/oom_score", "value": -999}]`},
		},
		Nodes: []Node{
			{Name: "control-plane", NodeSettings: NodeSettings{
				Role: ControlPlane, Image: "kindest/node:v1.36.0@sha256:" + strings.Repeat("0", 64),
				ExtraPortMappings: []PortMapping{
					{ContainerPort: 80, HostPort: 8080, ListenAddress: "127.0.0.1", Protocol: UDP},
					{ContainerPort: 81, Protocol: TCP},
					{ContainerPort: 82, HostPort: EnginePort, Protocol: SCTP},
				},
			}},
			{Name: "worker", NodeSettings: NodeSettings{
				Role: Worker, Image: DefaultImage, Labels: map[string]string{"tier": "frontend", "zone": "1"},
				ExtraMounts: []Mount{
					{HostPath: "/here/files", ContainerPath: "/files", ReadOnly: true, SELinuxRelabel: true, Propagation: PropagateBidirectional},
					{HostPath: "/abs", ContainerPath: "/abs", Propagation: PropagateNone},
				},
				KubeadmConfigPatches:         []string{"kind: JoinConfiguration\nnodeRegistration: {taints: []}"},
				KubeadmConfigPatchesJSON6902: []PatchJSON6902{{Group: "kubeadm.k8s.io", Version: "v1beta4", Kind: "JoinConfiguration", Patch: "[]"}},
			}},
		},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

// TestDefaults: the values of unset fields, by IP family.
func TestDefaults(t *testing.T) {
	type said struct{ name, api, pods, services string }
	for text, want := range map[string]said{
		kindHead: {"kind", "127.0.0.1", "10.244.0.0/16", "10.96.0.0/16"},
		ourHead:  {"berth", "127.0.0.1", "10.244.0.0/16", "10.96.0.0/16"},
		kindHead + "networking: {ipFamily: ipv6}":                               {"kind", "::1", "fd00:10:244::/56", "fd00:10:96::/112"},
		kindHead + "networking: {ipFamily: dual}":                               {"kind", "127.0.0.1", "10.244.0.0/16,fd00:10:244::/56", "10.96.0.0/16,fd00:10:96::/112"},
		kindHead + "networking: {ipFamily: ipv6, apiServerAddress: 127.0.0.1}":  {"kind", "127.0.0.1", "fd00:10:244::/56", "fd00:10:96::/112"},
		kindHead + "networking: {ipFamily: \"\", kubeProxyMode: \"\"}\nname: x": {"x", "127.0.0.1", "10.244.0.0/16", "10.96.0.0/16"},
	} {
		c, err := Load("f", []byte(text), Options{})
		if err != nil {
			t.Errorf("%s: %v", text, err)
			continue
		}
		n := c.Networking
		if diff := cmp.Diff(want, said{c.Name, n.APIServerAddress, n.PodSubnet, n.ServiceSubnet}, cmp.AllowUnexported(said{})); diff != "" {
			t.Errorf("%s: %s", text, diff)
		}
		if len(c.Nodes) != 1 || c.Nodes[0].Role != ControlPlane || c.Nodes[0].Image != DefaultImage || n.KubeProxyMode != ProxyIPTables || n.DNSSearch != nil {
			t.Errorf("%s: %+v", text, c)
		}
	}
	c, err := Default(Options{Name: "given", Image: "image:1"})
	if err != nil || c.Name != "given" || c.Nodes[0].Image != "image:1" {
		t.Errorf("%+v, %v", c, err)
	}
}

// TestNamesOfNodes: nodes are numbered as in kind. Nodes of pools and named nodes have their own
// names.
func TestNamesOfNodes(t *testing.T) {
	for text, want := range map[string]string{
		kindHead + "nodes: [{role: worker}, {role: control-plane}, {role: control-plane}, {role: worker}]": "kind-worker kind-control-plane kind-control-plane2 kind-worker2",
		ourHead + "name: a\nnodes: [{role: control-plane}, {role: worker, name: db}]\npools: [{name: web, count: 3}, {name: none, count: 0}, {name: worker, count: 2}]": "" +
			"a-control-plane a-db a-web a-web2 a-web3 a-worker a-worker2",
		ourHead + "pools: [{name: web}]":                                                          "berth-control-plane berth-web",
		ourHead + "pools: [{name: cp, role: control-plane, count: 3}]":                            "berth-cp berth-cp2 berth-cp3",
		kindHead + "nodes: [&n {labels: {a: b}}, {<<: *n, role: worker}, {<<: *n, role: worker}]": "kind-control-plane kind-worker kind-worker2",
	} {
		c, err := Load("f", []byte(text), Options{})
		if err != nil {
			t.Errorf("%s: %v", text, err)
			continue
		}
		var names []string
		for _, n := range c.Nodes {
			names = append(names, c.ContainerName(n))
		}
		if got := strings.Join(names, " "); got != want {
			t.Errorf("%s: %s; want %s", text, got, want)
		}
	}
}

// TestRegistries: an entry of a node replaces that of the cluster.
func TestRegistries(t *testing.T) {
	c, err := Load("f", []byte(ourHead+`registry: {enabled: true}
registries:
- {host: docker.io, mirrors: [{url: "https://a.example", ca: [ca.pem], clientCert: a.cert, clientKey: a.key, credentials: a.auth}]}
- {host: quay.io, ca: [/q.pem], clientCert: me.pem, skipVerify: true}
nodes:
- registries: [{host: docker.io, mirrors: [{url: "http://b.example", capabilities: [pull]}]}]
- {role: worker}
`), Options{Dir: "/d"})
	if err != nil {
		t.Fatal(err)
	}
	both := []string{"pull", "resolve"}
	quay := registries.Registry{Host: "quay.io", Access: registries.Access{CA: []string{"/q.pem"}, SkipVerify: true, ClientCert: "/d/me.pem"}}
	want := [][]registries.Registry{
		{{Host: "docker.io", Mirrors: []registries.Mirror{{URL: "http://b.example", Capabilities: []string{"pull"}}}}, quay},
		{{Host: "docker.io", Mirrors: []registries.Mirror{{URL: "https://a.example", Capabilities: both, Access: registries.Access{
			CA: []string{"/d/ca.pem"}, ClientCert: "/d/a.cert", ClientKey: "/d/a.key", Credentials: "/d/a.auth",
		}}}}, quay},
	}
	if diff := cmp.Diff(want, [][]registries.Registry{c.Nodes[0].Registries, c.Nodes[1].Registries}); diff != "" {
		t.Error(diff)
	}
	if c.Registry != (BuiltIn{true, 5001}) {
		t.Errorf("%+v", c.Registry)
	}
}

func TestWarnings(t *testing.T) {
	c, err := Load("f", []byte(kindHead+"kubeadmConfigPatches: ['kind: ClusterConfig']\n"), Options{})
	if err != nil {
		t.Fatal(err)
	}
	want := "f:3:24: kubeadmConfigPatches[0]: the patch changes nothing: there is no document of kind ClusterConfig; there are " +
		"ClusterConfiguration, InitConfiguration, JoinConfiguration, KubeletConfiguration, KubeProxyConfiguration"
	if len(c.Warnings) != 1 || c.Warnings[0].String() != want {
		t.Errorf("%v; want %s", c.Warnings, want)
	}
}

// TestPatchesForNobody: a warning names documents that kubeadm does not read on a node.
func TestPatchesForNobody(t *testing.T) {
	patch := func(kind string) string { return "kubeadmConfigPatches: ['kind: " + kind + "']" }
	op := func(kind string) string {
		return "kubeadmConfigPatchesJSON6902: [{kind: " + kind + ", patch: '[{op: add, path: /a, value: b}]'}]"
	}
	for text, want := range map[string]string{
		"nodes: [{role: worker, " + patch("KubeletConfiguration") + "}, {}]":                                                     "nodes[0].kubeadmConfigPatches[0]: the patch changes nothing: kubeadm reads KubeletConfiguration on the first control plane",
		"nodes: [{}, {role: worker, " + op("KubeProxyConfiguration") + "}]":                                                      "nodes[1].kubeadmConfigPatchesJSON6902[0].kind: the patch changes nothing: kubeadm reads KubeProxyConfiguration",
		"nodes: [{}, {role: control-plane, " + patch("ClusterConfiguration") + "}]":                                              "nodes[1].kubeadmConfigPatches[0]: the patch changes nothing: kubeadm reads ClusterConfiguration",
		"nodes: [{}, {role: worker, " + patch("InitConfiguration") + "}]":                                                        "this node joins; want JoinConfiguration",
		"nodes: [{" + patch("JoinConfiguration") + "}, {role: worker}]":                                                          "does not join; want InitConfiguration",
		"pools: [{name: a, " + patch("KubeletConfiguration") + "}]":                                                              "pools[0].kubeadmConfigPatches[0]: the patch changes nothing",
		"pools: [{name: a, role: control-plane, " + patch("JoinConfiguration") + "}]":                                            "does not join",
		"nodes: [{role: worker}, {" + patch("KubeletConfiguration") + "}]":                                                       "",
		"nodes: [{" + patch("InitConfiguration") + "}, {" + patch("JoinConfiguration") + "}]":                                    "",
		"pools: [{name: a, role: control-plane, count: 3, " + patch("JoinConfiguration") + ", " + op("InitConfiguration") + "}]": "",
		patch("JoinConfiguration"): "",
	} {
		c, err := Load("f", []byte(ourHead+text+"\n"), Options{})
		switch {
		case err != nil:
			t.Errorf("%s: %v", text, err)
		case want == "" && len(c.Warnings) > 0:
			t.Errorf("%s: %v", text, c.Warnings)
		case want != "" && (len(c.Warnings) != 1 || !strings.Contains(c.Warnings[0].String(), want)):
			t.Errorf("%s: %v, want %q", text, c.Warnings, want)
		}
	}
}

func TestReadFile(t *testing.T) {
	name, data, err := ReadFile("-", strings.NewReader("text"))
	if name != "stdin" || string(data) != "text" || err != nil {
		t.Errorf("%s %q %v", name, data, err)
	}
	dir := t.TempDir()
	if _, _, err := ReadFile(filepath.Join(dir, "none"), nil); !errors.Is(err, errs.NotFound) {
		t.Errorf("%v", err)
	}
	if _, _, err := ReadFile(dir, nil); err == nil {
		t.Error("a directory was read")
	}
	file := filepath.Join(dir, "f")
	if err := os.WriteFile(file, []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	if name, data, err := ReadFile(file, nil); name != file || string(data) != "x" || err != nil {
		t.Errorf("%s %q %v", name, data, err)
	}
	if _, _, err := ReadFile("-", strings.NewReader(strings.Repeat("#", maxFile+1))); !errors.Is(err, errs.Invalid) {
		t.Errorf("a huge file: %v", err)
	}
}
