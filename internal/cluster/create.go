package cluster

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/berthrun/berth/internal/cluster/config"
	"github.com/berthrun/berth/internal/cluster/inventory"
	"github.com/berthrun/berth/internal/cluster/plan"
	"github.com/berthrun/berth/internal/cluster/provider"
	"github.com/berthrun/berth/internal/cluster/registry"
	"github.com/berthrun/berth/internal/cluster/steps"
	"github.com/berthrun/berth/internal/errs"
)

// CreateOptions are the options of Create.
type CreateOptions struct {
	Cluster *config.Cluster
	// Retain keeps the nodes when something fails, for debugging.
	Retain bool
	// Wait is how long all nodes may take to be Ready; 0 waits for none.
	Wait time.Duration
	// OfKind waits as kind does: only for control planes, and not in time is a warning.
	OfKind bool
}

// Create creates a cluster, and returns the kubeconfig file that has it. When something fails, or
// ctx ends, it removes what it has created, unless Retain. When not all nodes are Ready in time, or
// ctx ends while it waits for them, it returns an error, and the cluster stays.
func (c *Clusters) Create(ctx context.Context, o CreateOptions) (string, error) {
	m := &createRun{builder: c.newBuilder(o.Cluster), retain: o.Retain}
	defer func() { m.api.Close() }()
	if err := m.check(ctx); err != nil {
		return "", err
	}
	file, err := m.runAll(ctx)
	if err != nil {
		return "", m.rollBack(ctx, err)
	}
	if o.Wait == 0 {
		return file, nil
	}
	return file, m.waitReady(ctx, o)
}

// waitReady waits until the nodes of the new cluster are Ready.
func (m *createRun) waitReady(ctx context.Context, o CreateOptions) error {
	if !o.OfKind {
		return m.RunStep("Waiting for all nodes to be Ready", func() error {
			return waitReady(ctx, m.api, inventory.Members(m.nodes), nil, o.Wait)
		})
	}
	planes := slices.DeleteFunc(slices.Clone(m.nodes), func(n provider.Node) bool { return inventory.Role(n) != config.ControlPlane })
	err := m.RunStep("Waiting for control planes to be Ready", func() error {
		return waitReady(ctx, m.api, inventory.Names(planes), nil, o.Wait)
	})
	if err != nil && ctx.Err() == nil {
		m.Warn(errs.Message(err))
		return nil
	}
	return err
}

// steps are the parts of Create in their order. Steps with a job run in the background.
func (m *createRun) steps() []steps.Step {
	m.init = steps.NewJob()
	otherNodes, mark, addOns, routes := steps.NewJob(), steps.NewJob(), steps.NewJob(), steps.NewJob()
	podNetwork := !m.Cluster.Networking.DisableDefaultCNI
	return []steps.Step{
		{Title: "Ensuring the node image", Run: m.ensureNodeImages},
		{Title: "Starting the registry", Run: m.startRegistry, Skip: !m.Cluster.Registry.Enabled},
		{Title: "Creating nodes", Run: m.makeNodes},
		{Title: "Setting up the nodes", Run: m.setUp},
		{Job: otherNodes, Run: m.setUpOthers},
		{Title: "Starting the control plane", Job: m.init, Run: m.initialize},
		{Job: mark, After: []*steps.Job{m.init}, Run: m.markControlPlane},
		{Run: m.awaitAPI},
		{Job: addOns, After: []*steps.Job{m.init}, Run: m.installAddons},
		{Job: routes, Run: m.connect, Skip: !podNetwork},
		{Run: m.awaitInit},
		{After: []*steps.Job{otherNodes}},
		{Title: joinTitle(m.others()), Run: m.joinOthers, Skip: len(m.Cluster.Nodes) == 1},
		{Title: "Installing add-ons", After: []*steps.Job{m.init, mark, addOns}, Run: m.includeOnlyNode},
		{Title: "Connecting the nodes' pods", After: []*steps.Job{routes}, Skip: !podNetwork},
		{Title: "Writing kubeconfig", Run: m.writeKubeconfig},
	}
}

// runAll runs all steps. When it returns, no step is running.
func (m *createRun) runAll(ctx context.Context) (file string, err error) {
	if m.ShareCreation != nil {
		release, err := m.ShareCreation(ctx)
		if err != nil {
			return "", fmt.Errorf("cannot create the cluster %s: %w", m.Cluster.Name, err)
		}
		defer release()
	}
	if err := steps.Run(ctx, m.Reporter, m.steps()); err != nil {
		return "", fmt.Errorf("cannot create the cluster %s: %w", m.Cluster.Name, err)
	}
	return m.kubeconfigFile, nil
}

