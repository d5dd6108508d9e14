package cluster

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/berthrun/berth/internal/cluster/clustertest"
	"github.com/berthrun/berth/internal/cluster/config"
	"github.com/berthrun/berth/internal/cluster/noderuntime"
	"github.com/berthrun/berth/internal/cluster/plan"
	"github.com/berthrun/berth/internal/cluster/provider"
)

// TestNoFieldIsIgnored: each field of kind's format changes the cluster, or causes a warning. A new
// field needs an entry here.
func TestNoFieldIsIgnored(t *testing.T) {
	const mount, port = "{containerPath: /c, hostPath: /h}", "{containerPort: 80, hostPort: 8080}"
	inNode := func(text string) string { return "nodes: [{role: control-plane}, {role: worker, " + text + "}]\n" }
	in := func(list, entry string) string { return inNode(list + ": [" + entry + "]") }
	fields := map[string][2]string{ // a description without, and one with the field
		"name":                                  {"", "name: other\n"},
		"networking.ipFamily":                   {"", "networking: {ipFamily: dual}\n"},
		"networking.apiServerPort":              {"", "networking: {apiServerPort: 6550}\n"},
		"networking.apiServerAddress":           {"", "networking: {apiServerAddress: 127.0.0.2}\n"},
		"networking.podSubnet":                  {"", "networking: {podSubnet: 10.1.0.0/16}\n"},
		"networking.serviceSubnet":              {"", "networking: {serviceSubnet: 10.2.0.0/16}\n"},
		"networking.disableDefaultCNI":          {"", "networking: {disableDefaultCNI: true}\n"},
		"networking.kubeProxyMode":              {"", "networking: {kubeProxyMode: nftables}\n"},
		"networking.dnsSearch":                  {"", "networking: {dnsSearch: [corp.example]}\n"},
		"featureGates":                          {"", "featureGates: {NodeSwap: true}\n"},
		"runtimeConfig":                         {"", "runtimeConfig: {api/alpha: \"true\"}\n"},
		"kubeadmConfigPatches":                  {"", "kubeadmConfigPatches: ['{kind: KubeletConfiguration, maxPods: 9}']\n"},
		"kubeadmConfigPatchesJSON6902":          {"", "kubeadmConfigPatchesJSON6902: [{group: kubelet.config.k8s.io, version: v1beta1, kind: KubeletConfiguration, patch: '[{op: add, path: /maxPods, value: 9}]'}]\n"},
		"containerdConfigPatches":               {"", "containerdConfigPatches: [\"[plugins.'io.containerd.grpc.v1.cri'.registry.mirrors.'r.example']\\nendpoint = ['http://m.example']\"]\n"},
		"containerdConfigPatchesJSON6902":       {"", "containerdConfigPatchesJSON6902: ['[{op: add, path: /debug, value: {level: debug}}]']\n"},
		"nodes.role":                            {inNode("labels: {}"), "nodes: [{role: control-plane}, {role: control-plane}]\n"},
		"nodes.image":                           {inNode("labels: {}"), inNode("image: \"r.example/n:1\"")},
		"nodes.labels":                          {inNode("labels: {}"), inNode("labels: {a: b}")},
		"nodes.kubeadmConfigPatches":            {inNode("labels: {}"), in("kubeadmConfigPatches", "'{kind: KubeletConfiguration, maxPods: 9}'")},
		"nodes.kubeadmConfigPatchesJSON6902":    {inNode("labels: {}"), in("kubeadmConfigPatchesJSON6902", "{kind: KubeletConfiguration, patch: '[{op: add, path: /maxPods, value: 9}]'}")},
		"nodes.extraMounts.containerPath":       {in("extraMounts", mount), in("extraMounts", "{containerPath: /d, hostPath: /h}")},
		"nodes.extraMounts.hostPath":            {in("extraMounts", mount), in("extraMounts", "{containerPath: /c, hostPath: ./h}")},
		"nodes.extraMounts.readOnly":            {in("extraMounts", mount), in("extraMounts", "{containerPath: /c, hostPath: /h, readOnly: true}")},
		"nodes.extraMounts.selinuxRelabel":      {in("extraMounts", mount), in("extraMounts", "{containerPath: /c, hostPath: /h, selinuxRelabel: true}")},
		"nodes.extraMounts.propagation":         {in("extraMounts", mount), in("extraMounts", "{containerPath: /c, hostPath: /h, propagation: Bidirectional}")},
		"nodes.extraPortMappings.containerPort": {in("extraPortMappings", port), in("extraPortMappings", "{containerPort: 81, hostPort: 8080}")},
		"nodes.extraPortMappings.hostPort":      {in("extraPortMappings", port), in("extraPortMappings", "{containerPort: 80, hostPort: -1}")},
		"nodes.extraPortMappings.listenAddress": {in("extraPortMappings", port), in("extraPortMappings", "{containerPort: 80, hostPort: 8080, listenAddress: \"::1\"}")},
		"nodes.extraPortMappings.protocol":      {in("extraPortMappings", port), in("extraPortMappings", "{containerPort: 80, hostPort: 8080, protocol: SCTP}")},
	}
	want := leaves("", reflect.TypeFor[config.Settings]())
	want = append(want, leaves("nodes", reflect.TypeFor[config.NodeSettings]())...)
	for _, field := range append(want, "name") {
		texts, found := fields[field]
		if !found {
			t.Errorf("what does %s do?", field)
			continue
		}
		if made(t, texts[0]) == made(t, texts[1]) {
			t.Errorf("%s changes nothing, and nobody is warned", field)
		}
		delete(fields, field)
	}
	for field := range fields {
		t.Errorf("there is no field %s", field)
	}
	// A mode that kind does not have: its kubeadm phase is skipped.
	if text := made(t, "networking: {kubeProxyMode: none}\n"); !strings.Contains(text, "addon/kube-proxy") || strings.Contains(text, "KubeProxyConfiguration") {
		t.Error("kubeProxyMode none leaves kube-proxy in")
	}
}

