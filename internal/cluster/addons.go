package cluster

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/berthrun/berth/internal/cluster/kubeadm"
	"github.com/berthrun/berth/internal/cluster/provider"
)

// startRegistry has the registry running before there are nodes that are told of it.
func (m *creation) startRegistry(ctx context.Context) error {
	if m.LockRegistry != nil {
		release, err := m.LockRegistry(ctx)
		if err != nil {
			return err
		}
		defer release()
	}
	image, err := m.helper(ctx)
	if err == nil {
		_, m.registryMade, err = m.ensureRegistry(ctx, RegistryOptions{Port: m.Cluster.Registry.Port, Image: image})
	}
	return err
}

// installAddons gives the cluster what it begins with beside Kubernetes: the network of its
// nodes' image, the default StorageClass, and the word of the registry; and it has the cluster's
// DNS fit the nodes' name servers.
func (m *creation) installAddons(ctx context.Context) error {
	if err := m.preferUDP(ctx); err != nil {
		return err
	}
	first := m.Cluster.ContainerName(m.first())
	network, err := m.defaultNetwork(ctx, first)
	if err != nil {
		return err
	}
	volumes, err := m.defaultStorage(ctx, first)
	if err != nil {
		return err
	}
	documents := []string{network, volumes}
	if m.registry != nil {
		documents = append(documents, m.registry.hosting())
	}
	documents = slices.DeleteFunc(documents, func(text string) bool { return text == "" })
	if len(documents) == 0 {
		return nil
	}
	if err := m.applyIn(ctx, first, strings.Join(documents, "\n---\n")); err != nil {
		return fmt.Errorf("cannot install the StorageClass and what else the cluster begins with: %w", err)
	}
	return nil
}

// applyIn has the kubectl of a control plane apply documents.
func (c *Clusters) applyIn(ctx context.Context, node, documents string) error {
	return c.Provider.Exec(ctx, node, provider.Command{
		Args: []string{"kubectl", "--kubeconfig=" + kubeadm.AdminFile, "apply", "--filename=-"}, Stdin: strings.NewReader(documents),
	})
}
