// Package portmap is the CNI plugin portmap: ports of the host that lead to ports of the pod,
// with rules of iptables or nftables.
package portmap

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"

	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"
	"github.com/containernetworking/cni/pkg/version"
	"github.com/containernetworking/plugins/pkg/utils"
	"github.com/google/nftables"
	"github.com/vishvananda/netlink"

	"github.com/berthrun/berth/internal/network/cni/plugin"
	"github.com/berthrun/berth/internal/network/cni/plugin/xtables"
)

const (
	iptablesBackend = "iptables"
	nftablesBackend = "nftables"
	// defaultMark is the bit of a packet's mark that has it masqueraded.
	defaultMark = 13
)

// mapping is a port of the host that leads to one of the pod.
type mapping struct {
	HostPort      int    `json:"hostPort"`
	ContainerPort int    `json:"containerPort"`
	Protocol      string `json:"protocol"`
	HostIP        string `json:"hostIP"`
}

// conf is the plugin's configuration.
type conf struct {
	types.NetConf
	Backend              *string  `json:"backend"`
	SNAT                 *bool    `json:"snat"`
	ConditionsV4         []string `json:"conditionsV4"`
	ConditionsV6         []string `json:"conditionsV6"`
	MasqAll              bool     `json:"masqAll"`
	MarkMasqBit          *int     `json:"markMasqBit"`
	ExternalSetMarkChain *string  `json:"externalSetMarkChain"`
	RuntimeConfig        struct {
		Ports []mapping `json:"portMappings"`
	} `json:"runtimeConfig"`

	container string
	environ   []string // of the call
	snat      bool
	mark      int
	previous  *types100.Result
	pods      []net.IPNet // the pod's addresses, IPv4 first, at most one of each family
	backend   backend
}

// backend makes rules. pod is one address of the pod, with its subnet.
type backend interface {
	forward(ctx context.Context, n *conf, pod net.IPNet) error
	check(ctx context.Context, n *conf, pod net.IPNet) error
	// remove removes the rules of both families.
	remove(ctx context.Context, n *conf) error
}

// New returns the plugin.
func New() *plugin.Plugin {
	return &plugin.Plugin{
		Type: "portmap", Chained: true, Versions: version.All, Add: add, Del: del, Check: check,
		Load: plugin.Loads(func(c *plugin.Call) (*conf, error) { return load(context.Background(), c) }), Idle: idle,
		Options: plugin.Options{
			"backend": nil, "snat": nil, "conditionsV4": nil, "conditionsV6": nil, "masqAll": nil, "markMasqBit": nil,
			"externalSetMarkChain": nil,
		},
	}
}

// idle reports whether a pod has no host ports.
func idle(config []byte) bool {
	var n conf
	return json.Unmarshal(config, &n) == nil && len(n.RuntimeConfig.Ports) == 0
}

// load reads the configuration. Texts of errors are the reference's.
func load(ctx context.Context, c *plugin.Call) (*conf, error) {
	c.Stage("read the configuration")
	n := &conf{snat: true, mark: defaultMark, container: c.ContainerID, environ: c.Environ()}
	if err := json.Unmarshal(c.Config, n); err != nil {
		return nil, fmt.Errorf("failed to parse network configuration: %w", err)
	}
	var err error
	if n.previous, err = plugin.ChainedPrevious(&n.NetConf); err != nil {
		return nil, err
	}
	if n.SNAT != nil {
		n.snat = *n.SNAT
	}
	if n.MarkMasqBit != nil && n.ExternalSetMarkChain != nil {
		return nil, errors.New("Cannot specify externalSetMarkChain and markMasqBit")
	}
	if n.MarkMasqBit != nil {
		n.mark = *n.MarkMasqBit
	}
	if n.mark < 0 || n.mark > 31 {
		return nil, errors.New("MasqMarkBit must be between 0 and 31")
	}
	// A pod without host ports asks no program: it does not wait for a lock of iptables.
	if n.Backend != nil || len(n.RuntimeConfig.Ports) > 0 {
		if err := n.chooseBackend(ctx); err != nil {
			return nil, err
		}
	}
	for _, m := range n.RuntimeConfig.Ports {
		if m.ContainerPort <= 0 {
			return nil, fmt.Errorf("Invalid container port number: %d", m.ContainerPort)
		}
		if m.HostPort <= 0 {
			return nil, fmt.Errorf("Invalid host port number: %d", m.HostPort)
		}
	}
	if n.previous != nil {
		n.pods = podAddresses(n.previous, c.IfName)
	}
	return n, nil
}

