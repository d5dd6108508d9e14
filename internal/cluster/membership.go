package cluster

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/berthrun/berth/internal/cluster/changes"
	"github.com/berthrun/berth/internal/cluster/config"
	"github.com/berthrun/berth/internal/cluster/inventory"
	"github.com/berthrun/berth/internal/cluster/kubeadm"
	"github.com/berthrun/berth/internal/cluster/nodeimage"
	"github.com/berthrun/berth/internal/cluster/nodenet"
	"github.com/berthrun/berth/internal/cluster/noderuntime"
	"github.com/berthrun/berth/internal/cluster/plan"
	"github.com/berthrun/berth/internal/cluster/provider"
	"github.com/berthrun/berth/internal/errs"
)

// tokenLife is how long nodes that are added may take until they have joined.
const tokenLife = 30 * time.Minute

// addAll adds nodes. Of one that the cluster has known, and whose container somebody has removed,
// something may be left that another of its name cannot join with.
func (m *change) addAll(ctx context.Context, nodes []config.Node) error {
	for _, n := range nodes {
		if changes.RoleOf(m.before, m.Cluster.ContainerName(n)) != "" {
			if err := m.takeOut(ctx, m.Cluster.ContainerName(n)); err != nil {
				return err
			}
		}
	}
	return m.add(ctx, nodes)
}

// add makes nodes and has them join. When it fails, nothing of them stays.
func (m *change) add(ctx context.Context, nodes []config.Node) (err error) {
	from, err := m.other("")
	if err != nil {
		return err
	}
	m.token = kubeadm.NewToken() // the cluster knows the former one already
	var wanted []plan.Container
	for _, n := range nodes {
		m.joining[m.Cluster.ContainerName(n)] = true
		i := slices.IndexFunc(m.plan.Containers, func(c plan.Container) bool { return c.Name == m.Cluster.ContainerName(n) })
		wanted = append(wanted, m.plan.Containers[i])
	}
	if err := m.makeContainers(ctx, wanted, false, m.keeping); err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, m.takeBack(ctx, nodes))
		}
	}()
	if err := m.look(ctx); err != nil {
		return err
	}
	if err := m.fitting(ctx, from, nodes); err != nil {
		return err
	}
	if m.registry, err = m.Registry().Find(ctx); err != nil {
		return err
	}
	group, setting := errgroup.WithContext(ctx)
	for _, n := range nodes {
		group.Go(func() error { return m.setUpNode(setting, n) })
	}
	group.Go(func() error {
		return m.api.AddToken(setting, m.token, tokenLife)
	})
	if err := group.Wait(); err != nil {
		return err
	}
	if err := m.join(ctx, from, nodes); err != nil {
		return err
	}
	for _, n := range nodes {
		delete(m.joining, m.Cluster.ContainerName(n))
	}
	return nodenet.Balance(ctx, m.Provider, m.nodes, m.Cluster.Networking)
}

// fitting refuses nodes whose network is another one than the cluster's, or whose Kubernetes is
// newer.
func (m *change) fitting(ctx context.Context, from string, nodes []config.Node) error {
	running, err := m.runs(ctx, from)
	if err != nil {
		return err
	}
	if err := m.identifyAll(ctx, nodes); err != nil {
		return err
	}
	for _, n := range nodes {
		if err := notNewer(n.Image, m.versions[m.Cluster.ContainerName(n)], running); err != nil {
			return err
		}
	}
	return nil
}

// runs is the version of Kubernetes of a node of the cluster, whose runtime is noted.
func (m *change) runs(ctx context.Context, name string) (string, error) {
	node, err := m.find(name)
	if err != nil {
		return "", err
	}
	m.runtimes[name], m.versions[name], err = noderuntime.Identify(ctx, m.Provider, node)
	return m.versions[name], err
}

// notNewer refuses a Kubernetes that is newer than the cluster's, which kubelets and kubeadm do not
// support.
func notNewer(image, version, running string) error {
	newer, err := kubeadm.Newer(version, running)
	if err != nil {
		return err
	}
	if newer {
		return fmt.Errorf("the image %s has Kubernetes %s, and the cluster %s; want an image of that version, or an older one: %w", image, version, running, errs.Invalid)
	}
	return nil
}

