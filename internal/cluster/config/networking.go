package config

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
)

// Networking is the cluster's networks and its API.
type Networking struct {
	IPFamily          IPFamily  `json:"ipFamily" help:"Addresses of nodes, pods and services." oneof:"ipv4 ipv6 dual"`
	APIServerPort     int       `json:"apiServerPort" help:"Port of the API on the host. 0: a free one, which stays the same over restarts. -1: the container engine picks one at every start." example:"6443"`
	APIServerAddress  string    `json:"apiServerAddress" help:"Address of the host that the API listens on. Empty: 127.0.0.1, or ::1 in a cluster of IPv6 only, where the container engine leads that to nodes." example:"127.0.0.1"`
	PodSubnet         string    `json:"podSubnet" help:"Addresses of pods: one CIDR, or one of each family with a comma between them. Empty: 10.244.0.0/16, fd00:10:244::/56." example:"10.244.0.0/16"`
	ServiceSubnet     string    `json:"serviceSubnet" help:"Addresses of services, written as podSubnet. The family that comes first is the primary one. Empty: 10.96.0.0/16, fd00:10:96::/112." example:"10.96.0.0/16"`
	DisableDefaultCNI bool      `json:"disableDefaultCNI" help:"Install no pod network; no node is ready until you install one."`
	KubeProxyMode     ProxyMode `json:"kubeProxyMode" help:"How kube-proxy works; none leaves it out." oneof:"iptables ipvs nftables none"`
	DNSSearch         *[]string `json:"dnsSearch" help:"Search domains of the nodes. Unset: those of the host. An empty list: none." example:"[corp.example]"`
}

// settle fills in what depends on the family.
func (n *Networking) settle() {
	v6 := n.IPFamily == IPv6
	pick := func(text *string, v4Value, v6Value string, both bool) {
		switch {
		case *text != "":
		case v6:
			*text = v6Value
		case both && n.IPFamily == DualStack:
			*text = v4Value + "," + v6Value
		default:
			*text = v4Value
		}
	}
	pick(&n.APIServerAddress, "127.0.0.1", "::1", false)
	pick(&n.PodSubnet, "10.244.0.0/16", "fd00:10:244::/56", true)
	pick(&n.ServiceSubnet, "10.96.0.0/16", "fd00:10:96::/112", true)
}

// HasIPv6 reports whether nodes need IPv6.
func (n Networking) HasIPv6() bool { return n.IPFamily == IPv6 || n.IPFamily == DualStack }

// PodSubnets are the CIDRs of PodSubnet, in their order.
func (n Networking) PodSubnets() ([]netip.Prefix, error) { return subnets(n.PodSubnet) }

// ServiceSubnets are the CIDRs of ServiceSubnet, in their order.
func (n Networking) ServiceSubnets() ([]netip.Prefix, error) { return subnets(n.ServiceSubnet) }

func subnets(text string) ([]netip.Prefix, error) {
	var all []netip.Prefix
	for _, part := range strings.Split(text, ",") {
		p, err := netip.ParsePrefix(part)
		if err != nil {
			return nil, fmt.Errorf("%q: want a CIDR such as 10.244.0.0/16", part)
		}
		all = append(all, p)
	}
	return all, nil
}

// Role is the role of a node.
type Role string

// The roles that a cluster file may give.
const (
	ControlPlane Role = "control-plane"
	Worker       Role = "worker"
)

// UnmarshalText takes a role, or nothing.
func (r *Role) UnmarshalText(text []byte) error {
	return choose(r, text, "unknown node role: %q", ControlPlane, Worker)
}

// IPFamily is the address families of a cluster.
type IPFamily string

// The families.
const (
	IPv4      IPFamily = "ipv4"
	IPv6      IPFamily = "ipv6"
	DualStack IPFamily = "dual"
)

// UnmarshalText takes a family; nothing is ipv4.
func (f *IPFamily) UnmarshalText(text []byte) error {
	err := choose(f, text, "unknown cluster IP family: %s", IPv4, IPv6, DualStack)
	if *f == "" {
		*f = IPv4
	}
	return err
}

// ProxyMode is how kube-proxy works.
type ProxyMode string

// The modes.
const (
	ProxyIPTables ProxyMode = "iptables"
	ProxyIPVS     ProxyMode = "ipvs"
	ProxyNFTables ProxyMode = "nftables"
	ProxyNone     ProxyMode = "none"
)

// UnmarshalText takes a mode; nothing is iptables.
func (m *ProxyMode) UnmarshalText(text []byte) error {
	err := choose(m, text, "unknown kube-proxy mode: %q", ProxyIPTables, ProxyIPVS, ProxyNFTables, ProxyNone)
	if *m == "" {
		*m = ProxyIPTables
	}
	return err
}

// Propagation is how mounts propagate between host and node.
type Propagation string

// The propagations, under Kubernetes' names.
const (
	PropagateNone            Propagation = "None"
	PropagateHostToContainer Propagation = "HostToContainer"
	PropagateBidirectional   Propagation = "Bidirectional"
)

// UnmarshalText takes a propagation, or nothing.
func (p *Propagation) UnmarshalText(text []byte) error {
	return choose(p, text, "unknown mount propagation: %q", PropagateNone, PropagateHostToContainer, PropagateBidirectional)
}

// Protocol is the protocol of a port.
type Protocol string

// The protocols.
const (
	TCP  Protocol = "TCP"
	UDP  Protocol = "UDP"
	SCTP Protocol = "SCTP"
)

// UnmarshalText takes a protocol in upper or lower case; nothing is TCP.
func (p *Protocol) UnmarshalText(text []byte) error {
	err := choose(p, []byte(strings.ToUpper(string(text))), "unknown port mapping protocol: %s", TCP, UDP, SCTP)
	if *p == "" {
		*p = TCP
	}
	return err
}

// choose sets one of the known values, or the empty one.
func choose[T ~string](into *T, text []byte, unknown string, known ...T) error {
	value := T(text)
	if value != "" && !slices.Contains(known, value) {
		return fmt.Errorf(unknown, string(text))
	}
	*into = value
	return nil
}
