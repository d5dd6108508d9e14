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

// builder creates nodes: all nodes of a new cluster, or those that are added to one.
type builder struct {
	*Clusters
	Cluster *config.Cluster
	plan    *plan.Plan
	network provider.Network
	// host has the facts that the plan depends on.
	host plan.Host
	// token is the bootstrap token that nodes join with.
	token string
	// registry is the registry whose mirrors nodes get; nil is none.
	registry *registry.Status
	// nodes are the containers that exist. versions are their versions of Kubernetes, runtimes
	// their container runtimes, by the names of the containers.
	nodes    []provider.Node
	versions map[string]string
	runtimes map[string]noderuntime.Runtime
	api      *kubeapi.Client
}

func (c *Clusters) newBuilder(described *config.Cluster) builder {
	return builder{Clusters: c, Cluster: described, token: kubeadm.NewToken(), versions: map[string]string{}, runtimes: map[string]noderuntime.Runtime{}}
}

// ensureImages pulls the images of nodes that the provider does not have.
func (m *builder) ensureImages(ctx context.Context, nodes []config.Node) error {
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

// firstControlPlane returns the control plane that `kubeadm init` runs on.
func (m *builder) firstControlPlane() config.Node {
	for _, n := range m.Cluster.Nodes {
		if n.Role == config.ControlPlane {
			return n
		}
	}
	return config.Node{} // a valid cluster file has one
}

// helperImage returns the image of a load balancer or a registry: that of the first control plane
// if it is an image of berth, else config.DefaultImage, which the provider then must have.
func (m *builder) helperImage(ctx context.Context) (string, error) {
	image := m.firstControlPlane().Image
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

// makePlan finds or creates the network, and plans the containers on it.
func (m *builder) makePlan(ctx context.Context) (err error) {
	if m.network, err = m.Provider.EnsureNetwork(ctx, m.Clusters.network()); err != nil {
		return err
	}
	host := m.Provider.PlanHost(m.network)
	if m.Cluster.HasBalancer() {
		if host.Helper, err = m.helperImage(ctx); err != nil {
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
			"\n  to fix it: remove the network, with what is on it, and berth makes one with addresses that stay; podman has them from 4.0 on", m.network.Name))
	}
	return nil
}

// createContainers creates some of the plan's containers. Those in reuse get the volumes of their
// predecessors.
func (m *builder) createContainers(ctx context.Context, wanted []plan.Container, retain bool, reuse map[string]bool) error {
	// A copy: the picked ports are not part of the plan.
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

// spec returns a container as the provider creates it. A load balancer runs a command of its own.
func spec(c plan.Container) provider.Spec {
	made := provider.Spec{Container: c}
	if c.Role == config.BalancerRole {
		made.Command = []string{nodeimage.EntryProgram, "cluster", "in-node", "balance"}
	}
	return made
}

// refresh reads the containers of the cluster.
func (m *builder) refresh(ctx context.Context) (err error) {
	m.nodes, err = inventory.Nodes(ctx, m.Provider, m.Cluster.Name)
	return err
}

// node returns a container of the cluster by its name. The error is errs.NotFound when there is
// none.
func (m *builder) node(name string) (provider.Node, error) {
	for _, n := range m.nodes {
		if n.Name == name {
			return n, nil
		}
	}
	return provider.Node{}, fmt.Errorf("unknown node: %q: %w", name, errs.NotFound)
}

// descriptionConfigMap is the ConfigMap with the cluster file of a cluster, for later changes.
const descriptionConfigMap, descriptionKey = "berth-cluster", "cluster.yaml"

// storeDescription stores the cluster file in the cluster.
func (m *builder) storeDescription(ctx context.Context) error {
	text, err := config.Render(m.Cluster)
	if err != nil {
		return err
	}
	return m.api.WriteConfigMap(ctx, descriptionConfigMap, map[string]string{descriptionKey: string(text)})
}

// storedDescription reads the cluster file from a cluster. The error is errs.Unsupported when there
// is none.
func storedDescription(ctx context.Context, client *kubeapi.Client, name string) (*config.Cluster, error) {
	data, err := client.ReadConfigMap(ctx, descriptionConfigMap)
	if errors.Is(err, errs.NotFound) {
		return nil, fmt.Errorf("the cluster %s has no stored cluster file, because an older berth created it; delete it, and create it again: %w", name, errs.Unsupported)
	}
	if err != nil {
		return nil, err
	}
	return config.Load("the description that "+name+" keeps", []byte(data[descriptionKey]), config.Options{Name: name})
}

// runner runs kubeadm in the nodes.
func (m *builder) runner() runner.Runner {
	return runner.Runner{Provider: m.Provider, Cluster: m.Cluster.Name, WatchPause: m.watchPause}
}

// kubeadm runs a command of kubeadm, of one word or more, in a node.
func (m *builder) kubeadm(ctx context.Context, node, verb string, flags ...string) error {
	return m.runner().Run(ctx, node, m.runtimes[node], verb, flags...)
}

// explain adds to the error of a command what the node's services logged last.
func (m *builder) explain(ctx context.Context, node string, failed error) error {
	return m.runner().Explain(ctx, node, m.runtimes[node], failed)
}
