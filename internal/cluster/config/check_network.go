package config

import (
	"fmt"
	"net/netip"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/berthrun/berth/internal/registries"
)

func (c checker) networking() {
	n := c.c.Networking
	if !c.Broken("networking.apiServerPort") && (n.APIServerPort < EnginePort || n.APIServerPort > 65535) {
		c.Fault("networking.apiServerPort", "%d: want 1 to 65535, 0 for a free port, or -1 to let the container engine pick", n.APIServerPort)
	}
	c.address("networking.apiServerAddress", n.APIServerAddress)
	if n.DNSSearch != nil {
		for i, domain := range *n.DNSSearch {
			at := fmt.Sprintf("networking.dnsSearch[%d]", i)
			if !c.Broken(at) && !regexp.MustCompile(`^[A-Za-z0-9_.-]+$`).MatchString(domain) {
				c.Fault(at, "%q: want a domain such as corp.example", domain)
			}
		}
	}
	if c.Broken("networking.ipFamily") {
		return
	}
	pods := c.subnets("networking.podSubnet", n.PodSubnet)
	services := c.subnets("networking.serviceSubnet", n.ServiceSubnet)
	for _, p := range pods {
		c.usable("networking.podSubnet", p)
	}
	for _, s := range services {
		c.usable("networking.serviceSubnet", s)
		if i := slices.IndexFunc(pods, s.Overlaps); i >= 0 {
			c.Fault("networking.serviceSubnet", "%s overlaps %s, the pods'", s, pods[i])
		}
		c.serviceSize(s)
	}
	if !c.masksAreSet() {
		for _, p := range pods {
			c.podSize(p)
		}
	}
}

func (c checker) address(at, text string) {
	if text == "" || c.Broken(at) {
		return
	}
	if ip, err := netip.ParseAddr(text); err != nil || ip.Zone() != "" {
		c.Fault(at, "%q: want an IP address of the host, such as 127.0.0.1", text)
	}
}

// subnets checks that the families of CIDRs are the cluster's; nil if they are not.
func (c checker) subnets(at, text string) []netip.Prefix {
	if c.Broken(at) {
		return nil
	}
	list, err := subnets(text)
	if err != nil {
		c.Fault(at, "%v", err)
		return nil
	}
	family := c.c.Networking.IPFamily
	problem := ""
	switch {
	case family == DualStack && (len(list) > 2 || len(list) == 2 && list[0].Addr().Is4() == list[1].Addr().Is4()):
		problem = "expected one (IPv4 or IPv6) CIDR or two CIDRs from each family for dual-stack networking"
	case family != DualStack && len(list) > 1:
		problem = "only one CIDR allowed for single-stack networking; two need ipFamily: dual"
	case family == IPv4 && !list[0].Addr().Is4():
		problem = "expected IPv4 CIDR for IPv4 family"
	case family == IPv6 && list[0].Addr().Is4():
		problem = "expected IPv6 CIDR for IPv6 family"
	}
	if problem != "" {
		c.Fault(at, "%q: %s", text, problem)
		return nil
	}
	return list
}

// usable refuses addresses that are reserved.
func (c checker) usable(at string, p netip.Prefix) {
	for _, special := range []struct{ prefix, what string }{
		{"0.0.0.0/8", "this host"},
		{"127.0.0.0/8", "loopback"},
		{"224.0.0.0/4", "multicast"},
		{"::/127", "loopback"},
		{"fe80::/10", "single links"},
		{"ff00::/8", "multicast"},
	} {
		if p.Overlaps(netip.MustParsePrefix(special.prefix)) {
			c.Fault(at, "%s has addresses of %s, which are for %s; want a private range, such as 10.200.0.0/16 or fd00:10:200::/56", p, special.prefix, special.what)
			return
		}
	}
}

// serviceSize checks kubeadm's limits of service addresses: at most 2^20, and at least ten, because
// DNS has the tenth.
func (c checker) serviceSize(p netip.Prefix) {
	free := p.Addr().BitLen() - p.Bits()
	if free > 20 || free < 4 {
		bits := p.Addr().BitLen()
		c.Fault("networking.serviceSubnet", "%s: want a prefix of /%d to /%d", p, bits-20, bits-4)
	}
}

