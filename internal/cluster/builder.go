package cluster

import (
	"context"
	"errors"
	"fmt"

	"github.com/berthrun/berth/internal/cluster/config"
	"github.com/berthrun/berth/internal/cluster/inventory"
	"github.com/berthrun/berth/internal/cluster/kubeadm"
	"github.com/berthrun/berth/internal/cluster/kubeadm/runner"
	"github.com/berthrun/berth/internal/cluster/kubeapi"
	"github.com/berthrun/berth/internal/cluster/nodeimage"
	"github.com/berthrun/berth/internal/cluster/noderuntime"
	"github.com/berthrun/berth/internal/cluster/plan"
	"github.com/berthrun/berth/internal/cluster/provider"
	"github.com/berthrun/berth/internal/cluster/registry"
	"github.com/berthrun/berth/internal/errs"
)

// making is the making of nodes: all of a new cluster, or those that come to one.
type making struct {
	*Clusters
	Cluster *config.Cluster
	plan    *plan.Plan
	network provider.Network
	// host is what plans are made for.
	host plan.Host
	// token is what nodes join with.
	token string
	// registry is the one that nodes have a mirror of; nil is that there is none.
	registry *registry.Status
	// nodes are the containers that exist. By the names of those that are made, versions are
	// those of Kubernetes in them, runtimes what runs pods there.
	nodes    []provider.Node
	versions map[string]string
	runtimes map[string]noderuntime.Runtime
	api      *kubeapi.Client
}

func (c *Clusters) making(described *config.Cluster) making {
	return making{Clusters: c, Cluster: described, token: kubeadm.NewToken(), versions: map[string]string{}, runtimes: map[string]noderuntime.Runtime{}}
}

// ensure pulls the images of nodes that are not there.
func (m *making) ensure(ctx context.Context, nodes []config.Node) error {
	done := map[string]bool{}
	for _, n := range nodes {
		if done[n.Image] {
			continue
		}
		done[n.Image] = true
		if _, err := m.Provider.Ensure(ctx, n.Image, nil); err != nil {
			if n.Image == config.DefaultImage {
				return fmt.Errorf("%w\n  to make it: berth cluster build-image --kubernetes v1.36.3; one of kind's will do, too: --image kindest/node:VERSION", err)
			}
			return err
		}
	}
	return nil
}

// first is the control plane that the cluster begins with.
func (m *making) first() config.Node {
	for _, n := range m.Cluster.Nodes {
		if n.Role == config.ControlPlane {
			return n
		}
	}
	return config.Node{} // no description passes its checks without one
}

// helper is the image that a load balancer or a registry runs in: the first control plane's, if
// berth has made that, or else the usual one of berth, which then has to be there.
func (m *making) helper(ctx context.Context) (string, error) {
	image := m.first().Image
	found, err := m.Provider.Present(ctx, image)
	if err != nil {
		return "", err
	}
	if _, ours := found.Labels[nodeimage.LabelBerth]; ours {
		return image, nil
	}
	if _, err := m.Provider.Ensure(ctx, config.DefaultImage, nil); err != nil {
		return "", fmt.Errorf("%w\n  the load balancer and the registry run in berth's own image, also beside nodes of %s; to make it: berth cluster build-image --kubernetes v1.36.3", err, image)
	}
	return config.DefaultImage, nil
}

// planIt finds the network, or makes it, and plans the containers on it.
func (m *making) planIt(ctx context.Context) (err error) {
	if m.network, err = m.Provider.EnsureNetwork(ctx, m.Clusters.network()); err != nil {
		return err
	}
	host := m.Provider.PlanHost(m.network)
	if m.Cluster.HasBalancer() {
		if host.Helper, err = m.helper(ctx); err != nil {
			return err
		}
	}
	m.host, m.plan = host, plan.Make(m.Cluster, host)
	stable := m.network.StableV4
	if m.Cluster.Networking.IPFamily == config.IPv6 {
		stable = m.network.StableV6
	}
	if m.Cluster.ControlPlanes() > 1 && !stable {
		m.Warn(fmt.Sprintf("containers on the network %s have other addresses when they start again, which etcd of several control planes does not survive: what is stopped may not come back"+
			"\n  to fix it: remove the network, with what is on it, and berth makes one with addresses that stay", m.network.Name))
	}
	return nil
}

// makeContainers makes some of the plan's containers. Those that are named in reuse get the volumes
// that are left of the former ones.
func (m *making) makeContainers(ctx context.Context, wanted []plan.Container, retain bool, reuse map[string]bool) error {
	// A copy: ports that are picked are no part of the plan.
	some := plan.Plan{}
	for _, c := range wanted {
		c.Ports = append([]plan.Port(nil), c.Ports...)
		some.Containers = append(some.Containers, c)
	}
	if !m.Provider.Facts().Remote {
		release, err := some.PickPorts(ctx)
		if err != nil {
			return err
		}
		release()
	}
	request := provider.Request{Network: m.network, Retain: retain}
	for _, c := range some.Containers {
		made := spec(c)
		made.Reuse = reuse[c.Name]
		request.Specs = append(request.Specs, made)
	}
	return m.Provider.Create(ctx, request)
}

// spec is a container as the engine makes it: a load balancer runs a command of its own.
func spec(c plan.Container) provider.Spec {
	made := provider.Spec{Container: c}
	if c.Role == config.BalancerRole {
		made.Command = []string{nodeimage.EntryProgram, "cluster", "in-node", "balance"}
	}
	return made
}

// look reads the containers that there are now.
func (m *making) look(ctx context.Context) (err error) {
	m.nodes, err = inventory.Nodes(ctx, m.Provider, m.Cluster.Name)
	return err
}

// find is a container of the cluster by its name.
func (m *making) find(name string) (provider.Node, error) {
	for _, n := range m.nodes {
		if n.Name == name {
			return n, nil
		}
	}
	return provider.Node{}, fmt.Errorf("unknown node: %q: %w", name, errs.NotFound)
}

// keptName is the ConfigMap in which a cluster keeps its description, for when it is changed.
const keptName, keptKey = "berth-cluster", "cluster.yaml"

// keep has the cluster keep its description.
func (m *making) keep(ctx context.Context) error {
	text, err := config.Render(m.Cluster)
	if err != nil {
		return err
	}
	return m.api.Keep(ctx, keptName, map[string]string{keptKey: string(text)})
}

// kept is the description that a cluster keeps.
func kept(ctx context.Context, client *kubeapi.Client, name string) (*config.Cluster, error) {
	data, err := client.Kept(ctx, keptName)
	if errors.Is(err, errs.NotFound) {
		return nil, fmt.Errorf("the cluster %s keeps no description, since it was made by a berth that could not change it; delete it, and create it anew: %w", name, errs.Unsupported)
	}
	if err != nil {
		return nil, err
	}
	return config.Load("the description that "+name+" keeps", []byte(data[keptKey]), config.Options{Name: name})
}

// runner runs kubeadm in the nodes.
func (m *making) runner() runner.Runner {
	return runner.Runner{Provider: m.Provider, Cluster: m.Cluster.Name, WatchPause: m.watchPause}
}

// kubeadm runs a command of kubeadm, of one word or more, in a node.
func (m *making) kubeadm(ctx context.Context, node, verb string, flags ...string) error {
	return m.runner().Run(ctx, node, m.runtimes[node], verb, flags...)
}

// explain adds to the error of a command what the node's services logged last.
func (m *making) explain(ctx context.Context, node string, failed error) error {
	return m.runner().Explain(ctx, node, m.runtimes[node], failed)
}
