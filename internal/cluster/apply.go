package cluster

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/berthrun/berth/internal/cluster/changes"
	"github.com/berthrun/berth/internal/cluster/config"
	"github.com/berthrun/berth/internal/cluster/inventory"
	"github.com/berthrun/berth/internal/cluster/kubeapi"
	"github.com/berthrun/berth/internal/cluster/noderuntime"
	"github.com/berthrun/berth/internal/cluster/plan"
	"github.com/berthrun/berth/internal/cluster/provider"
	"github.com/berthrun/berth/internal/errs"
)

// ApplyOptions say how a cluster is changed.
type ApplyOptions struct {
	// Agree is told what will be done before anything is. Its error ends it. nil agrees.
	Agree func(changes.Changes) error
	// Drain is how long pods may take to end on a node that goes; 0 does not ask them to.
	Drain time.Duration
	// Wait is how long all nodes may take to be Ready; 0 waits for none.
	Wait time.Duration
}

// change is one run of Apply, AddNodes or RemoveNodes.
type change struct {
	making
	ApplyOptions
	changes.Changes
	// before is the description that the cluster keeps, context its name in kubeconfig files.
	before  *config.Cluster
	context string
	// joining are nodes that exist and have not joined, keeping those whose volumes stay while
	// their containers are made anew.
	joining, keeping map[string]bool
}

// Apply makes a cluster one of an edited description. What has been done when something fails
// stays, without nodes that are half made; to apply again does the rest.
func (c *Clusters) Apply(ctx context.Context, described *config.Cluster, o ApplyOptions) error {
	return c.change(ctx, described.Name, o, func(*config.Cluster) (*config.Cluster, error) {
		copied := *described
		return &copied, nil
	}, true)
}

// AddNodes adds nodes to a cluster.
func (c *Clusters) AddNodes(ctx context.Context, name string, a config.Addition, o ApplyOptions) error {
	return c.change(ctx, name, o, func(kept *config.Cluster) (*config.Cluster, error) { return kept.With(a) }, false)
}

// RemoveNodes removes nodes, by the names of their containers, from a cluster.
func (c *Clusters) RemoveNodes(ctx context.Context, name string, nodes []string, o ApplyOptions) error {
	return c.change(ctx, name, o, func(kept *config.Cluster) (*config.Cluster, error) { return kept.Without(nodes) }, false)
}

