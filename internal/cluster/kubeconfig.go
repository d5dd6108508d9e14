package cluster

import (
	"cmp"
	"context"
	"fmt"
	"net"
	"slices"
	"sync/atomic"
	"time"

	"k8s.io/client-go/tools/clientcmd/api"

	"github.com/berthrun/berth/internal/cluster/config"
	"github.com/berthrun/berth/internal/cluster/inventory"
	"github.com/berthrun/berth/internal/cluster/kubeadm"
	"github.com/berthrun/berth/internal/cluster/kubeapi"
	"github.com/berthrun/berth/internal/cluster/kubeconfig"
	"github.com/berthrun/berth/internal/cluster/plan"
	"github.com/berthrun/berth/internal/cluster/provider"
	"github.com/berthrun/berth/internal/cluster/tunnel"
	"github.com/berthrun/berth/internal/errs"
)

// Config returns the kubeconfig of a cluster: for this host, or, with internal, for containers on
// the network of its nodes. The error is errs.State when no control plane runs.
func (c *Clusters) Config(ctx context.Context, name string, internal bool) (*api.Config, error) {
	all, err := inventory.Nodes(ctx, c.Provider, name)
	if err != nil {
		return nil, err
	}
	plane, err := inventory.ControlPlane(all)
	if err != nil {
		return nil, err
	}
	if !plane.Running {
		return nil, fmt.Errorf("no control plane of %s runs; berth cluster start --name %s: %w", name, name, errs.State)
	}
	return c.kubeconfig(ctx, plane, all, inventory.Contexts(name, all)[0], internal)
}

// Export puts a cluster into the kubeconfig files. It returns the file and the context.
func (c *Clusters) Export(ctx context.Context, name string, internal bool) (file, context string, err error) {
	config, err := c.Config(ctx, name, internal)
	if err != nil {
		return "", "", err
	}
	file, err = c.Kubeconfig.Merge(ctx, config)
	return file, config.CurrentContext, err
}

// updateKubeconfig updates the entries of a cluster in the kubeconfig files: its API may be at another port.
func (c *Clusters) updateKubeconfig(ctx context.Context, name string) error {
	admin, err := c.Config(ctx, name, false)
	if err != nil {
		return err
	}
	internal, err := c.Config(ctx, name, true)
	if err != nil {
		return err
	}
	return c.Kubeconfig.Update(ctx, admin, internal.Clusters[internal.CurrentContext].Server)
}

// kubeconfig reads the kubeconfig of a cluster from a control plane, for this host or, with
// internal, for the network of its nodes.
func (c *Clusters) kubeconfig(ctx context.Context, plane provider.Node, all []provider.Node, name string, internal bool) (*api.Config, error) {
	text, err := provider.Output(ctx, c.Provider, plane.Name, "cat", kubeadm.AdminFile)
	if err != nil {
		return nil, fmt.Errorf("the cluster has no kubeconfig: %w", err)
	}
	server := ""
	if !internal {
		if server, err = serverOf(plane, all); err != nil {
			return nil, err
		}
	}
	return kubeconfig.FromAdmin([]byte(text), name, server)
}

// How long the API of a cluster may take to answer at its port of the host before a client goes through control planes, which
// always works: while nodes run, and after their start.
const (
	runningPatience = 5 * time.Second
	startPatience   = 20 * time.Second
)

// openAPI returns a client of the API of a cluster. If nothing answers at the server of its kubeconfig in time, the client
// goes through the cluster's control planes. Then the ports of the engine's host are not those of this process: the engine is
// on another host, or this process is in a container that has the engine's socket.
func (c *Clusters) openAPI(ctx context.Context, name string, admin *api.Config, patience time.Duration) (client *kubeapi.Client, direct bool, err error) {
	waiting, cancel := context.WithTimeout(ctx, cmp.Or(c.patience, patience))
	defer cancel()
	server := admin.Clusters[admin.CurrentContext].Server
	if kubeapi.AwaitServer(waiting, server) {
		client, err = kubeapi.New(admin, nil)
		return client, true, err
	}
	var dials atomic.Uint32
	client, err = kubeapi.New(admin, func(ctx context.Context, network, address string) (net.Conn, error) {
		if kubeapi.Answers(ctx, server) { // it was only slow to start
			var dialer net.Dialer
			return dialer.DialContext(ctx, network, address)
		}
		all, err := inventory.Nodes(ctx, c.Provider, name)
		if err != nil {
			return nil, err
		}
		planes := slices.DeleteFunc(all, func(n provider.Node) bool { return inventory.Role(n) != config.ControlPlane || !n.Running })
		if len(planes) == 0 {
			return nil, fmt.Errorf("no control plane of %s runs: %w", name, errs.State)
		}
		// In turn: one may run without an API, as before it has joined.
		return tunnel.Dial(ctx, c.Provider, planes[int(dials.Add(1)-1)%len(planes)].Name, plan.APIPort)
	})
	return client, false, err
}

// serverOf returns the URL of the API for this host: that of the load balancer, or of the control
// plane where there is none.
func serverOf(plane provider.Node, all []provider.Node) (string, error) {
	entrance, found := inventory.Balancer(all)
	if !found {
		entrance = plane
	}
	at, err := entrance.Endpoint(plan.APIPort)
	if err != nil {
		return "", err
	}
	return kubeconfig.Server(at.Addr().String(), int(at.Port())), nil
}
