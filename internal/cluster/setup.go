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
	"github.com/berthrun/berth/internal/registries"
)

// setUp starts the runtime of the first control plane, and configures the load balancer.
func (m *createRun) setUp(ctx context.Context) error {
	if err := m.refresh(ctx); err != nil {
		return err
	}
	if err := m.identifyAll(ctx, m.Cluster.Nodes); err != nil {
		return err
	}
	if err := m.warnIgnored(); err != nil {
		return err
	}
	if err := m.warnUnusedPatches(); err != nil {
		return err
	}
	var err error
	if m.registry, err = m.Registry().Find(ctx); err != nil {
		return err
	}
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return nodenet.Balance(ctx, m.Provider, m.nodes, m.Cluster.Networking) })
	group.Go(func() error { return m.setUpNode(ctx, m.firstControlPlane()) })
	return group.Wait()
}

// setUpOthers starts the runtimes of all nodes but the first control plane.
func (m *createRun) setUpOthers(ctx context.Context) error {
	group, ctx := errgroup.WithContext(ctx)
	for _, n := range m.others() {
		group.Go(func() error { return m.setUpNode(ctx, n) })
	}
	return group.Wait()
}

// warnUnusedPatches warns of patches that match no document of the nodes' versions of Kubernetes.
func (m *createRun) warnUnusedPatches() error {
	unused, err := kubeadm.Unused(m.Cluster, m.versions)
	for _, text := range unused {
		m.Warn(text)
	}
	return err
}

// others returns all nodes but the first control plane.
func (m *createRun) others() []config.Node {
	first := m.firstControlPlane()
	var all []config.Node
	for _, n := range m.Cluster.Nodes {
		if n.Name != first.Name {
			all = append(all, n)
		}
	}
	return all
}

// needServices ends a script in a node whose image was built before its berth had the unit.
const needServices = "systemctl cat " + innode.ServicesUnit + " >/dev/null 2>&1 || " +
	"{ echo 'the node image has an older berth, without " + innode.ServicesUnit + "; build the image again with berth cluster build-image' >&2; exit 1; }; "

// setUpNode configures the runtime of a node, and starts it.
func (m *builder) setUpNode(ctx context.Context, described config.Node) error {
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
	return m.runScript(ctx, name, needServices+"systemctl start "+innode.ServicesUnit+" berth.service", files...)
}

// runScript writes files into a node and runs a shell script in it. Its error has the last log
// lines of the node's units.
func (m *builder) runScript(ctx context.Context, name, text string, files ...provider.File) error {
	if err := m.Provider.Exec(ctx, name, provider.Command{Files: files, Args: []string{"sh", "-c", text}}); err != nil {
		return m.explain(ctx, name, err)
	}
	return nil
}

// kubeadmConfig returns the kubeadm configuration of a node.
func (m *builder) kubeadmConfig(described config.Node) (string, error) {
	name := m.Cluster.ContainerName(described)
	node, err := m.node(name)
	if err != nil {
		return "", err
	}
	return m.kubeadmConfigOf(described, node, m.runtimes[name], m.versions[name])
}

// kubeadmConfigOf returns the kubeadm configuration for a container with a runtime and a version.
func (m *builder) kubeadmConfigOf(described config.Node, node provider.Node, runtime noderuntime.Runtime, version string) (string, error) {
	return kubeadm.Config(kubeadm.Node{
		Cluster: m.Cluster, Node: described, Version: version, Engine: m.Provider.Name(), Endpoint: m.plan.Endpoint,
		IPv4: node.IPv4, IPv6: node.IPv6, CRISocket: runtime.Socket, Token: m.token, Rootless: m.Provider.Facts().Rootless,
		CgroupDriver: m.cgroupDriver(),
	})
}

