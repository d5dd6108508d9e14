package cluster

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"
	"k8s.io/client-go/tools/clientcmd/api"

	"github.com/berthrun/berth/internal/cluster/config"
	"github.com/berthrun/berth/internal/cluster/kubeapi"
	"github.com/berthrun/berth/internal/cluster/kubeconfig"
	"github.com/berthrun/berth/internal/cluster/plan"
	"github.com/berthrun/berth/internal/cluster/provider"
)

// adminFile is kubeadm's kubeconfig of an administrator, on control planes.
const adminFile = "/etc/kubernetes/admin.conf"

// startControlPlane runs `kubeadm init` on the first control plane.
func (m *creation) startControlPlane(ctx context.Context) error {
	first, _ := m.plan.Entrance()
	if err := m.kubeadm(ctx, first.Name, "init", "--skip-token-print"); err != nil {
		return err
	}
	node, err := m.find(first.Name)
	if err != nil {
		return err
	}
	if m.admin, err = m.kubeconfig(ctx, node, m.plan.Context, false); err != nil {
		return err
	}
	if m.api, err = kubeapi.New(m.admin); err != nil {
		return err
	}
	return m.background.Wait()
}

// joinWorkers runs `kubeadm join` on all workers at once.
func (m *creation) joinWorkers(ctx context.Context) error {
	group, ctx := errgroup.WithContext(ctx)
	for _, n := range m.Cluster.Nodes {
		if n.Role == config.Worker {
			group.Go(func() error { return m.kubeadm(ctx, m.Cluster.ContainerName(n), "join") })
		}
	}
	return group.Wait()
}

func (m *creation) kubeadm(ctx context.Context, node, verb string, flags ...string) error {
	args := append([]string{"kubeadm", verb, "--config=" + m.runtimes[node].kubeadmFile}, flags...)
	if err := m.Engine.Exec(ctx, node, provider.Command{Args: args}); err != nil {
		return m.explain(ctx, node, err)
	}
	return nil
}

// kubeconfig is the cluster's, for this host or, internal, for its nodes' network.
func (c *Clusters) kubeconfig(ctx context.Context, node provider.Node, name string, internal bool) (*api.Config, error) {
	text, err := c.output(ctx, node.Name, "cat", adminFile)
	if err != nil {
		return nil, fmt.Errorf("the cluster has no kubeconfig: %w", err)
	}
	server := ""
	if !internal {
		at, err := node.Endpoint(plan.APIPort)
		if err != nil {
			return nil, err
		}
		server = kubeconfig.Server(at.Addr().String(), int(at.Port()))
	}
	return kubeconfig.FromAdmin([]byte(text), name, server)
}

// waitReady waits for all nodes.
func (m *creation) waitReady(ctx context.Context) error {
	return waitReady(ctx, m.api, members(m.nodes), time.Time{}, m.CreateOptions.Wait)
}

// waitReady waits until these nodes have said since a time that they are Ready: what they said
// before they were stopped holds on for a while.
func waitReady(ctx context.Context, client *kubeapi.Client, members []string, since time.Time, wait time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	nodes, err := client.Wait(ctx, every(members, func(n kubeapi.Node) bool { return n.Ready && !n.Seen.Before(since) }))
	if err == nil {
		return nil
	}
	return lateness(members, wait, nodes, err)
}

// lateness says which nodes are not Ready, and why.
func lateness(members []string, wait time.Duration, nodes []kubeapi.Node, err error) error {
	var slow []string
	for _, name := range members {
		i := slices.IndexFunc(nodes, func(n kubeapi.Node) bool { return n.Name == name })
		switch {
		case i < 0:
			slow = append(slow, name+" (the API has not heard of it)")
		case !nodes[i].Ready:
			slow = append(slow, name+" ("+nodes[i].Why+")")
		}
	}
	return fmt.Errorf("not all of %d nodes are Ready after %s, and the cluster stays as it is: %s: %w", len(members), wait, strings.Join(slow, ", "), err)
}
