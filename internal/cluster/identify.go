package cluster

import (
	"context"
	"fmt"
	"slices"

	"golang.org/x/sync/errgroup"

	"github.com/berthrun/berth/internal/cluster/config"
	"github.com/berthrun/berth/internal/cluster/noderuntime"
	"github.com/berthrun/berth/internal/errs"
)

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
