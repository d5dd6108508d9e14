package cluster

import (
	"context"
	"fmt"
	"maps"
	"slices"

	"golang.org/x/sync/errgroup"

	"github.com/berthrun/berth/internal/cluster/config"
	"github.com/berthrun/berth/internal/cluster/innode"
	"github.com/berthrun/berth/internal/cluster/kubeadm"
	"github.com/berthrun/berth/internal/cluster/nodenet"
	"github.com/berthrun/berth/internal/cluster/noderuntime"
	"github.com/berthrun/berth/internal/cluster/provider"
	"github.com/berthrun/berth/internal/errs"
)

// setUp starts the runtime of the first control plane, and configures the load balancer.
func (m *creation) setUp(ctx context.Context) error {
	if err := m.look(ctx); err != nil {
		return err
	}
	if err := m.identifyAll(ctx, m.Cluster.Nodes); err != nil {
		return err
	}
	if err := m.warnUnused(); err != nil {
		return err
	}
	if err := m.warnOfPatches(); err != nil {
		return err
	}
	m.warnOfPolicies()
	var err error
	if m.registry, err = m.Registry().Find(ctx); err != nil {
		return err
	}
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return nodenet.Balance(ctx, m.Provider, m.nodes, m.Cluster.Networking) })
	group.Go(func() error { return m.setUpNode(ctx, m.first()) })
	return group.Wait()
}

// setUpOthers starts the runtimes of all nodes but the first control plane.
func (m *creation) setUpOthers(ctx context.Context) error {
	group, ctx := errgroup.WithContext(ctx)
	for _, n := range m.others() {
		group.Go(func() error { return m.setUpNode(ctx, n) })
	}
	return group.Wait()
}

// warnOfPatches tells of those that the versions of Kubernetes in the nodes have no use for.
func (m *creation) warnOfPatches() error {
	unused, err := kubeadm.Unused(m.Cluster, m.versions)
	for _, text := range unused {
		m.Warn(text)
	}
	return err
}

// noPolicies is what berth's network of pods lacks.
const noPolicies = "NetworkPolicy objects have no effect: berth's network of pods does not enforce them; networking.disableDefaultCNI makes room for a network that does"

// warnOfPolicies tells of it before somebody relies on it.
func (m *creation) warnOfPolicies() {
	if m.ours() && !m.Cluster.Networking.DisableDefaultCNI {
		m.Warn(noPolicies)
	}
}

// others are all nodes but the first control plane.
func (m *creation) others() []config.Node {
	first := m.first()
	var all []config.Node
	for _, n := range m.Cluster.Nodes {
		if n.Name != first.Name {
			all = append(all, n)
		}
	}
	return all
}

// setUpNode sets one node up.
func (m *making) setUpNode(ctx context.Context, described config.Node) error {
	name := m.Cluster.ContainerName(described)
	if !m.runtimes[name].IsBerth() {
		if err := m.setUpContainerd(ctx, described); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		return nil
	}
	files, err := m.nodeFiles(described)
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	// One command, since each is a run of the engine's tool.
	return m.script(ctx, name, "systemctl start "+innode.RoutesUnit+" berth.service", files...)
}

// script has a shell in a node run text, once files are written. Its error has the last words of
// the node's units.
func (m *making) script(ctx context.Context, name, text string, files ...provider.File) error {
	if err := m.Provider.Exec(ctx, name, provider.Command{Files: files, Args: []string{"sh", "-c", text}}); err != nil {
		return m.explain(ctx, name, err)
	}
	return nil
}

// kubeadmConfig is that of a node.
func (m *making) kubeadmConfig(described config.Node) (string, error) {
	name := m.Cluster.ContainerName(described)
	node, err := m.find(name)
	if err != nil {
		return "", err
	}
	return m.kubeadmConfigOf(described, node, m.runtimes[name], m.versions[name])
}

// kubeadmConfigOf is that of a node as a container with a runtime and a version of Kubernetes.
func (m *making) kubeadmConfigOf(described config.Node, node provider.Node, runtime noderuntime.Runtime, version string) (string, error) {
	return kubeadm.Config(kubeadm.Node{
		Cluster: m.Cluster, Node: described, Version: version, Engine: m.Provider.Name(), Endpoint: m.plan.Endpoint,
		IPv4: node.IPv4, IPv6: node.IPv6, CRISocket: runtime.Socket, Token: m.token, Rootless: m.Provider.Facts().Rootless,
		CgroupDriver: m.cgroupDriver(),
	})
}

// cgroupDriver is that of runtimes and kubelets. With cgroup v1 systemd removes what kubelet and
// runtime make for their pods in hierarchies that it has no use for itself (systemd's issue 37044),
// at times before they have used it, and the kubelet tries again seconds later. Containerd in kind's
// images is set to systemd, and kubelets have one configuration for all nodes.
func (m *making) cgroupDriver() string {
	if m.ours() && !m.Provider.Facts().CgroupV2 {
		return "cgroupfs"
	}
	return "systemd"
}

