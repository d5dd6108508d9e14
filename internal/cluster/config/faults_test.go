package config

import (
	"errors"
	"strings"
	"testing"

	"github.com/berthrun/berth/internal/errs"
)

// TestFaults: each description has one fault, or the listed ones. Lines count from 3, after the
// head.
func TestFaults(t *testing.T) {
	node := func(text string) string { return "nodes:\n- " + text }
	cases := map[string]struct{ text, want string }{
		"unknown field":        {"nodez: []", "f:3:1: nodez: no such field; did you mean nodes?"},
		"field of ours":        {node("{name: a}"), "f:4:4: nodes[0].name: no such field; "},
		"role":                 {node("{role: workr}"), `f:4:4: nodes[0].role: unknown node role: "workr"; want one of control-plane, worker; did you mean worker?`},
		"role of the balancer": {node("{role: external-load-balancer}"), `unknown node role: "external-load-balancer"`},
		"no control plane":     {node("{role: worker}"), "f:3:1: nodes: must have at least one control-plane node"},
		"image":                {node("{image: Upper/Case}"), `f:4:4: nodes[0].image: "Upper/Case" is not an image name: `},
		"image is a list":      {node("{image: [a]}"), "f:4:4: nodes[0].image: a list: want a string"},
		"name":                 {"name: Upper", `f:3:1: name: "Upper" is not a valid cluster name; want small letters`},
		"name with a dash":     {"name: -a", `"-a" is not a valid cluster name`},
		"name with a slash":    {"name: a/b", `"a/b" is not a valid cluster name`},
		"name too long":        {"name: " + strings.Repeat("a", 50), "a node's name has at most 63 letters; this one has 64"},
		"balancer's name":      {"name: " + strings.Repeat("a", 41) + "\nnodes: [{}, {}]", "-external-load-balancer\": the load balancer of several control planes has a name of at most 63 letters; this one has 64"},
		"label":                {node("{labels: {a b: c}}"), `f:4:13: nodes[0].labels["a b"]: "a b" is not a label: `},
		"label's value":        {node("{labels: {a: \"b c\"}}"), `nodes[0].labels.a: "b c" cannot be a label's value: `},
		"label of Kubernetes":  {node("{labels: {node-role.kubernetes.io/worker: \"\"}}"), "a kubelet may not give itself labels of node-role.kubernetes.io"},

		"mount without a path":  {node("{extraMounts: [{containerPath: /a}]}"), "f:4:18: nodes[0].extraMounts[0].hostPath: is missing"},
		"mount in a wrong path": {node("{extraMounts: [{containerPath: a, hostPath: /a}]}"), `extraMounts[0].containerPath: "a": want an absolute path other than /`},
		"mount in the root":     {node("{extraMounts: [{containerPath: /a/.., hostPath: /a}]}"), `"/a/..": want an absolute path other than /`},
		"mount with a colon":    {node("{extraMounts: [{containerPath: \"/a:b\", hostPath: \"/c:d\"}]}"), `containerPath: "/a:b": container engines take a path with : apart`},
		"mount twice":           {node("{extraMounts: [{containerPath: /a, hostPath: /a}, {containerPath: /a/, hostPath: /b}]}"), `extraMounts[1].containerPath: "/a": is there twice`},
		"mount of a home":       {node("{extraMounts: [{containerPath: /a, hostPath: ~/a}]}"), `"~/a": ~ is not expanded in a file`},
		"propagation":           {node("{extraMounts: [{containerPath: /a, hostPath: /a, propagation: Private}]}"), `unknown mount propagation: "Private"; want one of None, HostToContainer, Bidirectional`},
		"readOnly":              {node("{extraMounts: [{containerPath: /a, hostPath: /a, readOnly: 1}]}"), `readOnly: "1": want true or false`},

		"containerPort":            {node("{extraPortMappings: [{containerPort: 65536}]}"), "containerPort: 65536: want 1 to 65535"},
		"containerPort missing":    {node("{extraPortMappings: [{hostPort: 80}]}"), "containerPort: is missing"},
		"containerPort, a word":    {node("{extraPortMappings: [{containerPort: http}]}"), `containerPort: "http": want a whole number`},
		"hostPort":                 {node("{extraPortMappings: [{containerPort: 80, hostPort: -2}]}"), "hostPort: -2: want 1 to 65535, 0 for a free port, or -1"},
		"listenAddress":            {node("{extraPortMappings: [{containerPort: 80, listenAddress: localhost}]}"), `listenAddress: "localhost": want an IP address of the host`},
		"protocol":                 {node("{extraPortMappings: [{containerPort: 80, protocol: http}]}"), "unknown port mapping protocol: HTTP; want one of TCP, UDP, SCTP"},
		"port twice":               {node("{extraPortMappings: [{containerPort: 80, hostPort: 80}, {containerPort: 81, hostPort: 80, protocol: tcp}]}"), "f:4:59: nodes[0].extraPortMappings[1]: port mapping with same listen address, port and protocol already configured: 0.0.0.0:80/TCP (nodes[0].extraPortMappings[0])"},
		"port twice, all of IPv6":  {node("{extraPortMappings: [{containerPort: 80, hostPort: 80, listenAddress: 127.0.0.1}, {containerPort: 81, hostPort: 80, listenAddress: \"::\"}]}"), "already configured: [::]:80/TCP"},
		"port twice, on two nodes": {"nodes: [{extraPortMappings: [{containerPort: 80, hostPort: 80}]}, {role: worker, extraPortMappings: [{containerPort: 80, hostPort: 80}]}]", "nodes[1].extraPortMappings[0]: port mapping with same"},
		"port of the API":          {"networking: {apiServerPort: 80}\n" + node("{extraPortMappings: [{containerPort: 80, hostPort: 80}]}"), "(networking.apiServerPort)"},

		"ipFamily":               {"networking: {ipFamily: ipv5}", "f:3:14: networking.ipFamily: unknown cluster IP family: ipv5; want one of ipv4, ipv6, dual; did you mean ipv4?"},
		"apiServerPort":          {"networking: {apiServerPort: 65536}", "networking.apiServerPort: 65536: want 1 to 65535"},
		"apiServerPort, text":    {"networking: {apiServerPort: \"6443\"}", `networking.apiServerPort: "6443": want a whole number`},
		"apiServerAddress":       {"networking: {apiServerAddress: example.org}", `networking.apiServerAddress: "example.org": want an IP address of the host`},
		"podSubnet":              {"networking: {podSubnet: 10.244.0.0}", `networking.podSubnet: "10.244.0.0": want a CIDR such as`},
		"podSubnet, two":         {"networking: {podSubnet: \"10.244.0.0/16,fd00::/56\"}", "only one CIDR allowed for single-stack networking"},
		"podSubnet of IPv6":      {"networking: {podSubnet: \"fd00::/56\"}", "expected IPv4 CIDR for IPv4 family"},
		"podSubnet of IPv4":      {"networking: {ipFamily: ipv6, podSubnet: 10.0.0.0/16}", "expected IPv6 CIDR for IPv6 family"},
		"podSubnet, three":       {"networking: {ipFamily: dual, podSubnet: \"10.0.0.0/16,fd00::/56,fd01::/56\"}", "expected one (IPv4 or IPv6) CIDR or two CIDRs from each family"},
		"podSubnet, same family": {"networking: {ipFamily: dual, podSubnet: \"10.0.0.0/16,10.1.0.0/16\"}", "two CIDRs from each family"},
		"podSubnet, small":       {"networking: {podSubnet: 10.0.0.0/25}", "10.0.0.0/25 has no /24 for each of 1 nodes"},
		"podSubnet, few":         {"networking: {podSubnet: 10.0.0.0/23}\nnodes: [{}, {role: worker}, {role: worker}]", "10.0.0.0/23 has no /24 for each of 3 nodes"},
		"podSubnet, huge":        {"networking: {ipFamily: ipv6, podSubnet: \"fd00::/40\"}", "fd00::/40 is too large to be cut in /64"},
		"podSubnet, loopback":    {"networking: {podSubnet: 127.0.0.0/16}", "networking.podSubnet: 127.0.0.0/16 has addresses of 127.0.0.0/8, which are for loopback"},
		"podSubnet, multicast":   {"networking: {ipFamily: ipv6, podSubnet: \"ff00::/56\"}", "networking.podSubnet: ff00::/56 has addresses of ff00::/8"},
		"podSubnet, all":         {"networking: {podSubnet: 0.0.0.0/8}", "networking.podSubnet: 0.0.0.0/8 has addresses of 0.0.0.0/8"},
		"serviceSubnet, special": {"networking: {serviceSubnet: 224.0.0.0/16}", "networking.serviceSubnet: 224.0.0.0/16 has addresses of 224.0.0.0/4"},
		"serviceSubnet":          {"networking: {serviceSubnet: 10.96.0.0/33}", `networking.serviceSubnet: "10.96.0.0/33": want a CIDR`},
		"serviceSubnet, huge":    {"networking: {serviceSubnet: 10.0.0.0/8, podSubnet: 172.16.0.0/16}", "10.0.0.0/8: want a prefix of /12 to /28"},
		"serviceSubnet, tiny":    {"networking: {serviceSubnet: 10.96.0.0/29}", "10.96.0.0/29: want a prefix of /12 to /28"},
		"subnets overlap":        {"networking: {serviceSubnet: 10.244.3.0/24}", "networking.serviceSubnet: 10.244.3.0/24 overlaps 10.244.0.0/16, the pods'"},
		"kubeProxyMode":          {"networking: {kubeProxyMode: ebpf}", `unknown kube-proxy mode: "ebpf"; want one of iptables, ipvs, nftables, none`},
		"dnsSearch":              {"networking: {dnsSearch: [\"a b\"]}", `networking.dnsSearch[0]: "a b": want a domain`},
		"disableDefaultCNI":      {"networking: {disableDefaultCNI: maybe}", `"maybe": want true or false`},

		"featureGates":        {"featureGates: {\"A,B\": true}", `featureGates.A,B: "A,B" is not a feature gate`},
		"featureGates' value": {"featureGates: {A: 1}", `featureGates.A: "1": want true or false`},
		"runtimeConfig":       {"runtimeConfig: {\"a,b\": \"true\"}", `runtimeConfig.a,b: "a,b": want a group and version`},
		"runtimeConfig value": {"runtimeConfig: {a: \"true,b=c\"}", `runtimeConfig.a: "true,b=c": want true or false`},

		"runtimeConfig, a word": {"runtimeConfig: {api/all: maybe}", `runtimeConfig.api/all: "maybe": want true or false`},

		"kubeadm patch":         {"kubeadmConfigPatches: ['a: [']", "f:3:24: kubeadmConfigPatches[0]: yaml: "},
		"kubeadm patch, a list": {"kubeadmConfigPatches: {a: b}", "kubeadmConfigPatches: a mapping: want a list"},
		"kubeadm patch, kind":   {"kubeadmConfigPatches: ['a: b']", "kubeadmConfigPatches[0]: a patch must say the kind"},
		"JSON patch":            {"kubeadmConfigPatchesJSON6902: [{kind: ClusterConfiguration, patch: '{}'}]", "kubeadmConfigPatchesJSON6902[0].patch: a JSON patch is a list of operations"},
		"JSON patch, group":     {"kubeadmConfigPatchesJSON6902: [{group: a, kind: ClusterConfiguration, patch: '[]'}]", "kubeadmConfigPatchesJSON6902[0].version: is missing: the group a has several"},
		"JSON patch, kind":      {"kubeadmConfigPatchesJSON6902: [{patch: '[]'}]", "kubeadmConfigPatchesJSON6902[0].kind: is missing"},
		"patch of a node":       {node("{kubeadmConfigPatches: ['- a']}"), "nodes[0].kubeadmConfigPatches[0]: []interface {} is no Kubernetes document; want a mapping"},
		"containerd patch":      {"containerdConfigPatches: ['[a']", "containerdConfigPatches[0]: is no TOML: line 1: "},
		"containerd JSON patch": {"containerdConfigPatchesJSON6902: ['[{op: set, path: /a}]']", `containerdConfigPatchesJSON6902[0]: operation 1: "set": want one of`},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			_, err := Load("f", []byte(kindHead+c.text+"\n"), Options{})
			if !errors.Is(err, errs.Invalid) {
				t.Fatalf("%v", err)
			}
			if lines := strings.Split(err.Error(), "\n"); !strings.Contains(lines[0], c.want) {
				t.Errorf("%s\nwant: %s", err, c.want)
			}
		})
	}
}