// podSize checks that every node gets its part of the pods' addresses: a /24 or /64.
func (c checker) podSize(p netip.Prefix) {
	mask := 24
	if p.Addr().Is6() {
		mask = 64
	}
	nodes := len(c.c.Nodes)
	for _, pool := range c.c.Pools {
		nodes += max(0, min(pool.Size(), maxPool))
	}
	switch {
	case p.Bits() > mask || mask-p.Bits() < 16 && 1<<(mask-p.Bits()) < nodes:
		c.Fault("networking.podSubnet", "%s has no /%d for each of %d nodes; want a shorter prefix, or a kubeadm patch that sets node-cidr-mask-size", p, mask, nodes)
	case mask-p.Bits() > 16:
		c.Fault("networking.podSubnet", "%s is too large to be cut in /%d for nodes; want a prefix of /%d or longer, or a kubeadm patch that sets node-cidr-mask-size", p, mask, mask-16)
	}
}

// masksAreSet reports whether a patch changes the size of a node's part.
func (c checker) masksAreSet() bool {
	sets := func(text string) bool { return strings.Contains(text, "node-cidr-mask-size") }
	return slices.ContainsFunc(c.c.KubeadmConfigPatches, sets) ||
		slices.ContainsFunc(c.c.KubeadmConfigPatchesJSON6902, func(p PatchJSON6902) bool { return sets(p.Patch) })
}

// binding is a port of the host that a mapping takes.
type binding struct {
	at       string
	address  netip.Addr
	port     int
	protocol Protocol
}

// clashes reports whether two bindings conflict. As in kind, no address, 0.0.0.0 and :: mean all
// addresses.
func (b binding) clashes(o binding) bool {
	return b.port == o.port && b.protocol == o.protocol &&
		(b.address == o.address || b.address.IsUnspecified() || o.address.IsUnspecified())
}

// ports checks the port mappings of all nodes, and that no two have the same port.
func (c checker) ports() {
	var taken []binding
	take := func(b binding) {
		if b.port <= 0 {
			return // chosen when the node is created
		}
		if i := slices.IndexFunc(taken, b.clashes); i >= 0 {
			c.Fault(b.at, "port mapping with same listen address, port and protocol already configured: %s/%s (%s)",
				netip.AddrPortFrom(b.address, uint16(b.port)), b.protocol, taken[i].at)
		}
		taken = append(taken, b)
	}
	n := c.c.Networking
	if ip, err := netip.ParseAddr(n.APIServerAddress); err == nil && n.APIServerPort <= 65535 {
		take(binding{"networking.apiServerPort", ip, n.APIServerPort, TCP})
	}
	if c.c.Registry.Enabled && c.c.Registry.Port <= 65535 {
		take(binding{"registry.port", netip.MustParseAddr("127.0.0.1"), c.c.Registry.Port, TCP})
	}
	for _, p := range c.c.parts() {
		for i, m := range p.ExtraPortMappings {
			at := fmt.Sprintf("%s.extraPortMappings[%d]", p.at, i)
			if !c.port(at, m) {
				continue
			}
			ip := netip.IPv4Unspecified()
			if m.ListenAddress != "" {
				ip, _ = netip.ParseAddr(m.ListenAddress)
			}
			take(binding{at, ip, m.HostPort, m.Protocol})
			if p.pool != nil && p.pool.Size() > 1 && m.HostPort > 0 {
				c.Fault(at+".hostPort", "%d: the pool's %d nodes cannot all have it; want 0, or nodes of their own", m.HostPort, p.pool.Size())
			}
		}
	}
}

// port reports whether one mapping alone is valid.
func (c checker) port(at string, m PortMapping) bool {
	c.address(at+".listenAddress", m.ListenAddress)
	if m.ContainerPort != 0 && (m.ContainerPort < 1 || m.ContainerPort > 65535) {
		c.Fault(at+".containerPort", "%d: want 1 to 65535", m.ContainerPort)
	}
	if m.HostPort < EnginePort || m.HostPort > 65535 {
		c.Fault(at+".hostPort", "%d: want 1 to 65535, 0 for a free port, or -1 to let the container engine pick", m.HostPort)
	}
	return !c.Broken(at)
}

func (c checker) builtIn() {
	if port := c.c.Registry.Port; port < 0 || port > 65535 {
		c.Fault("registry.port", "%d: want 1 to 65535, or 0 for a free port", port)
	}
}

func (c checker) registries(at string, all []registries.Registry) {
	registries.Check(c.Reader, at, all)
	for i, reg := range all {
		at := fmt.Sprintf("%s[%d].host", at, i)
		_, port, found := strings.Cut(reg.Host[strings.LastIndex(reg.Host, "]")+1:], ":")
		if !found || c.Broken(at) {
			continue
		}
		if number, err := strconv.Atoi(port); err != nil || number < 1 || number > 65535 {
			c.Fault(at, "%q: port %s: want 1 to 65535", reg.Host, port)
		}
	}
}
