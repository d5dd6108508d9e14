package provider

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"

	"github.com/berthrun/berth/internal/cluster/provider/command"
	"github.com/berthrun/berth/internal/errs"
)

// choices are the addresses that one Create has chosen so far, those that the engine refused
// included. The zero value is ready.
type choices struct {
	mu   sync.Mutex
	made map[netip.Addr]bool
}

// addressTries is how often an address is chosen for a container while the engine refuses each.
// Several processes that choose at the same time choose the same addresses; one of them gets each.
const addressTries = 16

// addressTaken: another container has the address, or is about to have it. docker says that of a
// port in small letters, and podman's DNS server of its own port as an error of the operating system.
func addressTaken(err error) bool {
	return !command.Says(err, "(os error ") && command.Says(err, "Address already in use", "is already allocated to container ID", "is not available in range set")
}

// addresses chooses addresses that stay a container's when it or the host starts again: for each
// spec, and each family of the network that supports it, the lowest free one in the upper half of
// the subnet. Engines assign the lower half first. None is one of before, and all are added to it.
func (e *CLI) addresses(ctx context.Context, n Network, specs []Spec, before *choices) ([][]netip.Addr, error) {
	chosen := make([][]netip.Addr, len(specs))
	if !n.StableV4 && !n.StableV6 {
		return chosen, nil
	}
	taken, err := e.taken(ctx, n.Name)
	if err != nil {
		return nil, err
	}
	before.mu.Lock()
	defer before.mu.Unlock()
	if before.made == nil {
		before.made = map[netip.Addr]bool{}
	}
	for _, subnet := range n.Subnets {
		if subnet.Addr().Is4() && !n.StableV4 || subnet.Addr().Is6() && !n.StableV6 {
			continue
		}
		if len(chosen) > 0 && slices.ContainsFunc(chosen[0], func(a netip.Addr) bool { return a.Is4() == subnet.Addr().Is4() }) {
			continue // engines accept one per family
		}
		address := middle(subnet)
		for i := range specs {
			for taken[address] || before.made[address] {
				address = address.Next()
			}
			// The last IPv4 address is the broadcast address.
			if next := address.Next(); !subnet.Contains(address) || address.Is4() && !subnet.Contains(next) {
				return nil, fmt.Errorf("the network %s has no free address in %s for %s: %w", n.Name, subnet, specs[i].Name, errs.Exhausted)
			}
			chosen[i] = append(chosen[i], address)
			before.made[address] = true
		}
	}
	return chosen, nil
}

// middle is the first address of the upper half of a subnet; in a large one, of the upper half of
// its first 256.
func middle(subnet netip.Prefix) netip.Addr {
	host := subnet.Addr().BitLen() - subnet.Bits()
	bytes := subnet.Masked().Addr().AsSlice()
	if bit := min(host, 8) - 1; bit >= 0 {
		bytes[len(bytes)-1] |= 1 << bit
	}
	address, ok := netip.AddrFromSlice(bytes)
	if !ok {
		return subnet.Addr()
	}
	if address.Is4() && host >= 16 {
		// docker counts up from the beginning of a /16: 172.18.128.1 is far away.
		bytes[len(bytes)-2] |= 1 << 7
		bytes[len(bytes)-1] = 1
		address, _ = netip.AddrFromSlice(bytes)
	}
	return address
}

// linkAddress is the link address that belongs to an IP address. Neighbours cache it for most of a
// minute after a container has stopped: a container that returned with another one could not be
// reached.
func linkAddress(a netip.Addr) net.HardwareAddr {
	b := a.As16()
	return append(net.HardwareAddr{0x0a, 0x58}, b[12:]...)
}

// taken are the addresses of all containers on a network, and those that stopped
// containers of ours will have.
func (e *CLI) taken(ctx context.Context, network string) (map[netip.Addr]bool, error) {
	found, err := e.nodes(ctx, "network="+network)
	if err != nil {
		return nil, err
	}
	ours, err := e.nodes(ctx, "label="+LabelAddresses)
	if err != nil {
		return nil, err
	}
	taken := map[netip.Addr]bool{}
	for _, node := range append(found, ours...) {
		for _, a := range append(labelled(node.Labels), node.IPv4, node.IPv6) {
			taken[a] = true
		}
	}
	return taken, nil
}

// Stable are the addresses that a container keeps across starts.
func (n Node) Stable() []netip.Addr { return labelled(n.Labels) }

// labelled are the addresses of LabelAddresses.
func labelled(labels map[string]string) []netip.Addr {
	var all []netip.Addr
	for text := range strings.SplitSeq(labels[LabelAddresses], ",") {
		if a, err := netip.ParseAddr(text); err == nil {
			all = append(all, a)
		}
	}
	return all
}
