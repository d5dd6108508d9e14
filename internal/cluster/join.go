package cluster

import (
	"bytes"
	"context"
	"errors"
	"fmt"

	"golang.org/x/sync/errgroup"

	"github.com/berthrun/berth/internal/cluster/config"
	"github.com/berthrun/berth/internal/cluster/provider"
	"github.com/berthrun/berth/internal/errs"
)

// joinTitle is the title of the step that joins nodes.
func joinTitle(nodes []config.Node) string {
	var planes, workers bool
	for _, n := range nodes {
		planes = planes || n.Role == config.ControlPlane
		workers = workers || n.Role == config.Worker
	}
	switch {
	case planes && workers:
		return "Joining control planes and workers"
	case planes:
		return "Joining control planes"
	}
	return "Joining workers"
}

// join runs `kubeadm join` on nodes: on all workers at once, and beside that on one control plane
// after the other, because etcd accepts one new member at a time. from is a control plane of the
// cluster.
func (m *builder) join(ctx context.Context, from string, nodes []config.Node) error {
	if err := m.api.SignClusterInfo(ctx, m.token); err != nil && !errors.Is(err, errs.NotFound) { // patches may have another way of discovery
		return m.explain(ctx, from, err)
	}
	group, ctx := errgroup.WithContext(ctx)
	var planes []string
	for _, n := range nodes {
		name := m.Cluster.ContainerName(n)
		if n.Role == config.ControlPlane {
			planes = append(planes, name)
			continue
		}
		group.Go(func() error { return m.kubeadm(ctx, name, "join") })
	}
	if len(planes) > 0 {
		group.Go(func() error { return m.joinControlPlanes(ctx, from, planes) })
	}
	return group.Wait()
}

func (m *builder) joinControlPlanes(ctx context.Context, from string, names []string) error {
	authorities, err := m.readAuthorities(ctx, from)
	if err != nil {
		return err
	}
	for _, name := range names {
		command := provider.Command{
			Args:  []string{"tar", "--extract", "--file=-", "--directory=/", "--no-same-owner", "--same-permissions"},
			Stdin: bytes.NewReader(authorities),
		}
		if err := m.Provider.Exec(ctx, name, command); err != nil {
			return fmt.Errorf("cannot give %s the cluster's authorities: %w", name, err)
		}
		if err := m.kubeadm(ctx, name, "join"); err != nil {
			return err
		}
	}
	return nil
}

// readAuthorities returns an archive of the certificate authorities and signing keys of a cluster,
// which all control planes share.
func (m *builder) readAuthorities(ctx context.Context, from string) ([]byte, error) {
	args := []string{"tar", "--create", "--file=-", "--directory=/"}
	for _, name := range []string{"ca.crt", "ca.key", "front-proxy-ca.crt", "front-proxy-ca.key", "sa.pub", "sa.key", "etcd/ca.crt", "etcd/ca.key"} {
		args = append(args, "etc/kubernetes/pki/"+name)
	}
	var archive bytes.Buffer
	if err := m.Provider.Exec(ctx, from, provider.Command{Args: args, Stdout: &archive, Raw: true}); err != nil {
		return nil, fmt.Errorf("cannot read the cluster's authorities of %s: %w", from, err)
	}
	return archive.Bytes(), nil
}
