package cluster

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/berthrun/berth/internal/cluster/config"
	"github.com/berthrun/berth/internal/cluster/inventory"
	"github.com/berthrun/berth/internal/cluster/plan"
	"github.com/berthrun/berth/internal/cluster/provider"
)

// Delete removes a cluster: its containers with their volumes, and its entries in kubeconfig files.
// The network stays, as with kind: scripts connect containers to it between two clusters. An error
// does not stop the rest. It returns no error for an absent cluster; found reports whether the cluster existed. The
// error is errs.Invalid for an empty name, and nothing is deleted then.
func (c *Clusters) Delete(ctx context.Context, name string) (found bool, err error) {
	if name == "" {
		return false, inventory.ErrNoName
	}
	all, err := c.Provider.List(ctx, name)
	if err != nil {
		return false, err
	}
	var failed []error
	known := inventory.Contexts(name, all)
	if len(all) == 0 {
		// No container is left whose label shows that the file was a kind file. Remove reports
		// files that cannot be read.
		asKind := plan.ContextName(&config.Cluster{Name: name, FromKind: true})
		if ours, err := c.Kubeconfig.Ours(asKind); err == nil && ours {
			known = append(known, asKind)
		}
	}
	for _, context := range known {
		failed = append(failed, c.Kubeconfig.Remove(ctx, context))
	}
	err = c.RunStep("Deleting nodes of "+name, func() error {
		return c.Provider.DeleteCluster(ctx, name)
	})
	if err = errors.Join(append(failed, err)...); err != nil {
		return len(all) > 0, fmt.Errorf("cannot delete the cluster %s: %w", name, err)
	}
	return len(all) > 0, nil
}

// networks returns the networks that containers were created on; without containers, the network of
// new clusters.
func (c *Clusters) networks(all []provider.Node) []string {
	var found []string
	for _, n := range all {
		if on := n.Labels[provider.LabelOn]; on != "" && !slices.Contains(found, on) {
			found = append(found, on)
		}
	}
	if len(found) == 0 {
		found = []string{c.network()}
	}
	return found
}
