package kubeadm

import (
	"fmt"
	"net/netip"
	"strings"

	"k8s.io/apimachinery/pkg/util/version"

	"github.com/berthrun/berth/internal/cluster/config"
	"github.com/berthrun/berth/internal/cluster/patch"
)

// The versions of kubeadm's documents that are written.
const (
	v1beta3 = "kubeadm.k8s.io/v1beta3"
	v1beta4 = "kubeadm.k8s.io/v1beta4"
)

// builder builds the documents of one node.
type builder struct {
	Node
	at    *version.Version
	ips   []netip.Addr
	gates map[string]bool
	// api is the version of kubeadm's documents.
	api string
}

func newBuilder(n Node) (*builder, error) {
	at, err := parseVersion(n.Version)
	if err != nil {
		return nil, err
	}
	ips, err := n.addresses()
	if err != nil {
		return nil, err
	}
	b := &builder{Node: n, at: at, ips: ips, gates: n.gates(), api: v1beta4}
	if b.before("1.36.0") {
		// kubeadm has known v1beta4 since 1.31, but existing patches are for what kind writes.
		b.api = v1beta3
	}
	return b, nil
}

func (b *builder) before(text string) bool { return b.at.LessThan(version.MustParseGeneric(text)) }

func (b *builder) v6() bool { return b.Cluster.Networking.IPFamily == config.IPv6 }

// arg is one option of a component.
type arg struct{ name, value string }

// args renders options in the form of the document's version.
func (b *builder) args(list ...arg) any {
	if b.api == v1beta4 {
		entries := []any{}
		for _, a := range list {
			entries = append(entries, map[string]any{"name": a.name, "value": a.value})
		}
		return entries
	}
	entries := map[string]any{}
	for _, a := range list {
		entries[a.name] = a.value
	}
	return entries
}

// withGates puts the feature gates before other options, if there are any.
func (b *builder) withGates(list ...arg) []arg {
	if len(b.gates) == 0 {
		return list
	}
	return append([]arg{{"feature-gates", pairs(b.gates)}}, list...)
}

func (b *builder) cluster() patch.Doc {
	net := b.Cluster.Networking
	api := append([]arg{{"runtime-config", pairs(b.Cluster.RuntimeConfig)}}, b.withGates()...)
	// Not so in kind: both request their leases when the API begins to listen, a moment before it
	// knows their rights, and with the default of 2s retry up to 4.4s later. All nodes wait for the
	// controller manager then.
	retry := arg{"leader-elect-retry-period", "1s"}
	manager := b.withGates(
		arg{"enable-hostpath-provisioner", "true"},
		// Not so in kind: with the defaults, 20 a second, the controllers that give nodes their
		// certificates and ranges of pods begin five seconds after they could.
		arg{"kube-api-qps", "200"}, arg{"kube-api-burst", "400"}, retry,
	)
	scheduler := b.withGates(retry)
	if b.v6() {
		manager = append(manager, arg{"bind-address", "::"})
		scheduler = append(scheduler, arg{"bind-address", "::1"})
	}
	doc := patch.Doc{
		"apiVersion":           b.api,
		"kind":                 "ClusterConfiguration",
		"kubernetesVersion":    b.Version,
		"clusterName":          b.Cluster.Name,
		"controlPlaneEndpoint": b.Endpoint,
		"apiServer":            map[string]any{"certSANs": b.names(), "extraArgs": b.args(api...)},
		"controllerManager":    map[string]any{"extraArgs": b.args(manager...)},
		"scheduler":            map[string]any{"extraArgs": b.args(scheduler...)},
		"networking":           map[string]any{"podSubnet": net.PodSubnet, "serviceSubnet": net.ServiceSubnet},
	}
	if b.api == v1beta4 {
		// Not so in kind: the ten RSA keys of a control plane take most of a second to generate,
		// and every connection to the API a millisecond more. v1beta3 has no such field.
		doc["encryptionAlgorithm"] = "ECDSA-P256"
	}
	return doc
}

// names are the additional names in the API's certificate, by which clients on the host reach it.
func (b *builder) names() []any {
	address := b.Cluster.Networking.APIServerAddress
	names := []any{"localhost", address}
	if ip, err := netip.ParseAddr(address); err == nil && ip.IsUnspecified() {
		// Not so in kind, whose kubeconfig then says 0.0.0.0, which some clients refuse.
		names = append(names, "127.0.0.1", "::1")
	}
	return names
}

