package cni

import (
	"fmt"
	"math"
	"net/netip"
	"strings"

	"github.com/containernetworking/cni/libcni"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/network"
	"github.com/berthrun/berth/internal/network/hostport"
)

// podLink is the name of the pod's interface in the first network. It decides the pod's
// addresses.
const podLink = "eth0"

// linkName is the name of the pod's interface in the network with an index.
func linkName(network int) string { return fmt.Sprintf("eth%d", network) }

// onNetwork returns what plugins of the network with an index get.
func onNetwork(rt *libcni.RuntimeConf, network int) *libcni.RuntimeConf {
	own := *rt
	own.IfName = linkName(network)
	return &own
}

// The capability names that plugins declare and we serve.
const (
	capPortMappings = "portMappings"
	capBandwidth    = "bandwidth"
	capDNS          = "dns"
	capCgroupPath   = "cgroupPath"
	capIPRanges     = "ipRanges"
	capAnnotations  = "io.kubernetes.cri.pod-annotations"
)

// portMapping, bandwidth, dns and ipRange are as the CNI conventions write them.
type portMapping struct {
	HostPort      uint16 `json:"hostPort"`
	ContainerPort uint16 `json:"containerPort"`
	Protocol      string `json:"protocol"`
	HostIP        string `json:"hostIP,omitempty"`
}

type bandwidth struct {
	IngressRate  uint64 `json:"ingressRate,omitempty"`
	IngressBurst uint64 `json:"ingressBurst,omitempty"`
	EgressRate   uint64 `json:"egressRate,omitempty"`
	EgressBurst  uint64 `json:"egressBurst,omitempty"`
}

type dns struct {
	Servers  []string `json:"servers,omitempty"`
	Searches []string `json:"searches,omitempty"`
	Options  []string `json:"options,omitempty"`
}

type ipRange struct {
	Subnet string `json:"subnet"`
}

// runtimeConf is what plugins get besides their configuration. It follows from the record alone, so
// DEL gets what ADD got. Pure.
func runtimeConf(rec *record) (*libcni.RuntimeConf, error) {
	att := &rec.Attachment
	args := [][2]string{
		{"IgnoreUnknown", "1"},
		{"K8S_POD_NAMESPACE", att.Namespace},
		{"K8S_POD_NAME", att.Name},
		{"K8S_POD_INFRA_CONTAINER_ID", att.SandboxID},
		{"K8S_POD_UID", att.UID},
	}
	// Package cri/shape has refused such names. They are checked again where they become one
	// string: a name that injects an argument would name another pod, and DEL reads the record
	// from disk.
	for _, a := range args {
		if strings.ContainsAny(a[1], ";=\n") {
			return nil, fmt.Errorf("%s %q cannot be passed to CNI plugins: it has ';', '=' or a line end: %w", a[0], a[1], errs.Invalid)
		}
	}
	caps, err := capabilities(att, rec.Ranges)
	if err != nil {
		return nil, err
	}
	rt := &libcni.RuntimeConf{
		ContainerID: att.SandboxID, NetNS: att.NetNS, IfName: podLink, Args: args, CapabilityArgs: caps,
	}
	if rec.Former != nil && rec.Former.Args != nil {
		rt.Args, rt.CapabilityArgs = rec.Former.Args, rec.Former.Capabilities
	}
	return rt, nil
}

func capabilities(att *network.Attachment, ranges []netip.Prefix) (map[string]any, error) {
	caps := map[string]any{}
	ports, err := portMappings(att.Ports)
	if err != nil {
		return nil, err
	}
	if len(ports) > 0 {
		caps[capPortMappings] = ports
	}
	limits, err := limitsOf(att.Annotations)
	if err != nil {
		return nil, err
	}
	if limits != nil {
		caps[capBandwidth] = limits
	}
	if len(att.Annotations) > 0 {
		caps[capAnnotations] = att.Annotations
	}
	if att.CgroupParent != "" {
		caps[capCgroupPath] = att.CgroupParent
	}
	if att.DNS != nil {
		caps[capDNS] = dns{att.DNS.Servers, att.DNS.Searches, att.DNS.Options}
	}
	if len(ranges) > 0 {
		var sets [][]ipRange
		for _, r := range ranges {
			sets = append(sets, []ipRange{{r.String()}})
		}
		caps[capIPRanges] = sets
	}
	return caps, nil
}

// bothFamilies is what pods may have. ADD returns which they get.
func bothFamilies() hostport.Families { return hostport.Families{V4: true, V6: true} }

// portMappings drops ports that ask for none of the host's.
func portMappings(requested []network.Port) ([]portMapping, error) {
	ports, err := hostport.Wanted(requested, bothFamilies())
	if err != nil {
		return nil, err
	}
	var mappings []portMapping
	for _, p := range ports {
		mappings = append(mappings, portMapping{p.HostPort, p.ContainerPort, p.Protocol, p.HostIP})
	}
	return mappings, nil
}

// sockets are what the sandbox holds on the host.
func (r *record) sockets() []hostport.Socket {
	ports, err := hostport.Wanted(r.Attachment.Ports, bothFamilies())
	if err != nil {
		return nil // then it was never attached
	}
	var all []hostport.Socket
	for _, p := range ports {
		all = append(all, hostport.Sockets(p, bothFamilies())...)
	}
	return all
}

// limitsOf reads the bandwidth annotations; nil without any.
func limitsOf(annotations map[string]string) (*bandwidth, error) {
	ingress, egress, err := network.Bandwidth(annotations)
	if err != nil || ingress == 0 && egress == 0 {
		return nil, err
	}
	limits := &bandwidth{IngressRate: ingress, EgressRate: egress}
	// No limit to bursts but the shaper's own.
	if ingress > 0 {
		limits.IngressBurst = math.MaxUint32
	}
	if egress > 0 {
		limits.EgressBurst = math.MaxUint32
	}
	return limits, nil
}
