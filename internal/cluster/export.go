package cluster

import (
	"context"
	"fmt"

	"k8s.io/client-go/tools/clientcmd/api"

	"github.com/berthrun/berth/internal/cluster/inventory"
	"github.com/berthrun/berth/internal/errs"
)

// Config is the kubeconfig of a cluster: for this host, or, internal, for containers on the
// network of its nodes.
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

// Export puts a cluster into the kubeconfig files, and tells which.
func (c *Clusters) Export(ctx context.Context, name string, internal bool) (file, context string, err error) {
	config, err := c.Config(ctx, name, internal)
	if err != nil {
		return "", "", err
	}
	file, err = c.Kubeconfig.Merge(ctx, config)
	return file, config.CurrentContext, err
}
