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

// tokenTTL is how long nodes that are added may take to join.
const tokenTTL = 30 * time.Minute

// addNodes adds nodes. It first removes what is left of a node of the same name whose container
// somebody has removed: the new node could not join otherwise.
func (m *applyRun) addNodes(ctx context.Context, nodes []config.Node) error {
	for _, n := range nodes {
		if changes.RoleOf(m.before, m.Cluster.ContainerName(n)) != "" {
			if err := m.removeNode(ctx, m.Cluster.ContainerName(n)); err != nil {
				return err
			}
		}
	}
	return m.joinNodes(ctx, nodes)
}

// joinNodes creates nodes and joins them to the cluster. When it fails, it removes them.
func (m *applyRun) joinNodes(ctx context.Context, nodes []config.Node) (err error) {
	from, err := m.otherControlPlane("")
	if err != nil {
		return err
	}
	m.token = kubeadm.NewToken() // each addition has its own
	var wanted []plan.Container
	for _, n := range nodes {
		m.joining[m.Cluster.ContainerName(n)] = true
		i := slices.IndexFunc(m.plan.Containers, func(c plan.Container) bool { return c.Name == m.Cluster.ContainerName(n) })
		wanted = append(wanted, m.plan.Containers[i])
	}
	if err := m.createContainers(ctx, wanted, false, m.keepVolume); err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, m.undoAdd(ctx, nodes))
		}
	}()
	if err := m.refresh(ctx); err != nil {
		return err
	}
	if err := m.checkCompatible(ctx, from, nodes); err != nil {
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
		return m.api.AddBootstrapToken(setting, m.token, tokenTTL)
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

// checkCompatible refuses nodes whose pod network differs from the cluster's, or whose Kubernetes
// is newer.
func (m *applyRun) checkCompatible(ctx context.Context, from string, nodes []config.Node) error {
	running, err := m.identifyNode(ctx, from)
	if err != nil {
		return err
	}
	if err := m.identifyAll(ctx, nodes); err != nil {
		return err
	}
	for _, n := range nodes {
		if err := refuseNewer(n.Image, m.versions[m.Cluster.ContainerName(n)], running); err != nil {
			return err
		}
	}
	return nil
}

// identifyNode returns the version of Kubernetes of a node, and records it with the node's runtime.
func (m *applyRun) identifyNode(ctx context.Context, name string) (string, error) {
	node, err := m.node(name)
	if err != nil {
		return "", err
	}
	m.runtimes[name], m.versions[name], err = noderuntime.Identify(ctx, m.Provider, node)
	return m.versions[name], err
}

// refuseNewer refuses a Kubernetes that is newer than the cluster's, which kubelets and kubeadm do
// not support.
func refuseNewer(image, version, running string) error {
	newer, err := kubeadm.Newer(version, running)
	if err != nil {
		return err
	}
	if newer {
		return fmt.Errorf("the image %s has Kubernetes %s, and the cluster %s; want an image of that version, or an older one: %w", image, version, running, errs.Invalid)
	}
	return nil
}

// undoAdd removes nodes that could not be added, also when ctx has ended.
func (m *applyRun) undoAdd(ctx context.Context, nodes []config.Node) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), undoTimeout)
	defer cancel()
	var all []error
	for _, n := range nodes {
		all = append(all, m.removeNode(ctx, m.Cluster.ContainerName(n)))
	}
	if err := errors.Join(all...); err != nil {
		return fmt.Errorf("cannot remove nodes that could not be added: %w", err)
	}
	return nil
}

// drainAndRemove drains a node and removes it. Pods that do not end in time cause a warning, not an
// error.
func (m *applyRun) drainAndRemove(ctx context.Context, name string) error {
	n, _ := m.node(name) // a container that somebody has removed does not run
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
	return m.removeNode(ctx, name)
}

// removeNode removes a node, also one of which only a part exists: from the load balancer, from
// etcd, and its container, with its volume unless that stays. It removes it from the API last,
// because a running kubelet would register it again.
func (m *applyRun) removeNode(ctx context.Context, name string) error {
	if err := m.refresh(ctx); err != nil {
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
		if err := m.removeEtcdMember(ctx, name, gone.IPv4, gone.IPv6); err != nil {
			return err
		}
	}
	drop := m.Provider.Delete
	if m.keepVolume[name] {
		drop = m.Provider.Release
	}
	if err := drop(ctx, name); err != nil {
		return err
	}
	if role == config.BalancerRole {
		return nil
	}
	return m.api.DeleteNode(ctx, name)
}

// removeEtcdMember removes a control plane from etcd, by way of another one. The first need not
// run.
func (m *applyRun) removeEtcdMember(ctx context.Context, name string, addresses ...netip.Addr) error {
	from, err := m.otherControlPlane(name)
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

// otherControlPlane returns a running control plane that has joined, other than the named one.
func (m *applyRun) otherControlPlane(name string) (string, error) {
	for _, n := range m.nodes {
		if inventory.Role(n) == config.ControlPlane && n.Running && n.Name != name && !m.joining[n.Name] {
			return n.Name, nil
		}
	}
	return "", fmt.Errorf("no other control plane runs; berth cluster start: %w", errs.State)
}

// replaceContainer removes a container and creates it as it is planned now.
func (m *applyRun) replaceContainer(ctx context.Context, name string) error {
	if err := m.drainAndRemove(ctx, name); err != nil {
		return err
	}
	if name != m.Cluster.BalancerName() {
		return m.joinNodes(ctx, m.nodesNamed([]string{name}))
	}
	i := slices.IndexFunc(m.plan.Containers, func(c plan.Container) bool { return c.Name == name })
	if err := m.createContainers(ctx, m.plan.Containers[i:i+1], false, nil); err != nil {
		return err
	}
	if err := m.refresh(ctx); err != nil {
		return err
	}
	if err := nodenet.Balance(ctx, m.Provider, m.nodes, m.Cluster.Networking); err != nil {
		return err
	}
	// The API may be at another port of the host.
	return m.connectAPI(ctx)
}