// writeKubeconfig puts the cluster into the kubeconfig.
func (m *createRun) writeKubeconfig(ctx context.Context) (err error) {
	m.kubeconfigFile, err = m.Kubeconfig.Merge(ctx, m.admin)
	return err
}

// check refuses what cannot succeed, before anything is created.
func (m *createRun) check(ctx context.Context) error {
	name := m.Cluster.Name
	existing, err := m.Provider.List(ctx, name)
	if err != nil {
		return err
	}
	if len(existing) > 0 {
		return fmt.Errorf("node(s) already exist for a cluster with the name %q; choose another with --name, or berth cluster delete --name %s: %w", name, name, errs.Exists)
	}
	if err := m.checkDescription(); err != nil {
		return err
	}
	if err := m.Kubeconfig.Check(ctx); err != nil {
		return fmt.Errorf("the cluster %s would have no place in the kubeconfig: %w", name, err)
	}
	return m.checkHost()
}

// ensureNodeImages pulls the images of all nodes.
func (m *createRun) ensureNodeImages(ctx context.Context) error {
	return m.ensureImages(ctx, m.Cluster.Nodes)
}

// makeNodes creates the network and the containers.
func (m *createRun) makeNodes(ctx context.Context) (err error) {
	if err := m.makePlan(ctx); err != nil {
		return err
	}
	if err := m.checkSubnets(m.Provider.PlanHost(m.network)); err != nil {
		return err
	}
	if err := m.createContainers(ctx, m.plan.Containers, m.retain, nil); err != nil {
		return err
	}
	m.containersMade = true
	return nil
}

// rollBack removes what this run has created, and nothing else, also when ctx has ended. The registry
// and the network stay if another cluster may use them.
func (m *createRun) rollBack(ctx context.Context, failed error) error {
	name := m.Cluster.Name
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), undoTimeout)
	defer cancel()
	if m.retain && m.hasContainers(ctx) {
		return fmt.Errorf("%w\n  nodes stay as they are: berth cluster logs --name %s, berth cluster delete --name %s", failed, name, name)
	}
	network := m.registryMade.Network
	if m.network.Made {
		network = m.network.Name
	}
	if !m.containersMade && !m.registryMade.Container && network == "" {
		return failed
	}
	undone := m.RunStep("Removing what was made", func() error {
		var all []error
		if m.containersMade {
			all = append(all, m.Provider.DeleteCluster(ctx, name))
		}
		return errors.Join(append(all, m.removeShared(ctx, network))...)
	})
	if undone != nil {
		undone = fmt.Errorf("cannot remove what was made; berth cluster delete --name %s tries again: %w", name, undone)
	}
	return errors.Join(failed, undone)
}

// removeShared removes the registry and the network that this run has created, unless another cluster
// may use them: one that another process creates has neither nodes nor labels at first.
func (m *createRun) removeShared(ctx context.Context, network string) error {
	others := false
	if m.OwnCreation != nil {
		release, err := m.OwnCreation()
		if others = errors.Is(err, errs.State); err != nil && !others {
			return err
		}
		if err == nil {
			defer release()
		}
	}
	var all []error
	if m.registryMade.Container {
		all = append(all, m.whileRegistryLocked(ctx, func() error {
			clusters, err := inventory.Clusters(ctx, m.Provider)
			if err != nil {
				return err
			}
			if others || slices.ContainsFunc(clusters, func(s inventory.Summary) bool { return s.Name != m.Cluster.Name }) {
				m.Warn("the registry that was made stays, because other clusters may use it\n  to remove it: berth cluster registry delete")
				return nil
			}
			return m.Provider.DeleteCluster(ctx, plan.RegistryGroup)
		}))
	}
	if network != "" && !others {
		all = append(all, m.Provider.RemoveNetwork(ctx, network))
	}
	return errors.Join(all...)
}

// hasContainers reports whether the cluster has containers: a provider that has failed to create
// all may have created some. It is true when the provider does not answer.
func (m *createRun) hasContainers(ctx context.Context) bool {
	all, err := m.Provider.List(ctx, m.Cluster.Name)
	return err != nil || len(all) > 0
}

// startRegistry starts the registry before the nodes, which get its mirrors.
func (m *createRun) startRegistry(ctx context.Context) error {
	return m.whileRegistryLocked(ctx, func() error {
		image, err := m.helperImage(ctx)
		if err == nil {
			_, m.registryMade, err = m.Registry().Ensure(ctx, registry.Options{Port: m.Cluster.Registry.Port, Image: image})
		}
		return err
	})
}

// whileRegistryLocked calls a function while no other process creates or removes the registry.
func (m *createRun) whileRegistryLocked(ctx context.Context, do func() error) error {
	if m.LockRegistry != nil {
		release, err := m.LockRegistry(ctx)
		if err != nil {
			return err
		}
		defer release()
	}
	return do()
}
