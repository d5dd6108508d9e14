// Package bridgeaddress finds a bridge that has an address of an earlier configuration of the CNI plugin bridge: the plugin
// refuses each ADD then, also when no pod is on the bridge any more. It changes nothing.
package bridgeaddress

import (
	"cmp"
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
)

// addressRange is one of host-local's.
type addressRange struct {
	Subnet  netip.Prefix `json:"subnet"`
	Gateway netip.Addr   `json:"gateway"`
}

// wanted is the bridge of a plugin's configuration, and the addresses that the plugin gives it: host-local's gateways. The
// name is empty where the configuration says nothing of addresses, or has the plugin replace them.
func wanted(plugin []byte) (bridge string, all []netip.Prefix) {
	var conf struct {
		Type             string `json:"type"`
		Bridge           string `json:"bridge"`
		IsGateway        bool   `json:"isGateway"`
		IsDefaultGateway bool   `json:"isDefaultGateway"`
		ForceAddress     bool   `json:"forceAddress"`
		IPAM             struct {
			Type string `json:"type"`
			addressRange
			Ranges [][]addressRange `json:"ranges"`
		} `json:"ipam"`
	}
	if json.Unmarshal(plugin, &conf) != nil || conf.Type != "bridge" || conf.ForceAddress || !conf.IsGateway && !conf.IsDefaultGateway || conf.IPAM.Type != "host-local" {
		return "", nil
	}
	sets := append([][]addressRange{{conf.IPAM.addressRange}}, conf.IPAM.Ranges...)
	for _, set := range sets {
		for _, r := range set {
			if !r.Subnet.IsValid() {
				continue
			}
			gateway := r.Gateway
			if !gateway.IsValid() {
				gateway = r.Subnet.Masked().Addr().Next()
			}
			all = append(all, netip.PrefixFrom(gateway, r.Subnet.Bits()))
		}
	}
	return cmp.Or(conf.Bridge, "cni0"), all
}

// conflict returns the address of a bridge that keeps the plugin from giving it another one, which is the second: a bridge
// has one address of IPv4, and several of IPv6 where their subnets do not overlap.
func conflict(has, wants []netip.Prefix) (have, want netip.Prefix, found bool) {
	for _, h := range has {
		if slices.Contains(wants, h) {
			continue
		}
		for _, w := range wants {
			if h.Addr().Is4() == w.Addr().Is4() && (h.Addr().Is4() || h.Overlaps(w)) {
				return h, w, true
			}
		}
	}
	return netip.Prefix{}, netip.Prefix{}, false
}

// Advice says what to do where the bridge of a plugin's configuration has an address that the plugin does not accept, ""
// where it has not. It looks at the links of the network namespace of the calling thread.
func Advice(plugin []byte) (string, error) {
	bridge, wants := wanted(plugin)
	if len(wants) == 0 {
		return "", nil
	}
	link, err := netlink.LinkByName(bridge)
	if err != nil {
		return "", err
	}
	addresses, err := netlink.AddrList(link, netlink.FAMILY_ALL)
	if err != nil {
		return "", err
	}
	var has []netip.Prefix
	for _, a := range addresses {
		if addr, ok := netip.AddrFromSlice(a.IP); ok && addr.Unmap().IsGlobalUnicast() {
			ones, _ := a.Mask.Size()
			has = append(has, netip.PrefixFrom(addr.Unmap(), ones))
		}
	}
	have, want, ok := conflict(has, wants)
	if !ok {
		return "", nil
	}
	return fmt.Sprintf("the bridge %[1]s has the address %[2]s, and the configuration wants %[3]s: when no pod is on it any more (ip link show master %[1]s), "+
		"remove it with `ip link delete %[1]s`; or set \"forceAddress\": true, which takes the gateway from pods that are on it", bridge, have, want), nil
}