// chooseBackend takes that of the configuration, or the one that the host has.
func (n *conf) chooseBackend(ctx context.Context) error {
	name := iptablesBackend
	if n.Backend != nil {
		name = *n.Backend
	} else if !xtables.Usable(ctx, n.environ) && utils.SupportsNFTables() {
		name = nftablesBackend
	}
	foreign := map[string][]string{} // options by the only backend that has them
	if n.ExternalSetMarkChain != nil {
		foreign[iptablesBackend] = append(foreign[iptablesBackend], "externalSetMarkChain")
	}
	for _, c := range []struct {
		option     string
		conditions []string
	}{{"conditionsV4", n.ConditionsV4}, {"conditionsV6", n.ConditionsV6}} {
		if b := backendOf(c.conditions); b != "" {
			foreign[b] = append(foreign[b], c.option)
		}
	}
	other := iptablesBackend
	if name == iptablesBackend {
		other = nftablesBackend
	}
	if len(foreign[other]) > 0 {
		return fmt.Errorf("%s backend was requested but configuration contains %s-specific options %v", name, other, foreign[other])
	}
	switch name {
	case iptablesBackend:
		n.backend = iptablesRules{}
	case nftablesBackend:
		n.backend = nftablesRules{}
	default:
		return fmt.Errorf("unrecognized backend %q", name)
	}
	return nil
}

// backendOf tells by the first word which backend's language conditions are in; "" for none.
func backendOf(conditions []string) string {
	switch {
	case len(conditions) == 0 || conditions[0] == "":
		return ""
	case conditions[0][0] == '-' || conditions[0][0] == '!':
		return iptablesBackend
	default:
		return nftablesBackend
	}
}

// podAddresses returns the first address of each family that is, or may be, on the pod's link.
func podAddresses(result *types100.Result, link string) []net.IPNet {
	var v4, v6 []net.IPNet
	for _, address := range result.IPs {
		if i := address.Interface; i != nil && *i >= 0 && *i < len(result.Interfaces) {
			if in := result.Interfaces[*i]; in.Name != link || in.Sandbox == "" {
				continue
			}
		}
		if address.Address.IP.To4() != nil {
			v4 = append(v4, address.Address)
		} else {
			v6 = append(v6, address.Address)
		}
	}
	return append(v4[:min(1, len(v4))], v6[:min(1, len(v6))]...)
}

// conditions are those of a family.
func (n *conf) conditions(v6 bool) []string {
	if v6 {
		return n.ConditionsV6
	}
	return n.ConditionsV4
}

// ports yields the mappings that a family has. A HostIP that is left is one that limits the
// mapping.
func (n *conf) ports(v6 bool) []mapping {
	var all []mapping
	for _, m := range n.RuntimeConfig.Ports {
		if m.HostIP != "" {
			ip := net.ParseIP(m.HostIP)
			if isV6(ip) != v6 {
				continue
			}
			if ip.IsUnspecified() {
				m.HostIP = ""
			}
		}
		all = append(all, m)
	}
	return all
}

func isV6(ip net.IP) bool { return ip.To4() == nil }

