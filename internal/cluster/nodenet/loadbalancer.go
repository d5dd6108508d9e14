// Package nodenet connects the nodes of a cluster: the load balancer of several control planes, and
// the routes between nodes that carry the traffic of berth's pod network.
package nodenet

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/berthrun/berth/internal/cluster/config"
	"github.com/berthrun/berth/internal/cluster/innode"
	"github.com/berthrun/berth/internal/cluster/inventory"
	"github.com/berthrun/berth/internal/cluster/nodeimage"
	"github.com/berthrun/berth/internal/cluster/provider"
)

// Balance configures the load balancer of a cluster, if it has one, with the control planes among
// the containers.
func Balance(ctx context.Context, p provider.Provider, all []provider.Node, net config.Networking) error {
	return configure(ctx, p, all, innode.Balancer{IPv4: net.IPFamily != config.IPv6, IPv6: net.HasIPv6()})
}

// Rebalance is Balance without the description of the cluster: the load balancer keeps the address
// families that it listens on.
func Rebalance(ctx context.Context, p provider.Provider, all []provider.Node) error {
	b, found := inventory.Balancer(all)
	if !found {
		return nil
	}
	text, err := provider.Output(ctx, p, b.Name, "cat", innode.BalancerFile)
	if err != nil {
		return fmt.Errorf("cannot read the load balancer's configuration from %s: %w", b.Name, err)
	}
	var current innode.Balancer
	if err := json.Unmarshal([]byte(text), &current); err != nil {
		return fmt.Errorf("%s of %s: %w", innode.BalancerFile, b.Name, err)
	}
	return configure(ctx, p, all, current)
}

// configure sends the configuration to the load balancer.
func configure(ctx context.Context, p provider.Provider, all []provider.Node, what innode.Balancer) error {
	b, found := inventory.Balancer(all)
	if !found {
		return nil
	}
	what.Servers = servers(all, what.IPv4)
	text, err := json.Marshal(what)
	if err != nil {
		return err
	}
	command := provider.Command{Args: []string{nodeimage.EntryProgram, "cluster", "in-node", "rebalance"}, Stdin: bytes.NewReader(text)}
	if err := p.Exec(ctx, b.Name, command); err != nil {
		return withLog(ctx, p, b.Name, err)
	}
	return nil
}

// servers returns the control planes with their stable addresses, or their names where they have
// none.
func servers(all []provider.Node, v4 bool) []innode.Server {
	var found []innode.Server
	for _, n := range all {
		if inventory.Role(n) != config.ControlPlane {
			continue
		}
		s := innode.Server{Name: n.Name, Host: n.Name}
		for _, a := range n.Stable() {
			if a.Is4() == v4 {
				s.Host = a.String()
				break
			}
		}
		found = append(found, s)
	}
	return found
}

// withLog adds the last lines of a load balancer's log to an error.
func withLog(ctx context.Context, p provider.Provider, name string, failed error) error {
	if ctx.Err() != nil {
		return failed
	}
	var log bytes.Buffer
	if err := p.Logs(ctx, name, &log); err != nil {
		return errors.Join(failed, err)
	}
	const kept = 5
	lines := strings.Split(strings.TrimSpace(strings.ReplaceAll(log.String(), "\r", "")), "\n")
	return fmt.Errorf("%w\nlast words of %s:\n  %s", failed, name, strings.Join(lines[max(0, len(lines)-kept):], "\n  "))
}