// TestFaultsOfOurs: faults in fields that kind's format does not have.
func TestFaultsOfOurs(t *testing.T) {
	for text, want := range map[string]string{
		"nodes: [{name: a}, {role: worker, name: a}]":                                        `f:3:35: nodes[1].name: "berth-a": is the name of nodes[0].name, too`,
		"nodes: [{}, {role: worker, name: registry}]":                                        `f:3:28: nodes[1].name: "berth-registry": is the name of the registry, too`,
		"nodes: [{}, {role: worker}]\npools: [{name: worker}]":                               `f:4:10: pools[0].name: "berth-worker": is the name of nodes[1], too`,
		"pools: [{name: a, count: 3}, {name: a2}]":                                           `pools[1].name: "berth-a2": is the name of pools[0].name, too`,
		"nodes: [{name: external-load-balancer}]":                                            `is the name of the load balancer, too`,
		"nodes: [{name: A_b}]":                                                               `nodes[0].name: "berth-A_b" is not a valid node name`,
		"pools: [{count: 2}]":                                                                "pools[0].name: is missing",
		"pools: [{name: a, count: -1}]":                                                      "pools[0].count: -1: want 0 to 250",
		"pools: [{name: a, count: 251}]":                                                     "pools[0].count: 251: want 0 to 250",
		"pools: [{name: a, count: many}]":                                                    `pools[0].count: "many": want a whole number`,
		"pools: [{name: a, role: control-plane, count: 0}]":                                  "must have at least one control-plane node",
		"pools: [{name: a, count: 2, extraPortMappings: [{containerPort: 1, hostPort: 2}]}]": "hostPort: 2: the pool's 2 nodes cannot all have it",
		"registry: {port: 65536}":                                                            "registry.port: 65536: want 1 to 65535",
		"registry: {enabled: true}\nnetworking: {apiServerPort: 5001}":                       "f:3:1: registry.port: port mapping with same",
		"registries: [{host: https://docker.io}]":                                            `registries[0].host: "https://docker.io": want a host`,
		"registries: [{host: 'a:65536'}]":                                                    `registries[0].host: "a:65536": port 65536: want 1 to 65535`,
		"registries: [{host: '[::1]:0'}]":                                                    `registries[0].host: "[::1]:0": port 0: want 1 to 65535`,
		"registries: [{host: a}, {host: a}]":                                                 `registries[1].host: "a": is there twice`,
		"registries: [{host: '*', server: 'https://a'}]":                                     "has no place under *",
		"registries: [{host: a, mirrors: [{url: mirror.example}]}]":                          `registries[0].mirrors[0].url: "mirror.example": has no scheme`,
		"nodes: [{registries: [{host: a, mirrors: [{url: 'https://u:p@b'}]}]}]":              "nodes[0].registries[0].mirrors[0].url: has a password in it",
		"registries: [{host: a, clientKey: k}]":                                              `registries[0].clientKey: is of no use alone; set clientCert, too`,
		"registries: [{host: a, mirrors: [{url: 'https://b', capabilities: [x]}]}]":          `capabilities[0]: "x": want one of pull, resolve, push`,
		"networking: {dnsSearch: [1]}":                                                       `"1": want a string`,
	} {
		_, err := Load("f", []byte(ourHead+text+"\n"), Options{})
		if !errors.Is(err, errs.Invalid) || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v\nwant: %s", text, err, want)
		}
	}
}

