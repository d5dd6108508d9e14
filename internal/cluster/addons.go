package cluster

import (
	"context"
	"fmt"
	"strings"

	"github.com/berthrun/berth/internal/cluster/config"
	"github.com/berthrun/berth/internal/cluster/provider"
	"github.com/berthrun/berth/internal/cluster/storage"
)

// startRegistry has the registry running before there are nodes that are told of it.
func (m *creation) startRegistry(ctx context.Context) (err error) {
	_, m.madeRegistry, err = m.ensureRegistry(ctx, RegistryOptions{Port: m.Cluster.Registry.Port, Image: m.registryImage()})
	return err
}

// registryImage is the image of nodes that the registry runs in.
func (m *creation) registryImage() string {
	for _, n := range m.Cluster.Nodes {
		if n.Role == config.ControlPlane {
			return n.Image
		}
	}
	return ""
}

// installAddons gives the cluster what it begins with beside Kubernetes: the default
// StorageClass, and the word of the registry.
func (m *creation) installAddons(ctx context.Context) error {
	var documents []string
	if !m.Cluster.DisableDefaultStorage {
		documents = append(documents, storage.Manifest())
	}
	if m.registry != nil {
		documents = append(documents, m.registry.hosting())
	}
	if len(documents) == 0 {
		return nil
	}
	first, _ := m.plan.Entrance()
	if err := m.applyIn(ctx, first.Name, strings.Join(documents, "---\n")); err != nil {
		return fmt.Errorf("cannot install the StorageClass and what else the cluster begins with: %w", err)
	}
	return nil
}

// applyIn has the kubectl of a control plane apply documents.
func (c *Clusters) applyIn(ctx context.Context, node, documents string) error {
	return c.Engine.Exec(ctx, node, provider.Command{
		Args: []string{"kubectl", "--kubeconfig=" + adminFile, "apply", "--filename=-"}, Stdin: strings.NewReader(documents),
	})
}
