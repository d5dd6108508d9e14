package cluster

import (
	"context"
	"fmt"
	"strings"

	"github.com/berthrun/berth/internal/cluster/provider"
	"github.com/berthrun/berth/internal/cluster/storage"
)

// installAddons gives the cluster what it begins with beside Kubernetes: the default
// StorageClass.
func (m *creation) installAddons(ctx context.Context) error {
	var documents []string
	if !m.Cluster.DisableDefaultStorage {
		documents = append(documents, storage.Manifest())
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
