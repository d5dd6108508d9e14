// Package cluster makes clusters of nodes that are containers, finds them again and
// removes them: one file a verb, with its order of steps on one page. What a cluster is
// to be is in config, which containers that means in plan, how an engine makes them in
// provider, and what runs in them is the business of kubeadm and of berth in the node.
//
// Nothing is remembered outside of the containers: their labels say of which cluster they
// are, and what they are in it.
package cluster

import (
	"context"
	"time"

	"github.com/berthrun/berth/internal/cluster/kubeconfig"
	"github.com/berthrun/berth/internal/cluster/plan"
	"github.com/berthrun/berth/internal/cluster/provider"
	"github.com/berthrun/berth/internal/cluster/registry"
	"github.com/berthrun/berth/internal/cluster/report"
)

// Clusters are those of one provider.
type Clusters struct {
	Provider provider.Provider
	// Network is the provider's network that nodes are on; "" is plan.DefaultNetwork.
	Network string
	// Kubeconfig are the files that clusters are put into.
	Kubeconfig kubeconfig.Files
	report.Reporter
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

// Registry manages the registry that the clusters share.
func (c *Clusters) Registry() registry.Manager {
	return registry.Manager{Provider: c.Provider, Network: c.network(), Reporter: c.Reporter}
}
