package cluster

import (
	"context"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sync/errgroup"
	"k8s.io/client-go/tools/clientcmd/api"

	"github.com/berthrun/berth/internal/cluster/config"
	"github.com/berthrun/berth/internal/cluster/inventory"
	"github.com/berthrun/berth/internal/cluster/noderuntime"
	"github.com/berthrun/berth/internal/cluster/plan"
	"github.com/berthrun/berth/internal/cluster/provider"
	"github.com/berthrun/berth/internal/cluster/registry"
	"github.com/berthrun/berth/internal/errs"
)

// CreateOptions are what a cluster is made of.
type CreateOptions struct {
	Cluster *config.Cluster
	// Retain: nodes stay when something fails, to be looked at.
	Retain bool
	// Wait is how long all nodes may take to be Ready; 0 waits for none.
	Wait time.Duration
}

// creation is one run of Create.
type creation struct {
	making
	retain bool
	// made: nodes exist that are of this run; registryMade is what of the registry is.
	made         bool
	registryMade registry.Created
	// background is what of setUp goes on while the control plane starts.
	background *errgroup.Group
	// init is `kubeadm init`, for whose end workers do not wait.
	init *initialization
	// beside is what goes on while the other nodes join: the end of init, the marking of the first
	// control plane, and add-ons.
	beside errgroup.Group
	// connecting waits for the ranges of all nodes' pods, and writes routes while kubeadm still
	// looks whether its node has joined.
	connecting errgroup.Group
	admin      *api.Config
}

// Create makes a cluster. When something fails, or ctx ends, nothing of it stays, unless
// Retain. That not all nodes are Ready in time is an error, too, with which the cluster stays.
func (c *Clusters) Create(ctx context.Context, o CreateOptions) (string, error) {
	m := &creation{making: c.making(o.Cluster), retain: o.Retain}
	if err := m.check(ctx); err != nil {
		return "", err
	}
	file, err := m.make(ctx)
	if err != nil {
		return "", m.rollBack(ctx, err)
	}
	if o.Wait == 0 {
		return file, nil
	}
	return file, c.RunStep("Waiting for all nodes to be Ready", func() error {
		return waitReady(ctx, m.api, inventory.Members(m.nodes), time.Time{}, o.Wait)
	})
}

// make is the order of steps. Some things go on beside them: other nodes are set up from setUp to
// the end of startControlPlane, and what begins there goes on until finishControlPlane and
// finishConnecting.
// When make returns, nothing of it goes on.
func (m *creation) make(ctx context.Context) (file string, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer func() {
		cancel()
		if m.background != nil {
			_ = m.background.Wait() // startControlPlane has returned its error, or failed first
		}
		_ = m.beside.Wait() // finishControlPlane has returned its error, or another step failed first
		_ = m.connecting.Wait()
	}()
	for _, s := range []struct {
		text string
		do   func(context.Context) error
		when bool
	}{
		{"Ensuring the node image", m.ensureImages, true},
		{"Starting the registry", m.startRegistry, m.Cluster.Registry.Enabled},
		{"Making nodes", m.makeNodes, true},
		{"Setting up the nodes", m.setUp, true},
		{"Starting the control plane", m.startControlPlane, true},
		{joining(m.others()), m.joinOthers, len(m.Cluster.Nodes) > 1},
		{"Installing add-ons", m.finishControlPlane, true},
		{"Connecting the nodes' pods", m.finishConnecting, !m.Cluster.Networking.DisableDefaultCNI},
		{"Writing kubeconfig", func(ctx context.Context) error {
			file, err = m.Kubeconfig.Merge(ctx, m.admin)
			return err
		}, true},
	} {
		if !s.when {
			continue
		}
		do := func() error {
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
			return s.do(ctx)
		}
		if err := m.RunStep(s.text, do); err != nil {
			return "", fmt.Errorf("cannot create the cluster %s: %w", m.Cluster.Name, err)
		}
	}
	return file, nil
}

