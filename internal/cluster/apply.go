package cluster

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/berthrun/berth/internal/cluster/changes"
	"github.com/berthrun/berth/internal/cluster/config"
	"github.com/berthrun/berth/internal/cluster/inventory"
	"github.com/berthrun/berth/internal/cluster/noderuntime"
	"github.com/berthrun/berth/internal/cluster/plan"
	"github.com/berthrun/berth/internal/cluster/provider"
	"github.com/berthrun/berth/internal/cluster/steps"
	"github.com/berthrun/berth/internal/errs"
)

// Apply changes a cluster to match an edited cluster file. When something fails, the changes so far
// stay, without incomplete nodes. A second Apply makes the remaining changes.
func (c *Clusters) Apply(ctx context.Context, described *config.Cluster, o ApplyOptions) error {
	return c.changeCluster(ctx, described.Name, o, func(*config.Cluster) (*config.Cluster, error) {
		copied := *described
		return &copied, nil
	}, true)
}

// AddNodes adds nodes to a cluster.
func (c *Clusters) AddNodes(ctx context.Context, name string, a config.Addition, o ApplyOptions) error {
	return c.changeCluster(ctx, name, o, func(kept *config.Cluster) (*config.Cluster, error) { return kept.With(a) }, false)
}

// RemoveNodes removes nodes, by the names of their containers, from a cluster.
func (c *Clusters) RemoveNodes(ctx context.Context, name string, nodes []string, o ApplyOptions) error {
	return c.changeCluster(ctx, name, o, func(kept *config.Cluster) (*config.Cluster, error) { return kept.Without(nodes) }, false)
}

// changeCluster edits the cluster file of a cluster, and makes the resulting changes. whole also
// compares nodes that stay.
func (c *Clusters) changeCluster(ctx context.Context, name string, o ApplyOptions, edit func(kept *config.Cluster) (*config.Cluster, error), whole bool) error {
	m, err := c.inspect(ctx, name)
	if err != nil {
		return fmt.Errorf("cannot change the cluster %s: %w", name, err)
	}
	defer func() { m.api.Close() }()
	m.ApplyOptions = o
	if m.Cluster, err = edit(m.before); err == nil {
		err = m.computeChanges(ctx, whole)
	}
	if err != nil {
		return fmt.Errorf("cannot change the cluster %s: %w", name, err)
	}
	if o.Agree != nil {
		if err := o.Agree(m.Changes); err != nil {
			return err
		}
	}
	if m.None() {
		return nil
	}
	if err := m.prepare(ctx); err != nil {
		return fmt.Errorf("cannot change the cluster %s, and nothing was changed: %w", name, err)
	}
	if err := m.makeChanges(ctx); err != nil {
		return fmt.Errorf("cannot change the cluster %s; what was done stays, and the same once more does the rest: %w", name, err)
	}
	if o.Wait == 0 {
		return nil
	}
	return c.RunStep("Waiting for all nodes to be Ready", func() error { return waitReady(ctx, m.api, inventory.Members(m.nodes), nil, o.Wait) })
}

// inspect reads the containers and the cluster file of a cluster.
func (c *Clusters) inspect(ctx context.Context, name string) (*applyRun, error) {
	all, err := inventory.Nodes(ctx, c.Provider, name)
	if err != nil {
		return nil, err
	}
	there := *c
	there.Network = c.networks(all)[0]
	m := &applyRun{builder: there.newBuilder(nil), joining: map[string]bool{}, keepVolume: map[string]bool{}}
	m.nodes = all
	m.context = inventory.Contexts(name, m.nodes)[0]
	if plane, err := inventory.ControlPlane(m.nodes); err != nil || !plane.Running {
		return nil, errors.Join(err, fmt.Errorf("no control plane of it runs; berth cluster start --name %s: %w", name, errs.State))
	}
	if err := m.connectAPI(ctx); err != nil {
		return nil, err
	}
	if m.before, err = storedDescription(ctx, m.api, name); err != nil {
		m.api.Close()
		return nil, err
	}
	_, m.before.Balanced = inventory.Balancer(m.nodes)
	m.before.FromKind = m.context == plan.ContextName(&config.Cluster{Name: name, FromKind: true})
	return m, nil
}

// connectAPI creates a client of the cluster's API.
func (m *applyRun) connectAPI(ctx context.Context) error {
	plane, err := inventory.ControlPlane(m.nodes)
	if err != nil {
		return err
	}
	admin, err := m.kubeconfig(ctx, plane, m.nodes, m.context, false)
	if err != nil {
		return err
	}
	m.api.Close()
	m.api, _, err = m.openAPI(ctx, plane.Labels[plan.LabelCluster], admin, runningPatience)
	return err
}

