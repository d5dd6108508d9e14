package cluster

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/berthrun/berth/internal/cluster/config"
	"github.com/berthrun/berth/internal/cluster/noderuntime"
	"github.com/berthrun/berth/internal/cluster/plan"
	"github.com/berthrun/berth/internal/cluster/provider"
	"github.com/berthrun/berth/internal/cluster/provider/hostcheck"
	"github.com/berthrun/berth/internal/errs"
)

// checkDescription refuses what berth cannot do, and shows the warnings of the cluster file.
func (m *builder) checkDescription() error {
	if err := unsupported(m.Cluster, m.Provider.Facts()); err != nil {
		return err
	}
	for _, n := range m.Cluster.Nodes {
		if _, err := noderuntime.HostsFiles("", n.Registries); err != nil {
			return err
		}
	}
	m.avoidLoopback6()
	for _, w := range m.Cluster.Warnings {
		m.Warn(w.String())
	}
	return nil
}

// avoidLoopback6 makes the API listen on 127.0.0.1 where ports of ::1, the default of clusters of
// IPv6 only, do not lead into containers.
func (m *builder) avoidLoopback6() {
	if m.Provider.Facts().Loopback6 || m.Cluster.Networking.APIServerAddress != "::1" {
		return
	}
	changed := *m.Cluster
	changed.Networking.APIServerAddress = "127.0.0.1"
	m.Cluster = &changed
	m.Warn(fmt.Sprintf("%s leads no port of ::1 into containers; the API listens on 127.0.0.1 of this host instead", m.Provider.Name()))
}

// checkHost refuses to create nodes if the host or its provider lacks what they need.
func (m *builder) checkHost() error {
	var fatal []error
	for _, unmet := range append(m.Provider.Check(len(m.Cluster.Nodes)), m.checkProxy()...) {
		text := unmet.Evidence + "\n  to fix it: " + unmet.Fix
		switch {
		case unmet.Fatal():
			fatal = append(fatal, fmt.Errorf("%s: %w", text, errs.Unsupported))
		case unmet.Once == "" || m.FirstTime == nil || m.FirstTime(unmet.Once):
			m.Warn(text)
		}
	}
	return errors.Join(fatal...)
}

// unsupported returns an error for each valid setting that the provider cannot have.
func unsupported(c *config.Cluster, engine provider.Facts) error {
	var all []error
	no := func(field, what string) {
		all = append(all, fmt.Errorf("%s: %s: %w", field, what, errs.Unsupported))
	}
	if c.HasBalancer() && engine.Remote {
		no("nodes", "several control planes need ports of the host that stay theirs, which can be picked only where the container engine runs; want one control plane with an engine on another host")
	}
	return errors.Join(all...)
}

// checkProxy returns what this host lacks for the mode of kube-proxy.
func (m *builder) checkProxy() []hostcheck.UnmetRequirement {
	facts := m.Provider.Facts()
	if m.Cluster.Networking.KubeProxyMode != config.ProxyIPVS || facts.Remote {
		return nil
	}
	if found := hostcheck.IPVS(hostcheck.Host{Root: os.DirFS("/"), Rootless: facts.Rootless}); found != nil {
		return []hostcheck.UnmetRequirement{*found}
	}
	return nil
}

// checkTools refuses a node image that lacks a program of the mode of kube-proxy. Berth's image of
// kube-proxy uses the node's programs; kindest/node has its own.
func (m *builder) checkTools(ctx context.Context, node, image string) error {
	if m.Cluster.Networking.KubeProxyMode != config.ProxyIPVS {
		return nil
	}
	if err := m.Provider.Exec(ctx, node, provider.Command{Args: []string{"test", "-x", "/usr/sbin/ipset"}}); err != nil {
		return fmt.Errorf("networking.kubeProxyMode is ipvs, and the image %s of %s has no ipset, which kube-proxy runs; build the image again, with Debian's package ipset in --rootfs, or choose nftables: %w: %w", image, node, errs.Unsupported, err)
	}
	return nil
}

// checkSubnets refuses subnets of the cluster that overlap the network of its nodes, which would be
// unreachable, or networks of this host, which pods and nodes could not reach. It only warns of a
// subnet that is a part of a larger network, as a VPN has it: only that part is hidden.
func (m *createRun) checkSubnets(host plan.Host) error {
	clashes, err := m.Cluster.Clashes(m.network.Subnets)
	if err != nil {
		return err
	}
	if len(clashes) > 0 {
		return clashes[0].Refusal(fmt.Sprintf("the network %s of %s, which nodes are on", m.network.Name, m.Provider.Name()))
	}
	if clashes, err = m.Cluster.Clashes(host.Routes); err != nil {
		return err
	}
	for _, c := range clashes {
		if !c.Inside() {
			return c.Refusal("to which this host has a route")
		}
		m.Warn(fmt.Sprintf("%s: %s is a part of %s, to which this host has a route; nodes and pods will not reach that part", c.Field, c.Subnet, c.Network))
	}
	return nil
}