// check refuses what cannot succeed before anything is made.
func (m *creation) check(ctx context.Context) error {
	name := m.Cluster.Name
	existing, err := m.Provider.List(ctx, name)
	if err != nil {
		return err
	}
	if len(existing) > 0 {
		return fmt.Errorf("node(s) already exist for a cluster with the name %q; choose another with --name, or berth cluster delete --name %s: %w", name, name, errs.Exists)
	}
	if err := m.able(); err != nil {
		return err
	}
	if err := m.Kubeconfig.Check(ctx); err != nil {
		return fmt.Errorf("the cluster %s would have no place in the kubeconfig: %w", name, err)
	}
	return m.fit()
}

// able refuses what berth cannot do.
func (m *making) able() error {
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

// avoidLoopback6 has the API listen on the other loopback address where nobody would reach it on
// that of IPv6, which is the default of clusters of IPv6 only.
func (m *making) avoidLoopback6() {
	if m.Provider.Facts().Loopback6 || m.Cluster.Networking.APIServerAddress != "::1" {
		return
	}
	changed := *m.Cluster
	changed.Networking.APIServerAddress = "127.0.0.1"
	m.Cluster = &changed
	m.Warn(fmt.Sprintf("%s leads no port of ::1 into containers; the API listens on 127.0.0.1 of this host instead", m.Provider.Name()))
}

// fit refuses to make nodes where the host or its engine lacks what they need.
func (m *making) fit() error {
	var fatal []error
	for _, finding := range append(m.Provider.Check(len(m.Cluster.Nodes)), m.checkProxy()...) {
		text := finding.Problem + "\n  to fix it: " + finding.Fix
		switch {
		case finding.Fatal:
			fatal = append(fatal, fmt.Errorf("%s: %w", text, errs.Unsupported))
		case finding.Once == "" || m.FirstTime == nil || m.FirstTime(finding.Once):
			m.Warn(text)
		}
	}
	return errors.Join(fatal...)
}

// unsupported names what a description may ask for and cannot get.
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

// ensureImages pulls images that are not there.
func (m *creation) ensureImages(ctx context.Context) error { return m.ensure(ctx, m.Cluster.Nodes) }

// makeNodes makes network and containers.
func (m *creation) makeNodes(ctx context.Context) (err error) {
	if err := m.planIt(ctx); err != nil {
		return err
	}
	if err := m.checkSubnets(m.Provider.PlanHost(m.network)); err != nil {
		return err
	}
	if err := m.makeContainers(ctx, m.plan.Containers, m.retain, nil); err != nil {
		return err
	}
	m.made = true
	return nil
}

// undoTime bounds the undoing of a cluster.
const undoTime = 2 * time.Minute

// rollBack removes each thing that this run made, and nothing else, also when ctx has ended.
func (m *creation) rollBack(ctx context.Context, failed error) error {
	name := m.Cluster.Name
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), undoTime)
	defer cancel()
	if m.retain && m.left(ctx) {
		return fmt.Errorf("%w\n  nodes stay as they are: berth cluster logs --name %s, berth cluster delete --name %s", failed, name, name)
	}
	network := m.registryMade.Network
	if m.network.Made {
		network = m.network.Name
	}
	if !m.made && !m.registryMade.Container && network == "" {
		return failed
	}
	undone := m.RunStep("Removing what was made", func() error {
		var all []error
		if m.made {
			all = append(all, m.Provider.DeleteCluster(ctx, name))
		}
		if m.registryMade.Container {
			all = append(all, m.Provider.DeleteCluster(ctx, plan.RegistryGroup))
		}
		if network != "" {
			all = append(all, m.Provider.RemoveNetwork(ctx, network))
		}
		return errors.Join(all...)
	})
	if undone != nil {
		undone = fmt.Errorf("cannot remove what was made; berth cluster delete --name %s tries again: %w", name, undone)
	}
	return errors.Join(failed, undone)
}

// left reports whether there are containers of the cluster: an engine that has failed to make
// all of them may have made some. Where it does not tell, there may be.
func (m *creation) left(ctx context.Context) bool {
	all, err := m.Provider.List(ctx, m.Cluster.Name)
	return err != nil || len(all) > 0
}

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
		_, m.registryMade, err = m.Registry().Ensure(ctx, registry.Options{Port: m.Cluster.Registry.Port, Image: image})
	}
	return err
}
