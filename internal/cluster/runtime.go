package cluster

import (
	"context"
	"fmt"
	"slices"

	"golang.org/x/sync/errgroup"

	"github.com/berthrun/berth/internal/cluster/config"
	"github.com/berthrun/berth/internal/cluster/innode"
	"github.com/berthrun/berth/internal/cluster/kubeadm"
	"github.com/berthrun/berth/internal/cluster/nodeimage"
	"github.com/berthrun/berth/internal/cluster/provider"
	"github.com/berthrun/berth/internal/errs"
)

// nodeRuntime is the container runtime of a node, which the node's image decides, and
// what follows from it.
type nodeRuntime struct {
	name, socket string
	// kubeadmFile is where kubeadm's configuration goes.
	kubeadmFile string
	// registriesDir is where the runtime looks for registries, a folder each.
	registriesDir string
	// units are those whose words say why no pod starts.
	units []string
}

// runtimes of nodes.
func berthRuntime() nodeRuntime {
	return nodeRuntime{
		name: "berth", socket: kubeadm.BerthSocket, kubeadmFile: innode.KubeadmFile, registriesDir: "/etc/berth/certs.d",
		units: []string{"berth.service", "berth-supervisor.service"},
	}
}

func containerdRuntime() nodeRuntime {
	return nodeRuntime{
		// kind's image reads the file anew when the node has got another address.
		name: "containerd", socket: kubeadm.ContainerdSocket, kubeadmFile: "/kind/kubeadm.conf", registriesDir: "/etc/containerd/certs.d",
		units: []string{"containerd.service"},
	}
}

// ours: the network and the images of pods are berth's business.
func (r nodeRuntime) ours() bool { return r.name == "berth" }

// kindVersionFile has the version of Kubernetes in images of kindest/node.
const kindVersionFile = "/kind/version"

// identify tells which runtime a node has, and which version of Kubernetes: by the labels that
// engines give containers of their image's, or by what is in the node, where an engine does not.
func (c *Clusters) identify(ctx context.Context, node provider.Node) (nodeRuntime, string, error) {
	if version := node.Labels[nodeimage.LabelKubernetes]; version != "" {
		return berthRuntime(), version, nil
	}
	version, err := provider.Output(ctx, c.Provider, node.Name, "cat", nodeimage.VersionFile)
	if err == nil {
		return berthRuntime(), version, nil
	}
	if ctx.Err() != nil {
		return nodeRuntime{}, "", err
	}
	version, err = provider.Output(ctx, c.Provider, node.Name, "sh", "-c", "command -v containerd >/dev/null && cat "+kindVersionFile)
	if err != nil {
		return nodeRuntime{}, "", fmt.Errorf("the image of %s is neither of berth cluster build-image nor of kindest/node: %w: %w", node.Name, errs.Unsupported, err)
	}
	return containerdRuntime(), version, nil
}

// identifyAll finds runtime and version of nodes, and makes sure that they fit each other.
func (m *making) identifyAll(ctx context.Context, nodes []config.Node) error {
	runtimes, versions := make([]nodeRuntime, len(nodes)), make([]string, len(nodes))
	group, within := errgroup.WithContext(ctx)
	for i, n := range nodes {
		group.Go(func() error {
			container, err := m.find(m.Cluster.ContainerName(n))
			if err != nil {
				return err
			}
			if runtimes[i], versions[i], err = m.identify(within, container); err == nil && runtimes[i].ours() {
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

func (m *making) alike(runtimes map[string]nodeRuntime) error {
	var names []string
	for _, r := range runtimes {
		if !slices.Contains(names, r.name) {
			names = append(names, r.name)
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
		if !r.ours() {
			return false
		}
	}
	return true
}
