package cluster

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/berthrun/berth/internal/cluster/config"
	"github.com/berthrun/berth/internal/cluster/innode"
	"github.com/berthrun/berth/internal/cluster/inventory"
	"github.com/berthrun/berth/internal/cluster/kubeapi"
	"github.com/berthrun/berth/internal/cluster/provider"
)

// routeProtocol marks routes and rules that are ours in a node's tables.
const routeProtocol = 177

// podBridge is the link of the pods in a node.
const podBridge = "berth0"

// connectTime bounds the wait for the nodes' pod ranges. Controllers give them out at once,
// but those of a busy machine may have lost their lease and start again.
const connectTime = 5 * time.Minute

// connect gives each node of a new cluster routes to the pods of all others. A network of
// the image's own does that itself.
func (m *creation) connect(ctx context.Context) error {
	if !m.ours() {
		return nil
	}
	return m.Clusters.connect(ctx, m.api, m.nodes)
}

// connect writes the routes of each of the containers that is a node into it, where a unit
// applies them, now and whenever the node starts. It is to be called again when nodes come, go
// or have other addresses.
func (c *Clusters) connect(ctx context.Context, client *kubeapi.Client, containers []provider.Node) error {
	waiting, cancel := context.WithTimeout(ctx, connectTime)
	defer cancel()
	members := inventory.Members(containers)
	nodes, err := client.Wait(waiting, every(members, func(n kubeapi.Node) bool { return len(n.PodCIDRs) > 0 && len(n.Addresses) > 0 }))
	if err != nil {
		return fmt.Errorf("not all nodes have a range of pods and an address: %w", err)
	}
	nodes, strangers := among(nodes, members)
	for _, name := range strangers {
		c.Warn(fmt.Sprintf("the API knows a node %s that has no container, and it gets no pods' routes; if it is gone for good: kubectl delete node %[1]s", name))
	}
	group, ctx := errgroup.WithContext(ctx)
	for _, n := range nodes {
		if !slices.ContainsFunc(containers, func(on provider.Node) bool { return on.Name == n.Name && on.Running }) {
			continue // it gets its routes when it is started
		}
		group.Go(func() error {
			file := provider.File{Path: innode.RoutesFile, Content: []byte(routes(n.Name, nodes))}
			return c.Provider.Exec(ctx, n.Name, provider.Command{Files: []provider.File{file}, Args: []string{"systemctl", "restart", innode.RoutesUnit}})
		})
	}
	return group.Wait()
}

// among are those nodes of the API that have containers, and the names of the others: who has
// removed a container by hand has left them.
func among(nodes []kubeapi.Node, members []string) (found []kubeapi.Node, strangers []string) {
	for _, n := range nodes {
		if slices.Contains(members, n.Name) {
			found = append(found, n)
			continue
		}
		strangers = append(strangers, n.Name)
	}
	return found, strangers
}

// every reports whether all containers are nodes of the API that are as wanted. Others need not be.
func every(members []string, wanted func(kubeapi.Node) bool) func([]kubeapi.Node) bool {
	return func(nodes []kubeapi.Node) bool {
		found, _ := among(nodes, members)
		return len(found) == len(members) && !slices.ContainsFunc(found, func(n kubeapi.Node) bool { return !wanted(n) })
	}
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
