// Package registry manages the registry that the clusters of a provider share: a container beside
// the nodes, and the mirrors in the nodes that point to it. Package server is the program in that
// container.
package registry

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/berthrun/berth/internal/cluster/addons"
	"github.com/berthrun/berth/internal/cluster/config"
	"github.com/berthrun/berth/internal/cluster/inventory"
	"github.com/berthrun/berth/internal/cluster/noderuntime"
	"github.com/berthrun/berth/internal/cluster/plan"
	"github.com/berthrun/berth/internal/cluster/provider"
	"github.com/berthrun/berth/internal/cluster/report"
	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/registries"
)

// DefaultPort is the port of a registry that is started without one.
const DefaultPort = 5001

// Options are what a registry is created from.
type Options struct {
	// Image is a node image, which has the registry's program; "" is config.DefaultImage.
	Image string
	// Port is the port of the host's loopback address. 0 is the port that the registry has, or a
	// free one.
	Port int
}

// Status is the state of the registry.
type Status struct {
	// Name is the name of the container. Address is the host and port of images that are pushed
	// from this host.
	Name    string `json:"name"`
	Address string `json:"address"`
	State   string `json:"state"`
	Running bool   `json:"running"`
	Image   string `json:"image"`

	// port is that of Address. It is 0, and Address "", of a stopped registry whose port the provider
	// does not report.
	port int
}

// Manager manages the registry of one provider.
type Manager struct {
	Provider provider.Provider
	// Network is the name of the provider's network that nodes are on.
	Network string
	// Patience is how long the registry's port of the host may be closed before it counts as out of reach; 0 is the default.
	Patience time.Duration
	report.Reporter
}

// Status returns the state of the registry. The error is errs.NotFound when there is none.
func (m Manager) Status(ctx context.Context) (Status, error) {
	found, err := m.Provider.List(ctx, plan.RegistryGroup)
	if err != nil {
		return Status{}, err
	}
	if len(found) == 0 {
		return Status{}, fmt.Errorf("there is no registry in %s; berth cluster registry start creates one: %w", m.Provider.Name(), errs.NotFound)
	}
	n := found[0]
	s := Status{Name: n.Name, State: n.State, Running: n.Running, Image: n.Image}
	if at, err := n.Endpoint(plan.RegistryPort); err == nil {
		s.port, s.Address = int(at.Port()), net.JoinHostPort("localhost", strconv.Itoa(int(at.Port())))
	}
	return s, nil
}

// Start creates the registry or starts it, and adds its mirrors to all clusters that run. Clusters
// that are created later have them from the start.
func (m Manager) Start(ctx context.Context, o Options) (Status, error) {
	var s Status
	err := m.RunStep("Starting the registry", func() (err error) {
		s, _, err = m.Ensure(ctx, o)
		return err
	})
	if err != nil {
		return s, err
	}
	clusters, err := inventory.Clusters(ctx, m.Provider)
	if err != nil {
		return s, err
	}
	var failed []error
	for _, summary := range clusters {
		if summary.Running == 0 {
			continue
		}
		failed = append(failed, m.RunStep("Configuring the registry on the nodes of "+summary.Name, func() error { return m.addToCluster(ctx, summary.Name, s) }))
	}
	return s, errors.Join(failed...)
}

// Stop stops the registry; its images stay.
func (m Manager) Stop(ctx context.Context) error {
	if _, err := m.Status(ctx); err != nil {
		return err
	}
	return m.RunStep("Stopping the registry", func() error { return m.Provider.Stop(ctx, plan.RegistryName) })
}

// Delete removes the registry with its images. The network stays, as with a cluster, and so do the
// mirrors in the nodes, which lead nowhere. found reports whether there was a registry; an absent
// one is no error.
func (m Manager) Delete(ctx context.Context) (found bool, err error) {
	all, err := m.Provider.List(ctx, plan.RegistryGroup)
	if err != nil {
		return false, err
	}
	err = m.RunStep("Deleting the registry", func() error {
		return m.Provider.DeleteCluster(ctx, plan.RegistryGroup)
	})
	if err != nil {
		return len(all) > 0, fmt.Errorf("cannot delete the registry: %w", err)
	}
	return len(all) > 0, nil
}

// Find returns the state of the registry, or nil if there is none. One whose port is not known counts
// as none: its start configures it on the nodes.
func (m Manager) Find(ctx context.Context) (*Status, error) {
	s, err := m.Status(ctx)
	if errors.Is(err, errs.NotFound) || err == nil && s.port == 0 {
		return nil, nil
	}
	return &s, err
}

// Mirrors returns the entries that lead a node to the registry, one for each name that an image may
// have been pushed by.
func (s Status) Mirrors() []registries.Registry {
	inside := net.JoinHostPort(plan.RegistryName, strconv.Itoa(plan.RegistryPort))
	var all []registries.Registry
	for _, host := range []string{s.Address, net.JoinHostPort("127.0.0.1", strconv.Itoa(s.port)), inside} {
		all = append(all, registries.Registry{Host: host, Server: "http://" + inside})
	}
	return all
}

// HostingConfigMap returns the ConfigMap by which tools find the registry of a cluster (KEP-1755).
func (s Status) HostingConfigMap() string {
	return fmt.Sprintf(`apiVersion: v1
kind: ConfigMap
metadata: {name: local-registry-hosting, namespace: kube-public}
data:
  localRegistryHosting.v1: |
    host: %q
    hostFromContainerRuntime: "%s:%d"
    help: "push to %[1]s on the host of the cluster; berth cluster registry status shows more"
`, s.Address, plan.RegistryName, plan.RegistryPort)
}

// addToCluster adds the mirrors to the running nodes of a cluster, and the ConfigMap to the
// cluster.
func (m Manager) addToCluster(ctx context.Context, name string, s Status) error {
	all, err := inventory.Nodes(ctx, m.Provider, name)
	if err != nil {
		return err
	}
	group, within := errgroup.WithContext(ctx)
	for _, n := range all {
		if n.Running && inventory.Role(n) != config.BalancerRole {
			group.Go(func() error {
				runtime, _, err := noderuntime.Identify(within, m.Provider, n)
				if err != nil {
					return err
				}
				return noderuntime.WriteRegistries(within, m.Provider, n.Name, runtime, s.Mirrors())
			})
		}
	}
	if err := group.Wait(); err != nil {
		return err
	}
	first, err := inventory.ControlPlane(all)
	if err != nil || !first.Running {
		return err
	}
	if err := addons.Apply(ctx, m.Provider, first.Name, s.HostingConfigMap()); err != nil {
		return fmt.Errorf("%s has no entry for its registry (ConfigMap kube-public/local-registry-hosting): %w", name, err)
	}
	return nil
}
