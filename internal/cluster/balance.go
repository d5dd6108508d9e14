package cluster

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

// balance tells the load balancer of a cluster, if there is one, to spread the API over the
// control planes among the containers.
func (c *Clusters) balance(ctx context.Context, all []provider.Node, net config.Networking) error {
	return c.tell(ctx, all, innode.Balancer{IPv4: net.IPFamily != config.IPv6, IPv6: net.HasIPv6()})
}

// rebalance does so for a cluster whose description is not at hand: it listens as before.
func (c *Clusters) rebalance(ctx context.Context, all []provider.Node) error {
	b, found := inventory.Balancer(all)
	if !found {
		return nil
	}
	text, err := provider.Output(ctx, c.Provider, b.Name, "cat", innode.BalancerFile)
	if err != nil {
		return fmt.Errorf("cannot ask %s what it balances: %w", b.Name, err)
	}
	var told innode.Balancer
	if err := json.Unmarshal([]byte(text), &told); err != nil {
		return fmt.Errorf("%s of %s: %w", innode.BalancerFile, b.Name, err)
	}
	return c.tell(ctx, all, told)
}

func (c *Clusters) tell(ctx context.Context, all []provider.Node, what innode.Balancer) error {
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
	if err := c.Provider.Exec(ctx, b.Name, command); err != nil {
		return c.lastWords(ctx, b.Name, err)
	}
	return nil
}

// servers are the control planes as the load balancer finds them: by addresses that are theirs
// for good, or by their names.
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

// lastWords adds to a failure the end of what a load balancer has said.
func (c *Clusters) lastWords(ctx context.Context, name string, failed error) error {
	if ctx.Err() != nil {
		return failed
	}
	var log bytes.Buffer
	if err := c.Provider.Logs(ctx, name, &log); err != nil {
		return errors.Join(failed, err)
	}
	const kept = 5
	lines := strings.Split(strings.TrimSpace(strings.ReplaceAll(log.String(), "\r", "")), "\n")
	return fmt.Errorf("%w\nlast words of %s:\n  %s", failed, name, strings.Join(lines[max(0, len(lines)-kept):], "\n  "))
}
