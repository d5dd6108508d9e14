// Package cluster makes clusters of nodes that are containers, finds them again and
// removes them: one file a verb, with its order of steps on one page. What a cluster is
// to be is in config, which containers that means in plan, how an engine makes them in
// provider, and what runs in them is the business of kubeadm and of berth in the node.
//
// Nothing is remembered outside of the containers: their labels say of which cluster they
// are, and what they are in it.
package cluster

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/berthrun/berth/internal/cluster/config"
	"github.com/berthrun/berth/internal/cluster/kubeconfig"
	"github.com/berthrun/berth/internal/cluster/plan"
	"github.com/berthrun/berth/internal/cluster/provider"
	"github.com/berthrun/berth/internal/errs"
)

// Clusters are those of one provider.
type Clusters struct {
	Provider provider.Provider
	// Network is the provider's network that nodes are on; "" is plan.DefaultNetwork.
	Network string
	// Kubeconfig are the files that clusters are put into.
	Kubeconfig kubeconfig.Files
	// Step tells what is being done; the function that it returns is called at its end.
	Step func(text string) (end func(error))
	// Warn tells what is odd.
	Warn func(text string)
	// FirstTime reports whether something is told to this user for the first time on this host; nil is
	// that it always is.
	FirstTime func(what string) bool
	// LockRegistry waits until nobody else makes or removes the registry; nil is that nobody does.
	LockRegistry func(context.Context) (release func(), err error)

	// watchPause is how often a node is asked what has crashed; 0 is as usual.
	watchPause time.Duration
}

// network is the name of the engine's network.
func (c *Clusters) network() string {
	if c.Network == "" {
		return plan.DefaultNetwork
	}
	return c.Network
}

// step does something and tells of it.
func (c *Clusters) step(text string, do func() error) error {
	end := c.Step(text)
	err := do()
	end(err)
	return err
}

// Nodes are the containers of a cluster. It is errs.NotFound that there is none.
func (c *Clusters) Nodes(ctx context.Context, name string) ([]provider.Node, error) {
	all, err := c.Provider.List(ctx, name)
	all = slices.DeleteFunc(all, trial)
	if err == nil && len(all) == 0 {
		err = fmt.Errorf("no nodes found for cluster %q in %s: %w", name, c.Provider.Name(), errs.NotFound)
	}
	return all, err
}

// AllNodes are the containers of all clusters.
func (c *Clusters) AllNodes(ctx context.Context) ([]provider.Node, error) {
	all, err := c.Provider.List(ctx, "")
	return slices.DeleteFunc(all, func(n provider.Node) bool { return n.Labels[plan.LabelCluster] == plan.RegistryGroup || trial(n) }), err
}

// Role is what a container is to its cluster.
func Role(n provider.Node) config.Role { return config.Role(n.Labels[plan.LabelRole]) }

// controlPlane is the first control plane that runs, else the first.
func controlPlane(all []provider.Node) (provider.Node, error) {
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

// names are those of containers.
func names(all []provider.Node) []string {
	var names []string
	for _, n := range all {
		names = append(names, n.Name)
	}
	return names
}

// contexts are the names that a cluster has in kubeconfig files.
func contexts(name string, all []provider.Node) []string {
	var found []string
	for _, n := range all {
		if context := n.Labels[plan.LabelContext]; context != "" && !slices.Contains(found, context) {
			found = append(found, context)
		}
	}
	if len(found) == 0 {
		// None of its containers is left to say it.
		found = []string{plan.ContextName(&config.Cluster{Name: name})}
	}
	return found
}

// output is what a command in a node writes.
func (c *Clusters) output(ctx context.Context, node string, args ...string) (string, error) {
	var out bytes.Buffer
	err := c.Provider.Exec(ctx, node, provider.Command{Args: args, Stdout: &out})
	return strings.TrimSpace(out.String()), err
}