// cgroupDriver returns the driver of runtimes and kubelets. With cgroup v1 systemd removes the
// cgroups of pods in hierarchies that it does not use itself (systemd's issue 37044), sometimes
// before the kubelet has used them, and the kubelet retries seconds later. Containerd in kind's
// images is set to systemd, and kubelets have one configuration for all nodes.
func (m *builder) cgroupDriver() string {
	if m.usesBerthNetwork() && !m.Provider.Facts().CgroupV2 {
		return "cgroupfs"
	}
	return "systemd"
}

// nodeRegistries returns the registries of a node: its own, then those of patches, then the registry
// that clusters share. hostDirs are more directories of hosts.toml files, for berth.
func (m *builder) nodeRegistries(described config.Node) (all []registries.Registry, hostDirs []string, err error) {
	all = described.Registries
	if m.runtimes[m.Cluster.ContainerName(described)].IsBerth() {
		if all, hostDirs, err = noderuntime.BerthRegistries(m.Cluster, described); err != nil {
			return nil, nil, err
		}
	}
	if m.registry != nil {
		all = noderuntime.AddRegistries(all, m.registry.Mirrors())
	}
	return all, hostDirs, nil
}

// nodeFiles returns the files that configure a node of berth for this cluster.
func (m *builder) nodeFiles(described config.Node) ([]provider.File, error) {
	all, hostDirs, err := m.nodeRegistries(described)
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
	more, err := noderuntime.HostsFiles(noderuntime.Berth().RegistriesDir, all)
	if err != nil {
		return nil, err
	}
	files = append(files, more...)
	if !m.Cluster.Networking.DisableDefaultCNI {
		script, err := nodenet.Services(m.Cluster.Networking)
		if err != nil {
			return nil, err
		}
		files = append(files, provider.File{Path: innode.ServicesFile, Content: []byte(script)})
	}
	return files, nil
}

// setUpContainerd configures a node of kindest/node for this cluster. containerd runs already, with
// the images that the node needs.
func (m *builder) setUpContainerd(ctx context.Context, described config.Node) error {
	name := m.Cluster.ContainerName(described)
	text, err := m.kubeadmConfig(described)
	if err != nil {
		return err
	}
	file := provider.File{Path: m.runtimes[name].KubeadmFile, Mode: 0o600, Content: []byte(text)}
	if err := m.Provider.Exec(ctx, name, provider.Command{Files: []provider.File{file}}); err != nil {
		return err
	}
	all, _, err := m.nodeRegistries(described)
	if err != nil {
		return err
	}
	if err := noderuntime.ConfigureContainerd(ctx, m.Provider, name, m.Cluster.Settings, all); err != nil {
		return m.explain(ctx, name, err)
	}
	return nil
}

// warnIgnored warns of settings that nodes of berth ignore, once for all nodes.
func (m *createRun) warnIgnored() error {
	if !slices.ContainsFunc(slices.Collect(maps.Values(m.runtimes)), noderuntime.Runtime.IsBerth) {
		return nil
	}
	texts, err := noderuntime.IgnoredByBerth(m.Cluster, m.plan.Containers[len(m.plan.Containers)-1].Env)
	for _, text := range texts {
		m.Warn(text)
	}
	return err
}

// identifyAll finds the runtimes and versions of nodes, and refuses incompatible ones.
func (m *builder) identifyAll(ctx context.Context, nodes []config.Node) error {
	runtimes, versions := make([]noderuntime.Runtime, len(nodes)), make([]string, len(nodes))
	group, within := errgroup.WithContext(ctx)
	for i, n := range nodes {
		group.Go(func() error {
			container, err := m.node(m.Cluster.ContainerName(n))
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
	return m.refuseMixedRuntimes(m.runtimes)
}

// refuseMixedRuntimes refuses nodes whose images have pod networks that do not reach each other.
func (m *builder) refuseMixedRuntimes(runtimes map[string]noderuntime.Runtime) error {
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

// usesBerthNetwork reports whether the nodes' pods are on berth's network.
func (m *builder) usesBerthNetwork() bool {
	for _, r := range m.runtimes {
		if !r.IsBerth() {
			return false
		}
	}
	return true
}