// leaves returns the paths of all fields of a type, including those of nested structs.
func leaves(at string, of reflect.Type) []string {
	var all []string
	for i := range of.NumField() {
		f := of.Field(i)
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		path := strings.TrimPrefix(at+"."+name, ".")
		inner := f.Type
		if inner.Kind() == reflect.Slice {
			inner = inner.Elem()
		}
		switch {
		case inner.Kind() == reflect.Struct && inner != reflect.TypeFor[config.PatchJSON6902]():
			all = append(all, leaves(path, inner)...)
		default:
			all = append(all, path)
		}
	}
	return all
}

// made renders everything that a description in kind's format creates.
func made(t *testing.T, text string) string {
	t.Helper()
	c, err := config.Load("f", []byte("apiVersion: kind.x-k8s.io/v1alpha4\nkind: Cluster\n"+text), config.Options{Dir: "/from"})
	if err != nil {
		t.Fatalf("%s: %v", text, err)
	}
	clusters, _ := clusters(clustertest.New(t))
	m := &createRun{builder: clusters.newBuilder(c)}
	m.token = "abcdef.0123456789abcdef"
	m.plan = plan.Make(c, plan.Host{Engine: "podman", Network: "kind"})
	all, err := json.Marshal(m.plan)
	if err != nil {
		t.Fatal(err)
	}
	for i, container := range m.plan.Containers {
		m.versions[container.Name], m.runtimes[container.Name] = "v1.36.3", noderuntime.Berth()
		m.nodes = append(m.nodes, provider.Node{Name: container.Name, IPv4: netip.AddrFrom4([4]byte{10, 89, 0, byte(i + 2)}), IPv6: netip.MustParseAddr(fmt.Sprintf("fd00::%d", i+2))})
	}
	for _, n := range c.Nodes {
		files, err := m.nodeFiles(n)
		if err != nil {
			t.Fatalf("%s: %v", text, err)
		}
		slices.SortFunc(files, func(a, b provider.File) int { return strings.Compare(a.Path, b.Path) })
		for _, file := range files {
			all = append(all, file.Path+"\n"+string(file.Content)...)
		}
	}
	warnings, err := noderuntime.IgnoredByBerth(c, nil)
	if err != nil {
		t.Fatal(err)
	}
	return string(all) + strings.Join(warnings, "\n")
}