func (b *builder) init() patch.Doc {
	registration := b.registration()
	if len(b.Cluster.Nodes) == 1 {
		// kind removes the taint with kubectl after the fact.
		registration["taints"] = []any{}
	}
	skip := []any{"preflight"} // it would pull images, which the node has
	if b.Cluster.Networking.KubeProxyMode == config.ProxyNone {
		skip = append(skip, "addon/kube-proxy")
	}
	return patch.Doc{
		"apiVersion":       b.api,
		"kind":             "InitConfiguration",
		"bootstrapTokens":  []any{map[string]any{"token": b.Token}},
		"localAPIEndpoint": b.localEndpoint(),
		"nodeRegistration": registration,
		"skipPhases":       skip,
	}
}

func (b *builder) join() patch.Doc {
	doc := patch.Doc{
		"apiVersion":       b.api,
		"kind":             "JoinConfiguration",
		"nodeRegistration": b.registration(),
		"discovery": map[string]any{"bootstrapToken": map[string]any{
			"apiServerEndpoint": b.Endpoint,
			"token":             b.Token,
			// Only the nodes and the host that created the CA are on their network.
			"unsafeSkipCAVerification": true,
		}},
		"skipPhases": []any{"preflight"},
	}
	if b.Node.Node.Role == config.ControlPlane {
		doc["controlPlane"] = map[string]any{"localAPIEndpoint": b.localEndpoint()}
	}
	return doc
}

func (b *builder) localEndpoint() map[string]any {
	return map[string]any{"advertiseAddress": b.ips[0].String(), "bindPort": bindPort}
}

// registration is how the kubelet registers its node.
func (b *builder) registration() map[string]any {
	var ips []string
	for _, ip := range b.ips {
		ips = append(ips, ip.String())
	}
	return map[string]any{
		"criSocket": b.CRISocket,
		"kubeletExtraArgs": b.args(
			arg{"node-ip", strings.Join(ips, ",")},
			// kind's scheme: programs use it to find the container of a node.
			arg{"provider-id", fmt.Sprintf("kind://%s/%s/%s", b.Engine, b.Cluster.Name, b.name())},
			arg{"node-labels", pairs(b.Node.Node.Labels)},
		),
	}
}

func (b *builder) kubelet() patch.Doc {
	doc := patch.Doc{
		"apiVersion":   "kubelet.config.k8s.io/v1beta1",
		"kind":         "KubeletConfiguration",
		"cgroupDriver": b.CgroupDriver,
		// A cgroup of its own within the node's, so that the kubelet does not take the node's other
		// processes for pods.
		"cgroupRoot": "/kubelet",
		"failSwapOn": false,
		// The disk belongs to the host: the kubelet cannot free enough of it.
		"imageGCHighThresholdPercent": 100,
		"evictionHard": map[string]any{
			"nodefs.available":  "0%",
			"nodefs.inodesFree": "0%",
			"imagefs.available": "0%",
		},
	}
	if b.before("1.24.0") {
		doc["cgroupDriver"] = "cgroupfs"
	}
	if !b.before("1.31.0") {
		// Not so in kind, whose nodes end at their start on a host with cgroup v1 from
		// Kubernetes 1.35 on. Older kubelets do not know the field.
		doc["failCgroupV1"] = false
	}
	if b.v6() {
		doc["address"] = "::"
		doc["healthzBindAddress"] = "::"
	}
	b.setGates(doc)
	return doc
}

func (b *builder) proxy() patch.Doc {
	// nf_conntrack_max is the host's, for all of its namespaces.
	conntrack := map[string]any{"maxPerCore": 0}
	mode := b.Cluster.Networking.KubeProxyMode
	switch {
	case b.Rootless:
		// These sysctls cannot be set in a user namespace.
		conntrack["tcpEstablishedTimeout"] = "0s"
		conntrack["tcpCloseWaitTimeout"] = "0s"
	case mode == config.ProxyNFTables:
		// Kernels before 6.1 drop packets of long-lived connections otherwise.
		conntrack["tcpBeLiberal"] = true
	}
	doc := patch.Doc{
		"apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
		"kind":       "KubeProxyConfiguration",
		"mode":       string(mode),
		"iptables":   map[string]any{"minSyncPeriod": "1s"},
		"conntrack":  conntrack,
	}
	b.setGates(doc)
	return doc
}

func (b *builder) setGates(doc patch.Doc) {
	if len(b.gates) == 0 {
		return
	}
	gates := map[string]any{}
	for name, on := range b.gates {
		gates[name] = on
	}
	doc["featureGates"] = gates
}
