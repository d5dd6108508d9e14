package cluster

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"golang.org/x/sync/errgroup"

	"github.com/berthrun/berth/internal/cluster/changes"
	"github.com/berthrun/berth/internal/cluster/config"
	"github.com/berthrun/berth/internal/cluster/inventory"
	"github.com/berthrun/berth/internal/cluster/noderuntime"
	"github.com/berthrun/berth/internal/cluster/plan"
	"github.com/berthrun/berth/internal/cluster/provider"
	"github.com/berthrun/berth/internal/errs"
)

// check refuses changes that would fail, before anything is removed that could then not be
// replaced.
func (m *applyRun) check(ctx context.Context) error {
	if err := m.checkControlPlanes(); err != nil {
		return err
	}
	if err := m.checkPorts(ctx); err != nil {
		return err
	}
	if len(m.Remove)+len(m.Recreate)+len(m.Replace)+len(m.Relabel)+len(m.Mirror) == 0 {
		return nil // new nodes are checked once they exist, and removed when they do not fit
	}
	return m.dryRun(ctx, m.nodesNamed(m.Created()))
}

// checkControlPlanes refuses to remove a control plane where no other one runs, which has to remove
// it from etcd.
func (m *applyRun) checkControlPlanes() error {
	for _, name := range slices.Concat(m.Remove, m.Replace) {
		if changes.RoleOf(m.before, name) != config.ControlPlane {
			continue
		}
		runs := func(n provider.Node) bool {
			return inventory.Role(n) == config.ControlPlane && n.Running && n.Name != name && !slices.Contains(m.Remove, n.Name)
		}
		comes := slices.ContainsFunc(m.nodesNamed(m.Add), func(n config.Node) bool { return n.Role == config.ControlPlane })
		if !slices.ContainsFunc(m.nodes, runs) && !comes {
			return fmt.Errorf("%s: no other control plane runs that takes it out of etcd; berth cluster start --name %s: %w", name, m.Cluster.Name, errs.State)
		}
	}
	return nil
}

// checkPorts refuses ports of the host that are in use. Containers are replaced one after the
// other: each may use its own former ports, those of containers that were replaced before it, and
// those of containers that are removed.
func (m *applyRun) checkPorts(ctx context.Context) error {
	if m.Provider.Facts().Remote {
		return nil
	}
	type port struct {
		number   int
		protocol config.Protocol
	}
	freed := map[port]bool{}
	free := func(name string) {
		if n, err := m.node(name); err == nil {
			for _, p := range n.Ports {
				freed[port{p.Host, p.Protocol}] = true
			}
		}
	}
	tried := plan.Plan{}
	add := func(name string) {
		for _, c := range m.plan.Containers {
			if c.Name == name {
				c.Ports = slices.DeleteFunc(slices.Clone(c.Ports), func(p plan.Port) bool { return freed[port{p.Host, p.Protocol}] })
				tried.Containers = append(tried.Containers, c)
			}
		}
	}
	for _, name := range m.Add {
		add(name)
	}
	for _, name := range m.Remove {
		free(name)
	}
	for _, name := range slices.Concat(m.Recreate, m.Replace) {
		free(name)
		add(name)
	}
	release, err := tried.PickPorts(ctx)
	if err != nil {
		return err
	}
	release()
	return nil
}

