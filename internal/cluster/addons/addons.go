// Package addons installs the add-ons of a new cluster: the pod network of its nodes' image, or what
// enforces policies in berth's own network, the default StorageClass, and a setting of CoreDNS.
package addons

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/berthrun/berth/internal/cluster/config"
	"github.com/berthrun/berth/internal/cluster/kubeadm"
	"github.com/berthrun/berth/internal/cluster/kubeapi"
	"github.com/berthrun/berth/internal/cluster/noderuntime"
	"github.com/berthrun/berth/internal/cluster/provider"
)

// Installer installs the add-ons of one cluster.
type Installer struct {
	Provider provider.Provider
	API      *kubeapi.Client
	Cluster  *config.Cluster
	// Node is the control plane whose kubectl applies documents, Runtime its container runtime.
	Node    string
	Runtime noderuntime.Runtime
	// Endpoint is the host and port at which nodes reach the API.
	Endpoint string
	// Documents are applied with the add-ons.
	Documents []string
	// Warn warns the user.
	Warn func(text string)
}

// Install installs all add-ons.
func (i Installer) Install(ctx context.Context) error {
	if err := i.preferUDP(ctx); err != nil {
		return err
	}
	network, err := i.defaultNetwork(ctx)
	if err != nil {
		return err
	}
	volumes, err := i.defaultStorage(ctx)
	if err != nil {
		return err
	}
	policies, err := i.policies(ctx)
	if err != nil {
		return err
	}
	documents := append([]string{network, policies, volumes}, i.Documents...)
	documents = slices.DeleteFunc(documents, func(text string) bool { return text == "" })
	if len(documents) == 0 {
		return nil
	}
	if err := Apply(ctx, i.Provider, i.Node, strings.Join(documents, "\n---\n")); err != nil {
		return fmt.Errorf("cannot install the StorageClass and what else the cluster begins with: %w", err)
	}
	return nil
}

// Apply applies documents with the kubectl of a control plane.
func Apply(ctx context.Context, p provider.Provider, node, documents string) error {
	return p.Exec(ctx, node, provider.Command{
		Args: []string{"kubectl", "--kubeconfig=" + kubeadm.AdminFile, "apply", "--filename=-"}, Stdin: strings.NewReader(documents),
	})
}
