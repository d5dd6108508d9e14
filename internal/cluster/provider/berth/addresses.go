package berth

import (
	"context"
	"fmt"
	"net/netip"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berthrun/berth/internal/cluster/provider"
	"github.com/berthrun/berth/internal/errs"
)

// choose gives a node a stable address of each family: the highest free one, because pods get the
// lowest first. It adds them to taken.
func choose(n provider.Network, name string, taken map[netip.Addr]bool) ([]netip.Addr, error) {
	var chosen []netip.Addr
	for _, subnet := range n.Subnets {
		address := highest(subnet)
		for taken[address] {
			address = address.Prev()
		}
		gateway := subnet.Masked().Addr().Next()
		if !subnet.Contains(address) || address.Compare(gateway) <= 0 {
			return nil, fmt.Errorf("the network of berth has no free address in %s for %s: %w", subnet, name, errs.Exhausted)
		}
		taken[address] = true
		chosen = append(chosen, address)
	}
	return chosen, nil
}

// highest is the last address of a subnet that a pod may have.
func highest(subnet netip.Prefix) netip.Addr {
	bytes := subnet.Masked().Addr().AsSlice()
	host := min(subnet.Addr().BitLen()-subnet.Bits(), 16)
	for bit := range host {
		bytes[len(bytes)-1-bit/8] |= 1 << (bit % 8)
	}
	last, _ := netip.AddrFromSlice(bytes)
	if last.Is4() && subnet.Addr().BitLen()-subnet.Bits() <= 16 {
		last = last.Prev() // for broadcasts
	}
	return last
}

// taken are the addresses of all pods, and those that stopped nodes will have.
func (e *Provider) taken(ctx context.Context) (map[netip.Addr]bool, error) {
	taken, err := e.used(ctx, "")
	if err != nil {
		return nil, err
	}
	all, err := e.records("")
	if err != nil {
		return nil, err
	}
	for _, r := range all {
		for _, a := range r.Addresses {
			taken[a] = true
		}
	}
	return taken, nil
}

// used are the addresses of all running pods except those of a node.
func (e *Provider) used(ctx context.Context, but string) (map[netip.Addr]bool, error) {
	list, err := e.conn.Runtime.ListPodSandbox(ctx, &runtimeapi.ListPodSandboxRequest{Filter: &runtimeapi.PodSandboxFilter{
		State: &runtimeapi.PodSandboxStateValue{State: runtimeapi.PodSandboxState_SANDBOX_READY},
	}})
	if err != nil {
		return nil, fmt.Errorf("cannot list the pods of berth: %w", err)
	}
	used := map[netip.Addr]bool{}
	for _, sandbox := range list.GetItems() {
		if but != "" && sandbox.GetLabels()[provider.LabelNode] == but {
			continue
		}
		addresses, err := e.addresses(ctx, sandbox.GetId())
		if errs.IgnoreNotFound(err) != nil {
			return nil, err
		}
		for _, a := range addresses {
			used[a] = true
		}
	}
	return used, nil
}

// addresses are those of a pod; none if it is on the host's network.
func (e *Provider) addresses(ctx context.Context, sandbox string) ([]netip.Addr, error) {
	status, err := e.conn.Runtime.PodSandboxStatus(ctx, &runtimeapi.PodSandboxStatusRequest{PodSandboxId: sandbox})
	if err != nil {
		return nil, fmt.Errorf("cannot read the addresses of pod %.12s: %w", sandbox, err)
	}
	network := status.GetStatus().GetNetwork()
	texts := []string{network.GetIp()}
	for _, more := range network.GetAdditionalIps() {
		texts = append(texts, more.GetIp())
	}
	var all []netip.Addr
	for _, text := range texts {
		if a, err := netip.ParseAddr(text); err == nil {
			all = append(all, a)
		}
	}
	return all, nil
}