func add(ctx context.Context, c *plugin.Call) (types.Result, error) {
	n, err := load(ctx, c)
	if err != nil {
		return nil, fmt.Errorf("failed to parse config: %w", err)
	}
	if n.PrevResult == nil {
		return nil, errors.New("must be called as chained plugin")
	}
	if len(n.RuntimeConfig.Ports) == 0 {
		return n.PrevResult, nil
	}
	for _, pod := range n.pods {
		c.Stage("rules for " + pod.IP.String())
		if err := n.backend.forward(ctx, n, pod); err != nil {
			return nil, err
		}
		family := netlink.InetFamily(netlink.FAMILY_V4)
		if isV6(pod.IP) {
			family = netlink.FAMILY_V6
		}
		forgetConnections(n.RuntimeConfig.Ports, family)
		if n.snat && !isV6(pod.IP) {
			if err := routeLoopback(pod.IP); err != nil {
				return nil, fmt.Errorf("unable to enable route_localnet: %w", err)
			}
		}
	}
	return n.PrevResult, nil
}

// forgetConnections has UDP flows from before the rules take the new way. As with the reference,
// a fault has no effect: a kernel without conntrack has no such flows.
func forgetConnections(ports []mapping, family netlink.InetFamily) {
	for _, m := range ports {
		if strings.EqualFold(m.Protocol, "udp") {
			if err := utils.DeleteConntrackEntriesForDstPort(uint16(m.HostPort), utils.PROTOCOL_UDP, family); err != nil {
				return
			}
		}
	}
}

// routeLoopback lets packets from 127.0.0.1 leave by the link that leads to the pod.
func routeLoopback(pod net.IP) error {
	routes, err := netlink.RouteGet(pod)
	if err != nil {
		return nil //nolint:nilerr // there is no such link
	}
	for _, r := range routes {
		link, err := netlink.LinkByIndex(r.LinkIndex)
		if err != nil {
			continue
		}
		return plugin.WriteSysctl("net/ipv4/conf/"+link.Attrs().Name+"/route_localnet", "1")
	}
	return nil
}

func del(ctx context.Context, c *plugin.Call) error {
	n, err := load(ctx, c)
	if err != nil {
		return fmt.Errorf("failed to parse config: %w", err)
	}
	if len(n.RuntimeConfig.Ports) == 0 {
		return nil
	}
	c.Stage("remove the rules")
	if n.Backend != nil {
		return n.backend.remove(ctx, n)
	}
	return n.removeAll(ctx)
}

// removeAll removes the rules of both backends: the host may have had another one when the pod was added.
func (n *conf) removeAll(ctx context.Context) error {
	err := iptablesRules{}.remove(ctx, n)
	if _, chosen := n.backend.(iptablesRules); !chosen && xtables.IsAbsent(err) {
		err = nil
	}
	for _, family := range []nftables.TableFamily{nftables.TableFamilyIPv4, nftables.TableFamilyIPv6} {
		has, fault := xtables.InNFTables(family, nftTable)
		if fault != nil {
			return errors.Join(err, fmt.Errorf("could not look for table %s: %w", nftTable, fault))
		}
		if has {
			return errors.Join(err, nftablesRules{}.remove(ctx, n))
		}
	}
	return err
}

func check(ctx context.Context, c *plugin.Call) error {
	n, err := load(ctx, c)
	if err != nil {
		return err
	}
	if n.previous == nil {
		return errors.New("Required prevResult missing")
	}
	if len(n.RuntimeConfig.Ports) == 0 {
		return nil
	}
	for _, pod := range n.pods {
		c.Stage("look at the rules for " + pod.IP.String())
		if err := n.backend.check(ctx, n, pod); err != nil {
			return err
		}
	}
	return nil
}

// byProtocol groups host ports, in the order of the protocols' names.
func byProtocol(ports []mapping) (protocols []string, of map[string][]int) {
	of = map[string][]int{}
	for _, m := range ports {
		if of[m.Protocol] == nil {
			protocols = append(protocols, m.Protocol)
		}
		of[m.Protocol] = append(of[m.Protocol], m.HostPort)
	}
	slices.Sort(protocols)
	return protocols, of
}