func TestFaultsOfTheHead(t *testing.T) {
	for text, want := range map[string]string{
		"":          "f:1:1: the document is empty",
		"a: [":      "f:",
		"nodes: []": "f:1:1: apiVersion: is missing; want berth.run/v1alpha1, or kind's kind.x-k8s.io/v1alpha4",
		"[]":        "f:1:1: a list: want a mapping",
		"kind: Cluster\napiVersion: kind.sigs.k8s.io/v1alpha3\nunknown: 1": `f:2:1: apiVersion: unknown apiVersion: "kind.sigs.k8s.io/v1alpha3"; want `,
		"kind: Node\napiVersion: berth.run/v1alpha1":                       "f:1:1: kind: \"Node\" is for `berth node`; want Cluster",
		"kind: Clustr\napiVersion: kind.x-k8s.io/v1alpha4":                 `f:1:1: kind: "Clustr": want one of Cluster; did you mean Cluster?`,
		"apiVersion: kind.x-k8s.io/v1alpha4":                               "f:1:1: kind: is missing",
		kindHead + "---\n" + kindHead:                                      "f:3:1: a second document begins",
	} {
		if _, err := Load("f", []byte(text), Options{}); !errors.Is(err, errs.Invalid) || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v\nwant: %s", text, err, want)
		}
	}
	if _, err := Default(Options{Name: "A"}); err == nil || !strings.HasPrefix(err.Error(), `"A" is not a valid cluster name`) {
		t.Errorf("%v", err)
	}
	if _, err := Default(Options{Image: "A"}); err == nil || !strings.HasPrefix(err.Error(), `"A" is not an image name`) {
		t.Errorf("%v", err)
	}
}

