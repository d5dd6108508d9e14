package cluster

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/berthrun/berth/internal/cluster/inventory"
	"github.com/berthrun/berth/internal/cluster/kubeapi"
	"github.com/berthrun/berth/internal/cluster/nodenet"
	"github.com/berthrun/berth/internal/cluster/noderuntime"
	"github.com/berthrun/berth/internal/cluster/provider"
	"github.com/berthrun/berth/internal/errs"
)

// Stop stops all containers of a cluster. What is on their disks stays.
func (c *Clusters) Stop(ctx context.Context, name string) error {
	all, err := inventory.Nodes(ctx, c.Provider, name)
	if err != nil {
		return err
	}
	return c.RunStep("Stopping nodes of "+name, func() error { return c.Provider.Stop(ctx, inventory.Names(all)...) })
}

// Start starts the stopped containers of a cluster. It writes the routes again and updates the entries of kubeconfig
// files, because ports that the provider picks, and addresses, may have changed.
func (c *Clusters) Start(ctx context.Context, name string, wait time.Duration) error {
	all, err := inventory.Nodes(ctx, c.Provider, name)
	if err != nil {
		return err
	}
	started := starts{}
	for _, n := range all {
		if !n.Running {
			started[n.Name] = time.Now().Truncate(time.Second)
		}
	}
	err = c.RunStep("Starting nodes of "+name, func() error {
		if err := c.Provider.Start(ctx, inventory.Names(all)...); err != nil {
			return err
		}
		if all, err = inventory.Nodes(ctx, c.Provider, name); err != nil {
			return err
		}
		return nodenet.Rebalance(ctx, c.Provider, all)
	})
	if err != nil {
		return err
	}
	admin, err := c.Config(ctx, name, false)
	if err != nil {
		return err
	}
	var client *kubeapi.Client
	defer func() { client.Close() }()
	err = c.RunStep("Connecting the nodes' pods", func() (err error) {
		if client, _, err = c.openAPI(ctx, name, admin, startPatience); err != nil {
			return err
		}
		return c.reconnect(ctx, all, client)
	})
	// Neither depends on the other.
	err = errors.Join(err, c.updateKubeconfig(ctx, name))
	if err != nil || wait == 0 {
		return err
	}
	return c.RunStep("Waiting for all nodes to be Ready", func() error {
		if err := c.byNodesClock(ctx, all, started); err != nil {
			return err
		}
		return waitReady(ctx, client, inventory.Members(all), started, wait)
	})
}

// byNodesClock changes times of this host to those of the nodes, which have the clock of the engine's host.
func (c *Clusters) byNodesClock(ctx context.Context, all []provider.Node, started starts) error {
	node, err := inventory.ControlPlane(all)
	if err != nil || len(started) == 0 {
		return err
	}
	text, err := provider.Output(ctx, c.Provider, node.Name, "date", "+%s")
	now := time.Now()
	if err != nil {
		return fmt.Errorf("cannot find the time of the nodes: %w", err)
	}
	seconds, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		return fmt.Errorf("cannot find the time of the nodes: %s says %q: %w", node.Name, text, errs.Invalid)
	}
	for name, at := range started {
		started[name] = at.Add(time.Unix(seconds, 0).Sub(now)).Truncate(time.Second)
	}
	return nil
}

// reconnect writes the routes again where the nodes use berth's pod network.
func (c *Clusters) reconnect(ctx context.Context, all []provider.Node, client *kubeapi.Client) error {
	node, err := inventory.ControlPlane(all)
	if err != nil {
		return err
	}
	runtime, _, err := noderuntime.Identify(ctx, c.Provider, node)
	if err != nil || !runtime.IsBerth() {
		return err
	}
	mode, err := provider.Output(ctx, c.Provider, node.Name, "sed", "-n", "s/^mode = '\\(.*\\)'/\\1/p", noderuntime.DaemonFile)
	if err != nil {
		return fmt.Errorf("cannot find the network of the nodes: %w", err)
	}
	if mode != "builtin" {
		return nil
	}
	return nodenet.Connect(ctx, c.Provider, c.Warn, client, all)
}