// computeChanges plans the new cluster and compares it with the old one. It changes no node.
func (m *applyRun) computeChanges(ctx context.Context, whole bool) error {
	// The containers decide both, in whichever format the file is now.
	m.Cluster.FromKind, m.Cluster.Balanced = m.before.FromKind, m.before.Balanced
	if err := m.checkDescription(); err != nil {
		return err
	}
	if err := m.makePlan(ctx); err != nil {
		return err
	}
	before := plan.Make(m.before, m.host)
	var err error
	if m.Changes, err = changes.Compare(changes.Comparison{Before: m.before, After: m.Cluster, BeforePlan: before, AfterPlan: m.plan, Existing: m.nodes}, whole); err != nil || len(m.Created()) == 0 {
		return err
	}
	for _, name := range append(m.Recreate, m.Add...) {
		m.keepVolume[name] = changes.KeepsVolume(m.before, m.Cluster, m.plan.Differences(before, name), name)
	}
	return m.checkHost()
}

// prepare pulls and checks what the changes need, before anything is changed.
func (m *applyRun) prepare(ctx context.Context) error {
	if coming := m.nodesNamed(m.Created()); len(coming) > 0 {
		if err := m.RunStep("Ensuring the node image", func() error { return m.ensureImages(ctx, coming) }); err != nil {
			return err
		}
	}
	if len(m.Created())+len(m.Remove) == 0 {
		return nil
	}
	return m.RunStep("Checking what is to be made", func() error { return m.check(ctx) })
}

// makeChanges runs the steps in their order. It adds nodes first, so that the pods of removed nodes
// find room.
func (m *applyRun) makeChanges(ctx context.Context) error {
	added := m.nodesNamed(m.Add)
	list := []steps.Step{
		{Title: "Configuring mirrors of registries on nodes", Run: m.updateMirrors, Skip: len(m.Mirror) == 0},
		{Title: "Labelling nodes", Run: m.updateLabels, Skip: len(m.Relabel) == 0},
		{Title: "Adding " + strings.Join(m.Add, ", "), Run: func(ctx context.Context) error { return m.addNodes(ctx, added) }, Skip: len(m.Add) == 0},
	}
	for _, name := range m.Remove {
		list = append(list, steps.Step{Title: "Removing " + name, Run: func(ctx context.Context) error { return m.drainAndRemove(ctx, name) }})
	}
	for _, name := range m.Recreate {
		list = append(list, steps.Step{Title: "Recreating the container of " + name, Run: func(ctx context.Context) error { return m.replaceContainer(ctx, name) }})
	}
	for _, name := range m.Replace {
		list = append(list, steps.Step{Title: "Recreating " + name, Run: func(ctx context.Context) error { return m.replaceContainer(ctx, name) }})
	}
	nodesChange := len(m.Created())+len(m.Remove) > 0
	list = append(list,
		steps.Step{Title: "Storing the cluster file", Run: m.storeDescription},
		steps.Step{Title: "Connecting the nodes' pods", Run: m.updateRoutes, Skip: !nodesChange || m.Cluster.Networking.DisableDefaultCNI},
		steps.Step{Title: "Updating kubeconfig", Run: func(ctx context.Context) error { return m.updateKubeconfig(ctx, m.Cluster.Name) }, Skip: !slices.Contains(m.Replace, m.Cluster.BalancerName())},
	)
	return steps.Run(ctx, m.Reporter, list)
}

// updateRoutes writes the routes between the nodes' pods again.
func (m *applyRun) updateRoutes(ctx context.Context) error { return m.reconnect(ctx, m.nodes, m.api) }

// nodesNamed returns nodes by the names of their containers, in the order of the cluster file.
func (m *applyRun) nodesNamed(names []string) []config.Node {
	var found []config.Node
	for _, n := range m.Cluster.Nodes {
		if slices.Contains(names, m.Cluster.ContainerName(n)) {
			found = append(found, n)
		}
	}
	return found
}

// updateMirrors writes the mirrors of registries again. A node reads them at each pull.
func (m *applyRun) updateMirrors(ctx context.Context) (err error) {
	if m.registry, err = m.Registry().Find(ctx); err != nil {
		return err
	}
	for _, n := range m.nodesNamed(m.Mirror) {
		name := m.Cluster.ContainerName(n)
		if err := m.identifyAll(ctx, []config.Node{n}); err != nil {
			return err
		}
		registries, _, err := m.nodeRegistries(n)
		if err != nil {
			return err
		}
		if err := m.Provider.Exec(ctx, name, provider.Command{Args: []string{"rm", "-rf", m.runtimes[name].RegistriesDir}}); err != nil {
			return err
		}
		if err := noderuntime.WriteRegistries(ctx, m.Provider, name, m.runtimes[name], registries); err != nil {
			return err
		}
	}
	return nil
}

// updateLabels gives nodes the labels of the new cluster file, and removes those that only the old
// one has.
func (m *applyRun) updateLabels(ctx context.Context) error {
	for _, n := range m.nodesNamed(m.Relabel) {
		labels := map[string]*string{}
		for _, old := range m.before.Nodes {
			if old.Name == n.Name {
				for key := range old.Labels {
					labels[key] = nil
				}
			}
		}
		for key, value := range n.Labels {
			labels[key] = &value
		}
		if err := m.api.LabelNode(ctx, m.Cluster.ContainerName(n), labels); err != nil {
			return err
		}
	}
	return nil
}
