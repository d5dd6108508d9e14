package nodenet

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/berthrun/berth/internal/cluster/config"
	"github.com/berthrun/berth/internal/cluster/inventory"
	"github.com/berthrun/berth/internal/cluster/kubeapi"
	"github.com/berthrun/berth/internal/cluster/nodeimage"
	"github.com/berthrun/berth/internal/cluster/noderuntime"
	"github.com/berthrun/berth/internal/cluster/provider"
)

// ruleProtocol is the protocol number of these rules in a node's tables.
const ruleProtocol = 177

// podBridge is the bridge of the pods in a node.
const podBridge = "berth0"

// connectTime bounds the wait for the nodes' pod ranges. Controllers assign them at once,
// but on a busy machine they may have lost their lease and start again.
const connectTime = 5 * time.Minute

// Connect writes the routes to all other nodes' pods into the routes file of each running node, which
// berth follows there. Call it again when nodes are added or removed, or when
// their addresses change.
func Connect(ctx context.Context, p provider.Provider, warn func(string), client *kubeapi.Client, containers []provider.Node) error {
	waiting, cancel := context.WithTimeout(ctx, connectTime)
	defer cancel()
	members := inventory.Members(containers)
	nodes, err := client.WaitForNodes(waiting, kubeapi.AllNodes(members, func(n kubeapi.Node) bool { return len(n.PodCIDRs) > 0 && len(n.Addresses) > 0 }))
	if err != nil {
		return fmt.Errorf("not all nodes have a range of pods and an address: %w", err)
	}
	nodes, unknown := kubeapi.SelectNodes(nodes, members)
	for _, name := range unknown {
		warn(fmt.Sprintf("the API knows a node %s that has no container, and it gets no pods' routes; if it is gone for good: kubectl delete node %[1]s", name))
	}
	group, ctx := errgroup.WithContext(ctx)
	for _, n := range nodes {
		if !slices.ContainsFunc(containers, func(on provider.Node) bool { return on.Name == n.Name && on.Running }) {
			continue // it gets its routes at its start
		}
		group.Go(func() error {
			err := p.Exec(ctx, n.Name, provider.Command{Args: setCommand(), Stdin: strings.NewReader(routes(n.Name, nodes))})
			if err != nil {
				return fmt.Errorf("cannot write the routes to the pods of other nodes into %s (if its image has an older berth, create the cluster again): %w", n.Name, err)
			}
			return nil
		})
	}
	return group.Wait()
}

// setCommand replaces a node's routes by those of its input. An older berth, which has no such command, would print its help
// and succeed; it fails because it does not know the flag.
func setCommand() []string {
	return []string{nodeimage.EntryProgram, "net", "route", "set", "--config", noderuntime.DaemonFile, "-"}
}

// family is the flag of ip for an address.
func family(a netip.Addr) string {
	if a.Is4() {
		return "-4"
	}
	return "-6"
}

// routes returns the text of the routes file of one node.
func routes(node string, all []kubeapi.Node) string {
	text := "# Written by `berth cluster`: the pods of the other nodes.\n"
	for _, n := range all {
		if n.Name == node {
			continue
		}
		for _, cidr := range n.PodCIDRs {
			to, err := netip.ParsePrefix(cidr)
			if err != nil {
				continue // API servers have nothing else there
			}
			for _, a := range n.Addresses {
				if via, err := netip.ParseAddr(a); err == nil && via.Is4() == to.Addr().Is4() {
					text += fmt.Sprintf("%s via %s\n", to, via)
					break
				}
			}
		}
	}
	return text
}

// Services returns a script that rejects connections of pods to service addresses that have no
// rules of kube-proxy yet. Without it such a packet leaves the node by its default route, and the
// kernel keeps sending the connection there: CoreDNS would wait half a minute for the API.
func Services(net config.Networking) (string, error) {
	subnets, err := net.ServiceSubnets()
	if err != nil {
		return "", err
	}
	text := fmt.Sprintf("ip -4 rule flush protocol %d\nip -6 rule flush protocol %[1]d || :\n", ruleProtocol)
	for _, s := range subnets {
		text += fmt.Sprintf("ip %s rule add iif %s to %s type unreachable protocol %d\n", family(s.Addr()), podBridge, s.Masked(), ruleProtocol)
	}
	return text, nil
}
