package cluster

import (
	"context"
	"fmt"
	"net/netip"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/berthrun/berth/internal/cluster/config"
	"github.com/berthrun/berth/internal/cluster/innode"
	"github.com/berthrun/berth/internal/cluster/kubeapi"
	"github.com/berthrun/berth/internal/cluster/provider"
)

// routeProtocol marks routes and rules that are ours in a node's tables.
const routeProtocol = 177

// podBridge is the link of the pods in a node.
const podBridge = "berth0"

// connectTime bounds the wait for the nodes' pod ranges, which controllers give out at once.
const connectTime = 2 * time.Minute

// connect gives each node routes to the pods of all others.
func (m *creation) connect(ctx context.Context) error {
	return connect(ctx, m.Engine, m.api, len(m.Cluster.Nodes))
}

// connect writes the routes of each node into it, where a unit applies them, now and
// whenever the node starts. It is to be called again when nodes come, go or have other
// addresses.
func connect(ctx context.Context, engine Engine, client *kubeapi.Client, count int) error {
	waiting, cancel := context.WithTimeout(ctx, connectTime)
	defer cancel()
	nodes, err := client.Wait(waiting, func(nodes []kubeapi.Node) bool {
		for _, n := range nodes {
			if len(n.PodCIDRs) == 0 || len(n.Addresses) == 0 {
				return false
			}
		}
		return len(nodes) >= count
	})
	if err != nil {
		return fmt.Errorf("not all nodes have a range of pods and an address: %w", err)
	}
	group, ctx := errgroup.WithContext(ctx)
	for _, n := range nodes {
		group.Go(func() error {
			file := provider.File{Path: innode.RoutesFile, Content: []byte(routes(n.Name, nodes))}
			if err := engine.CopyTo(ctx, n.Name, file); err != nil {
				return err
			}
			return engine.Exec(ctx, n.Name, provider.Command{Args: []string{"systemctl", "restart", innode.RoutesUnit}})
		})
	}
	return group.Wait()
}

// family is the flag of ip for an address.
func family(a netip.Addr) string {
	if a.Is4() {
		return "-4"
	}
	return "-6"
}

// routes is a script that makes those of one node to all others' pods, and no others of ours.
func routes(node string, all []kubeapi.Node) string {
	text := fmt.Sprintf("ip -4 route flush proto %d\nip -6 route flush proto %[1]d || :\n", routeProtocol)
	for _, n := range all {
		if n.Name == node {
			continue
		}
		for _, cidr := range n.PodCIDRs {
			to, err := netip.ParsePrefix(cidr)
			if err != nil {
				continue // no API server has another thing there
			}
			for _, a := range n.Addresses {
				if via, err := netip.ParseAddr(a); err == nil && via.Is4() == to.Addr().Is4() {
					text += fmt.Sprintf("ip %s route replace %s via %s proto %d\n", family(via), to, via, routeProtocol)
					break
				}
			}
		}
	}
	return text
}

// services is a script that makes pods hear at once that nobody serves an address of a
// service. Without it what a pod sends before kube-proxy has its rules leaves the node for
// nowhere, and the kernel goes on to send the same connection there: CoreDNS would
// wait half a minute for its first answer of the API.
func services(net config.Networking) (string, error) {
	subnets, err := net.ServiceSubnets()
	if err != nil {
		return "", err
	}
	text := fmt.Sprintf("ip -4 rule flush protocol %d\nip -6 rule flush protocol %[1]d || :\n", routeProtocol)
	for _, s := range subnets {
		text += fmt.Sprintf("ip %s rule add iif %s to %s type unreachable protocol %d\n", family(s.Addr()), podBridge, s.Masked(), routeProtocol)
	}
	return text, nil
}
