// Package inventory finds the clusters of a provider and their containers. Nothing is stored
// outside of the containers: their labels have the cluster and the role.
package inventory

import (
	"context"
	"fmt"
	"slices"

	"github.com/berthrun/berth/internal/cluster/config"
	"github.com/berthrun/berth/internal/cluster/plan"
	"github.com/berthrun/berth/internal/cluster/provider"
	"github.com/berthrun/berth/internal/errs"
)

// Nodes returns the containers of a cluster. The error is errs.NotFound when there are none, and errs.Invalid for an
// empty name, which is that of every cluster to a provider.
func Nodes(ctx context.Context, p provider.Provider, cluster string) ([]provider.Node, error) {
	if cluster == "" {
		return nil, ErrNoName
	}
	all, err := p.List(ctx, cluster)
	all = slices.DeleteFunc(all, IsTrial)
	if err == nil && len(all) == 0 {
		err = fmt.Errorf("no nodes found for cluster %q in %s: %w", cluster, p.Name(), errs.NotFound)
	}
	return all, err
}

// ErrNoName is the error for a cluster without a name.
var ErrNoName = fmt.Errorf("the name of the cluster is empty: %w", errs.Invalid)

// AllNodes returns the containers of all clusters.
func AllNodes(ctx context.Context, p provider.Provider) ([]provider.Node, error) {
	all, err := p.List(ctx, "")
	return slices.DeleteFunc(all, func(n provider.Node) bool { return n.Labels[plan.LabelCluster] == plan.RegistryGroup || IsTrial(n) }), err
}

// Role returns the role of a container in its cluster.
func Role(n provider.Node) config.Role { return config.Role(n.Labels[plan.LabelRole]) }

// TrialRole is the role of a container that is created to check its image. It is not a node.
const TrialRole = "trial"

// IsTrial reports whether a container has the role TrialRole.
func IsTrial(n provider.Node) bool { return Role(n) == TrialRole }

// ControlPlane returns the first control plane that runs, else the first. The error is errs.State
// when there is none.
func ControlPlane(all []provider.Node) (provider.Node, error) {
	var found *provider.Node
	for i, n := range all {
		if Role(n) == config.ControlPlane && (found == nil || n.Running && !found.Running) {
			found = &all[i]
		}
	}
	if found == nil {
		return provider.Node{}, fmt.Errorf("the cluster has no control plane: %w", errs.State)
	}
	return *found, nil
}

// Balancer returns the load balancer of a cluster; found is false if it has none.
func Balancer(all []provider.Node) (b provider.Node, found bool) {
	for _, n := range all {
		if Role(n) == config.BalancerRole {
			return n, true
		}
	}
	return b, false
}

// Members returns the names of the containers that are nodes in Kubernetes: all but the load
// balancer.
func Members(all []provider.Node) []string {
	var found []string
	for _, n := range all {
		if Role(n) != config.BalancerRole {
			found = append(found, n.Name)
		}
	}
	return found
}

// Names returns the names of containers.
func Names(all []provider.Node) []string {
	var names []string
	for _, n := range all {
		names = append(names, n.Name)
	}
	return names
}

// Contexts returns the names that a cluster has in kubeconfig files, at least one.
func Contexts(name string, all []provider.Node) []string {
	var found []string
	for _, n := range all {
		if context := n.Labels[plan.LabelContext]; context != "" && !slices.Contains(found, context) {
			found = append(found, context)
		}
	}
	if len(found) == 0 {
		// No container is left whose label has it.
		found = []string{plan.ContextName(&config.Cluster{Name: name})}
	}
	return found
}