// takeBack removes nodes that could not be added, also when ctx has ended.
func (m *change) takeBack(ctx context.Context, nodes []config.Node) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), undoTime)
	defer cancel()
	var all []error
	for _, n := range nodes {
		all = append(all, m.takeOut(ctx, m.Cluster.ContainerName(n)))
	}
	if err := errors.Join(all...); err != nil {
		return fmt.Errorf("cannot remove nodes that could not be added: %w", err)
	}
	return nil
}

// remove drains a node and removes it. That pods do not end in time is told, and no error.
func (m *change) remove(ctx context.Context, name string) error {
	n, _ := m.find(name) // one that somebody has removed does not run
	if m.Drain > 0 && n.Running && inventory.Role(n) != config.BalancerRole {
		draining, cancel := context.WithTimeout(ctx, m.Drain)
		err := m.api.Drain(draining, name)
		cancel()
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if errs.IgnoreNotFound(err) != nil {
			m.Warn(errs.Message(err))
		}
	}
	return m.takeOut(ctx, name)
}

// takeOut removes a node, whatever of it there is: from the load balancer, from etcd, its
// container with its volume, unless that is kept, and from the API at last, where it would make itself known again as long as it runs.
func (m *change) takeOut(ctx context.Context, name string) error {
	if err := m.look(ctx); err != nil {
		return err
	}
	gone, role := provider.Node{}, changes.RoleOf(m.before, name)
	m.nodes = slices.DeleteFunc(m.nodes, func(n provider.Node) bool {
		if n.Name == name {
			gone, role = n, inventory.Role(n)
		}
		return n.Name == name
	})
	if role == config.ControlPlane {
		if err := nodenet.Balance(ctx, m.Provider, m.nodes, m.Cluster.Networking); err != nil {
			return err
		}
		if err := m.forgetMember(ctx, name, gone.IPv4, gone.IPv6); err != nil {
			return err
		}
	}
	drop := m.Provider.Delete
	if m.keeping[name] {
		drop = m.Provider.Release
	}
	if err := drop(ctx, name); err != nil {
		return err
	}
	if role == config.BalancerRole {
		return nil
	}
	return m.api.Forget(ctx, name)
}

// forgetMember has another control plane take one out of etcd, whether that one runs or not.
func (m *change) forgetMember(ctx context.Context, name string, addresses ...netip.Addr) error {
	from, err := m.other(name)
	if err != nil {
		return err
	}
	args := []string{nodeimage.EntryProgram, "cluster", "in-node", "forget-member", name}
	for _, a := range addresses {
		if a.IsValid() {
			args = append(args, a.String())
		}
	}
	return m.Provider.Exec(ctx, from, provider.Command{Args: args})
}

// other is a control plane that runs, other than one that goes or has not joined yet.
func (m *change) other(name string) (string, error) {
	for _, n := range m.nodes {
		if inventory.Role(n) == config.ControlPlane && n.Running && n.Name != name && !m.joining[n.Name] {
			return n.Name, nil
		}
	}
	return "", fmt.Errorf("no other control plane runs; berth cluster start: %w", errs.State)
}

// replace removes a container and makes it as it is planned now.
func (m *change) replace(ctx context.Context, name string) error {
	if err := m.remove(ctx, name); err != nil {
		return err
	}
	if name != m.Cluster.BalancerName() {
		return m.add(ctx, m.described([]string{name}))
	}
	i := slices.IndexFunc(m.plan.Containers, func(c plan.Container) bool { return c.Name == name })
	if err := m.makeContainers(ctx, m.plan.Containers[i:i+1], false, nil); err != nil {
		return err
	}
	if err := m.look(ctx); err != nil {
		return err
	}
	if err := nodenet.Balance(ctx, m.Provider, m.nodes, m.Cluster.Networking); err != nil {
		return err
	}
	// It may be on another port of the host.
	return m.reach(ctx)
}