// TestAllFaultsAreTold: all faults are reported together, in the order of the file.
func TestAllFaultsAreTold(t *testing.T) {
	_, err := Load("f", []byte(kindHead+"name: A\nnodes:\n- role: boss\n- role: worker\n  image: B\nnetworking: {ipFamily: x, podSubnet: y}\nfeatureGates: {a b: true}\n"), Options{})
	if err == nil {
		t.Fatal("was taken")
	}
	var places []string
	for _, line := range strings.Split(err.Error(), "\n") {
		place, _, _ := strings.Cut(strings.TrimPrefix(line, "f:"), ": ")
		places = append(places, place)
	}
	if got := strings.Join(places, " "); got != "3:1 5:3 7:3 8:14 9:16" {
		t.Errorf("faults at %s:\n%v", got, err)
	}
}

// TestWhatIsNoFault: berth accepts these descriptions, as kind does.
func TestWhatIsNoFault(t *testing.T) {
	for _, text := range []string{
		"nodes: [{extraPortMappings: [{containerPort: 80}, {containerPort: 80}, {containerPort: 81, hostPort: -1}, {containerPort: 82, hostPort: -1}]}]",
		"nodes: [{extraPortMappings: [{containerPort: 80, hostPort: 80}, {containerPort: 80, hostPort: 80, protocol: UDP}]}]",
		"nodes: [{extraPortMappings: [{containerPort: 80, hostPort: 80, listenAddress: 127.0.0.1}, {containerPort: 80, hostPort: 80, listenAddress: 127.0.0.2}]}]",
		"networking: {ipFamily: dual, podSubnet: \"10.0.0.0/16\", serviceSubnet: \"fd00::/112\"}",
		"networking: {apiServerPort: -1, dnsSearch: []}",
		"networking: {podSubnet: 10.0.0.0/25}\nkubeadmConfigPatches: ['{kind: ClusterConfiguration, controllerManager: {extraArgs: {node-cidr-mask-size: \"27\"}}}']",
		"nodes: [{image: 'sha256:" + strings.Repeat("0", 64) + "', labels: {node.kubernetes.io/pool: a, topology.kubernetes.io/zone: b}}]",
		"name: " + strings.Repeat("a", 49),
		"name: " + strings.Repeat("a", 40) + "\nnodes: [{}, {}]",
		"name: null\nnodes: null\nnetworking: null",
	} {
		if _, err := Load("f", []byte(kindHead+text+"\n"), Options{}); err != nil {
			t.Errorf("%s: %v", text, err)
		}
	}
}

func FuzzLoad(f *testing.F) {
	f.Add(kindHead + "nodes: [{role: worker}]")
	f.Add(ourHead + "pools: [{name: a, count: 3}]")
	f.Fuzz(func(_ *testing.T, text string) {
		_, _ = Load("f", []byte(text), Options{Dir: "/"}) // must not panic or hang
	})
}