// dryRun creates a container for each node, without its ports and its volume, in which nothing
// runs. It checks what the image has, and removes the containers.
func (m *applyRun) dryRun(ctx context.Context, nodes []config.Node) (err error) {
	from, err := m.otherControlPlane("")
	if err != nil {
		return err
	}
	running, err := m.identifyNode(ctx, from)
	if err != nil || len(nodes) == 0 {
		return err
	}
	request := provider.Request{Network: m.network}
	for i, n := range nodes {
		request.Specs = append(request.Specs, m.trialSpec(n, i))
	}
	if err := m.Provider.Create(ctx, request); err != nil {
		return fmt.Errorf("what is planned cannot be made: %w", err)
	}
	defer func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), undoTimeout)
		defer cancel()
		err = errors.Join(err, m.removeTrials(ctx))
	}()
	found := maps.Clone(m.runtimes)
	versions := make([]string, len(nodes))
	runtimes := make([]noderuntime.Runtime, len(nodes))
	group, within := errgroup.WithContext(ctx)
	for i, n := range nodes {
		group.Go(func() (err error) {
			made := provider.Node{Name: request.Specs[i].Name}
			if runtimes[i], versions[i], err = noderuntime.Identify(within, m.Provider, made); err != nil {
				if errors.Is(err, errs.Unsupported) {
					err = fmt.Errorf("the image %s of %s is neither of berth cluster build-image nor of kindest/node: %w", n.Image, m.Cluster.ContainerName(n), errs.Unsupported)
				}
				return err
			}
			if err := refuseNewer(n.Image, versions[i], running); err != nil {
				return err
			}
			return m.checkPatches(within, n, made, runtimes[i], versions[i])
		})
	}
	if err := group.Wait(); err != nil {
		return err
	}
	for i, n := range nodes {
		found[m.Cluster.ContainerName(n)] = runtimes[i]
	}
	return m.refuseMixedRuntimes(found)
}

// removeTrials removes the containers of dryRun, also those of an earlier run that was killed.
func (m *applyRun) removeTrials(ctx context.Context) error {
	all, err := m.Provider.List(ctx, m.Cluster.Name)
	if err != nil {
		return err
	}
	var names []string
	for _, n := range slices.DeleteFunc(all, func(n provider.Node) bool { return !inventory.IsTrial(n) }) {
		names = append(names, n.Name)
	}
	return m.Provider.Delete(ctx, names...)
}

// checkPatches renders the configuration of a node for the version in its image: a patch of the
// cluster file may match no document of that version.
func (m *applyRun) checkPatches(ctx context.Context, n config.Node, made provider.Node, runtime noderuntime.Runtime, version string) error {
	none := provider.Node{IPv4: netip.IPv4Unspecified(), IPv6: netip.IPv6Unspecified()} // patches do not depend on addresses
	if _, err := m.kubeadmConfigOf(n, none, runtime, version); err != nil {
		return err
	}
	if runtime.IsBerth() {
		if err := m.checkTools(ctx, made.Name, n.Image); err != nil {
			return fmt.Errorf("%s: %w", m.Cluster.ContainerName(n), err)
		}
		return nil
	}
	text, err := provider.Output(ctx, m.Provider, made.Name, "cat", noderuntime.ContainerdFile)
	if err == nil {
		_, err = noderuntime.ContainerdConfig(text, m.Cluster.Settings, true)
	}
	if err != nil {
		return fmt.Errorf("%s: containerd cannot be configured: %w", m.Cluster.ContainerName(n), err)
	}
	return nil
}

// trialSpec returns a container like that of a node. It has the cluster's label: if this run is
// killed, the next change removes it, or the deletion of the cluster.
func (m *applyRun) trialSpec(n config.Node, i int) provider.Spec {
	at := slices.IndexFunc(m.plan.Containers, func(c plan.Container) bool { return c.Name == m.Cluster.ContainerName(n) })
	c := m.plan.Containers[at]
	c.Name = fmt.Sprintf("%s-%s-%s%d", m.Cluster.Name, inventory.TrialRole, strings.ToLower(rand.Text()[:6]), i)
	c.Role = inventory.TrialRole
	c.Labels = map[string]string{plan.LabelCluster: m.Cluster.Name, plan.LabelRole: inventory.TrialRole}
	c.Ports, c.Volumes = nil, nil
	c.Mounts = slices.Clone(c.Mounts)
	for i := range c.Mounts {
		c.Mounts[i].Relabel = false // the running node needs the label that is there
	}
	return provider.Spec{Container: c, Command: []string{"sleep", "600"}}
}