// nodeRegistries are those that a node is told of, its own before those of patches, and these
// before the registry that clusters share; and, for berth, directories of hosts.toml files
// that it is told of.
func (m *making) nodeRegistries(described config.Node) (registries []config.Registry, hostDirs []string, err error) {
	registries = described.Registries
	if m.runtimes[m.Cluster.ContainerName(described)].IsBerth() {
		if registries, hostDirs, err = noderuntime.BerthRegistries(m.Cluster, described); err != nil {
			return nil, nil, err
		}
	}
	if m.registry != nil {
		registries = noderuntime.AddRegistries(registries, m.registry.Mirrors())
	}
	return registries, hostDirs, nil
}

// nodeFiles are those that make a node of berth one of this cluster.
func (m *making) nodeFiles(described config.Node) ([]provider.File, error) {
	registries, hostDirs, err := m.nodeRegistries(described)
	if err != nil {
		return nil, err
	}
	daemon, err := noderuntime.DaemonConfig(m.Cluster.Networking, m.cgroupDriver(), hostDirs)
	if err != nil {
		return nil, err
	}
	text, err := m.kubeadmConfig(described)
	if err != nil {
		return nil, err
	}
	files := []provider.File{
		{Path: noderuntime.DaemonFile, Content: []byte(daemon)},
		{Path: innode.KubeadmFile, Mode: 0o600, Content: []byte(text)},
	}
	more, err := noderuntime.HostsFiles(noderuntime.Berth().RegistriesDir, registries)
	if err != nil {
		return nil, err
	}
	files = append(files, more...)
	if !m.Cluster.Networking.DisableDefaultCNI {
		script, err := nodenet.Services(m.Cluster.Networking)
		if err != nil {
			return nil, err
		}
		files = append(files, provider.File{Path: innode.ServicesFile, Content: []byte(script)}, provider.File{Path: innode.RoutesFile})
	}
	return files, nil
}

// setUpContainerd makes a node of kindest/node one of this cluster. containerd runs
// already, with the images that the node needs.
func (m *making) setUpContainerd(ctx context.Context, described config.Node) error {
	name := m.Cluster.ContainerName(described)
	text, err := m.kubeadmConfig(described)
	if err != nil {
		return err
	}
	file := provider.File{Path: m.runtimes[name].KubeadmFile, Mode: 0o600, Content: []byte(text)}
	if err := m.Provider.Exec(ctx, name, provider.Command{Files: []provider.File{file}}); err != nil {
		return err
	}
	registries, _, err := m.nodeRegistries(described)
	if err != nil {
		return err
	}
	if err := noderuntime.ConfigureContainerd(ctx, m.Provider, name, m.Cluster.Settings, registries); err != nil {
		return m.explain(ctx, name, err)
	}
	return nil
}

// warnUnused says it once for all nodes, where there are such.
func (m *creation) warnUnused() error {
	if !slices.ContainsFunc(slices.Collect(maps.Values(m.runtimes)), noderuntime.Runtime.IsBerth) {
		return nil
	}
	texts, err := noderuntime.IgnoredByBerth(m.Cluster, m.plan.Containers[len(m.plan.Containers)-1].Env)
	for _, text := range texts {
		m.Warn(text)
	}
	return err
}

// identifyAll finds runtime and version of nodes, and makes sure that they fit each other.
func (m *making) identifyAll(ctx context.Context, nodes []config.Node) error {
	runtimes, versions := make([]noderuntime.Runtime, len(nodes)), make([]string, len(nodes))
	group, within := errgroup.WithContext(ctx)
	for i, n := range nodes {
		group.Go(func() error {
			container, err := m.find(m.Cluster.ContainerName(n))
			if err != nil {
				return err
			}
			if runtimes[i], versions[i], err = noderuntime.Identify(within, m.Provider, container); err == nil && runtimes[i].IsBerth() {
				err = m.checkTools(within, container.Name, n.Image)
			}
			return err
		})
	}
	if err := group.Wait(); err != nil {
		return err
	}
	for i, n := range nodes {
		name := m.Cluster.ContainerName(n)
		m.runtimes[name], m.versions[name] = runtimes[i], versions[i]
	}
	return m.oneNetwork()
}

// oneNetwork refuses nodes whose images bring pod networks that do not know each other.
func (m *making) oneNetwork() error { return m.alike(m.runtimes) }

func (m *making) alike(runtimes map[string]noderuntime.Runtime) error {
	var names []string
	for _, r := range runtimes {
		if !slices.Contains(names, r.Name) {
			names = append(names, r.Name)
		}
	}
	if len(names) > 1 && !m.Cluster.Networking.DisableDefaultCNI {
		return fmt.Errorf("some nodes have an image of kindest/node and others one of berth, and the pod networks that these bring do not know each other; want one kind of image, or networking.disableDefaultCNI and a network of your own: %w", errs.Unsupported)
	}
	return nil
}

// ours: the nodes' pods are on berth's network.
func (m *making) ours() bool {
	for _, r := range m.runtimes {
		if !r.IsBerth() {
			return false
		}
	}
	return true
}
