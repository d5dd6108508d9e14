// Package cluster creates, changes, starts, stops and deletes clusters whose nodes are containers:
// one file a verb, with the list of its steps on one page. Package config has the cluster file,
// plan its containers, provider creates them, and kubeadm has the configuration of what runs in
// them.
//
// Nothing is stored outside of the containers: their labels have the cluster and the role.
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
	// Kubeconfig are the kubeconfig files that get the clusters.
	Kubeconfig kubeconfig.Files
	report.Reporter
	// FirstTime reports whether a warning is new to this user on this host; nil: it always is.
	FirstTime func(what string) bool
	// LockRegistry waits until no other process creates or removes the registry; nil does not lock.
	LockRegistry func(context.Context) (release func(), err error)
	// ShareCreation is held while this process creates a cluster, at the same time as others may. It
	// waits for the end of an OwnCreation, whose error is errs.State while another process holds
	// ShareCreation. nil does not lock.
	ShareCreation func(context.Context) (release func(), err error)
	OwnCreation   func() (release func(), err error)

	// watchPause is the time between two checks of a node for crashes; 0 is the default.
	watchPause time.Duration
	// patience is how long to wait for an API, or a registry, at its port of the host; 0 is the default.
	patience time.Duration
}

// network returns the name of the provider's network.
func (c *Clusters) network() string {
	if c.Network == "" {
		return plan.DefaultNetwork
	}
	return c.Network
}

// Registry manages the registry that the clusters share.
func (c *Clusters) Registry() registry.Manager {
	return registry.Manager{Provider: c.Provider, Network: c.network(), Patience: c.patience, Reporter: c.Reporter}
}