// change edits the description of a cluster and does what follows of it; whole is that nodes
// that stay are compared, too.
func (c *Clusters) change(ctx context.Context, name string, o ApplyOptions, edit func(kept *config.Cluster) (*config.Cluster, error), whole bool) error {
	m, err := c.lookAt(ctx, name)
	if err != nil {
		return fmt.Errorf("cannot change the cluster %s: %w", name, err)
	}
	m.ApplyOptions = o
	if m.Cluster, err = edit(m.before); err == nil {
		err = m.decide(ctx, whole)
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
	if err := m.carryOut(ctx); err != nil {
		return fmt.Errorf("cannot change the cluster %s; what was done stays, and the same once more does the rest: %w", name, err)
	}
	if o.Wait == 0 {
		return nil
	}
	return c.RunStep("Waiting for all nodes to be Ready", func() error { return waitReady(ctx, m.api, inventory.Members(m.nodes), time.Time{}, o.Wait) })
}

// lookAt finds out what a cluster is.
func (c *Clusters) lookAt(ctx context.Context, name string) (*change, error) {
	all, err := inventory.Nodes(ctx, c.Provider, name)
	if err != nil {
		return nil, err
	}
	there := *c
	there.Network = c.networks(all)[0]
	m := &change{making: there.making(nil), joining: map[string]bool{}, keeping: map[string]bool{}}
	m.nodes = all
	m.context = inventory.Contexts(name, m.nodes)[0]
	if plane, err := inventory.ControlPlane(m.nodes); err != nil || !plane.Running {
		return nil, errors.Join(err, fmt.Errorf("no control plane of it runs; berth cluster start --name %s: %w", name, errs.State))
	}
	if err := m.reach(ctx); err != nil {
		return nil, err
	}
	if m.before, err = kept(ctx, m.api, name); err != nil {
		return nil, err
	}
	_, m.before.Balanced = inventory.Balancer(m.nodes)
	m.before.FromKind = m.context == plan.ContextName(&config.Cluster{Name: name, FromKind: true})
	return m, nil
}

// reach makes a client of the cluster's API.
func (m *change) reach(ctx context.Context) error {
	plane, err := inventory.ControlPlane(m.nodes)
	if err != nil {
		return err
	}
	admin, err := m.kubeconfig(ctx, plane, m.nodes, m.context, false)
	if err != nil {
		return err
	}
	m.api, err = kubeapi.New(admin)
	return err
}

// decide plans the cluster as it is to be, and says what has to be done. It changes nothing.
func (m *change) decide(ctx context.Context, whole bool) error {
	// Its containers say so for as long as there are any, whichever format the file has now.
	m.Cluster.FromKind, m.Cluster.Balanced = m.before.FromKind, m.before.Balanced
	if err := m.able(); err != nil {
		return err
	}
	if err := m.planIt(ctx); err != nil {
		return err
	}
	before := plan.Make(m.before, m.host)
	var err error
	if m.Changes, err = changes.Compare(changes.Comparison{Before: m.before, After: m.Cluster, BeforePlan: before, AfterPlan: m.plan, Existing: m.nodes}, whole); err != nil || len(m.Created()) == 0 {
		return err
	}
	for _, name := range append(m.Recreate, m.Add...) {
		m.keeping[name] = changes.KeepsVolume(m.before, m.Cluster, m.plan.Differences(before, name), name)
	}
	return m.fit()
}

// prepare brings and checks what the change needs, before anything is changed.
func (m *change) prepare(ctx context.Context) error {
	if coming := m.described(m.Created()); len(coming) > 0 {
		if err := m.RunStep("Ensuring the node image", func() error { return m.ensure(ctx, coming) }); err != nil {
			return err
		}
	}
	if len(m.Created())+len(m.Remove) == 0 {
		return nil
	}
	return m.RunStep("Checking what is to be made", func() error { return m.check(ctx) })
}

// carryOut is the order of steps. New nodes come first, so that there is room for pods of
// those that go.
func (m *change) carryOut(ctx context.Context) error {
	added := m.described(m.Add)
	type step struct {
		text string
		do   func(context.Context) error
		when bool
	}
	steps := []step{
		{"Telling nodes of mirrors", m.remirror, len(m.Mirror) > 0},
		{"Labelling nodes", m.relabel, len(m.Relabel) > 0},
		{"Adding " + strings.Join(m.Add, ", "), func(ctx context.Context) error { return m.addAll(ctx, added) }, len(m.Add) > 0},
	}
	for _, name := range m.Remove {
		steps = append(steps, step{"Removing " + name, func(ctx context.Context) error { return m.remove(ctx, name) }, true})
	}
	for _, name := range m.Recreate {
		steps = append(steps, step{"Making the container of " + name + " anew", func(ctx context.Context) error { return m.replace(ctx, name) }, true})
	}
	for _, name := range m.Replace {
		steps = append(steps, step{"Making " + name + " anew", func(ctx context.Context) error { return m.replace(ctx, name) }, true})
	}
	steps = append(steps,
		step{"Keeping the description", m.keep, true},
		step{"Connecting the nodes' pods", func(ctx context.Context) error { return m.reconnect(ctx, m.nodes, m.api) }, len(m.Created())+len(m.Remove) > 0 && !m.Cluster.Networking.DisableDefaultCNI},
		step{"Writing kubeconfig", func(ctx context.Context) error {
			_, _, err := m.Export(ctx, m.Cluster.Name, false)
			return err
		}, slices.Contains(m.Replace, m.Cluster.BalancerName())},
	)
	for _, s := range steps {
		if !s.when {
			continue
		}
		if err := m.RunStep(s.text, func() error { return s.do(ctx) }); err != nil {
			return err
		}
	}
	return nil
}

// described are nodes by the names of their containers, in the order of the description.
func (m *change) described(names []string) []config.Node {
	var found []config.Node
	for _, n := range m.Cluster.Nodes {
		if slices.Contains(names, m.Cluster.ContainerName(n)) {
			found = append(found, n)
		}
	}
	return found
}

// remirror writes the mirrors of registries anew, which a node reads whenever it pulls.
func (m *change) remirror(ctx context.Context) (err error) {
	if m.registry, err = m.Registry().Find(ctx); err != nil {
		return err
	}
	for _, n := range m.described(m.Mirror) {
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

// relabel gives nodes the labels of their description, and takes those that it had.
func (m *change) relabel(ctx context.Context) error {
	for _, n := range m.described(m.Relabel) {
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
		if err := m.api.Relabel(ctx, m.Cluster.ContainerName(n), labels); err != nil {
			return err
		}
	}
	return nil
}
