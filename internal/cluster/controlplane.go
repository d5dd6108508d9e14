package cluster

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"golang.org/x/sync/errgroup"

	"github.com/berthrun/berth/internal/cluster/addons"
	"github.com/berthrun/berth/internal/cluster/kubeadm"
	"github.com/berthrun/berth/internal/cluster/kubeapi"
	"github.com/berthrun/berth/internal/cluster/nodenet"
)

// initialize runs `kubeadm init` on the first control plane, without its phase markPhase: a phase
// that follows that one restarts the kubelet, which then registers the node at once.
func (m *createRun) initialize(ctx context.Context) error {
	skipped, err := m.skippedPhases()
	if err != nil {
		return err
	}
	// The flag replaces the list in the configuration.
	skip := "--skip-phases=" + strings.Join(append(skipped, markPhase), ",")
	return m.kubeadm(ctx, m.Cluster.ContainerName(m.firstControlPlane()), "init", "--skip-token-print", skip)
}

// markPhase is the phase of `kubeadm init` that gives the node the labels and taints of a control
// plane. It waits until the kubelet has registered the node. The kubelet starts before there is an
// API, and retries in ever longer pauses of up to seven seconds.
const markPhase = "mark-control-plane"

// markControlPlane runs the phase markPhase, unless the cluster file leaves it out.
func (m *createRun) markControlPlane(ctx context.Context) error {
	skipped, err := m.skippedPhases()
	if err != nil || slices.Contains(skipped, markPhase) {
		return err
	}
	return m.kubeadm(ctx, m.Cluster.ContainerName(m.firstControlPlane()), "init phase "+markPhase)
}

// skippedPhases are the phases of `kubeadm init` that the cluster file leaves out.
func (m *createRun) skippedPhases() ([]string, error) {
	config, err := m.kubeadmConfig(m.firstControlPlane())
	if err != nil {
		return nil, err
	}
	return kubeadm.SkippedPhases(config)
}

// awaitAPI waits until the API serves what nodes need to join, and creates a client of it. When
// `kubeadm init` fails meanwhile, that is the error. The end of init ends the wait, too: patches
// may have another way of discovery.
func (m *createRun) awaitAPI(ctx context.Context) error {
	err := m.connectAPI(ctx)
	if err == nil {
		return nil
	}
	if failed := m.init.Wait(ctx); failed != nil {
		return failed
	}
	return err
}

func (m *createRun) connectAPI(ctx context.Context) error {
	first, err := m.node(m.Cluster.ContainerName(m.firstControlPlane()))
	if err != nil {
		return err
	}
	waiting, stop := m.init.During(ctx)
	defer stop()
	server, err := serverOf(first, m.nodes)
	if err != nil {
		return err
	}
	if !kubeapi.AwaitServer(waiting, server) {
		if err := m.init.Wait(ctx); err != nil {
			return err
		}
	}
	// By now kubeadm has written the kubeconfig. It has not created the roles yet.
	if m.admin, err = m.kubeconfig(ctx, first, m.nodes, m.plan.Context, false); err != nil {
		return err
	}
	var direct bool
	if m.api, direct, err = m.openAPI(ctx, m.Cluster.Name, m.admin, runningPatience); err != nil {
		return err
	}
	if !direct && ctx.Err() == nil {
		fix := "use kubectl on the network of the nodes with berth cluster kubeconfig --internal"
		if m.Provider.Facts().Remote { // else an address has to be one of this host
			fix = "set networking.apiServerAddress, or " + fix
		}
		m.Warn(fmt.Sprintf("%s is a port of the host of %s, which this process does not reach; it goes through %s, but kubectl cannot"+
			"\n  to fix it: %s", server, m.Provider.Name(), first.Name, fix))
	}
	m.api.AwaitClusterInfo(waiting)
	return context.Cause(ctx)
}

// awaitInit waits for the end of `kubeadm init` if workers cannot join beside it: if there are
// none, or if other control planes join, too.
func (m *createRun) awaitInit(ctx context.Context) error {
	if m.init.Ended() || len(m.others()) == 0 || m.Cluster.ControlPlanes() > 1 {
		return m.init.Wait(ctx)
	}
	return nil
}

// connect writes the routes between the nodes' pods, while kubeadm may still wait for its nodes.
// The pod network of kindest/node does that itself.
func (m *createRun) connect(ctx context.Context) error {
	if !m.usesBerthNetwork() {
		return nil
	}
	return nodenet.Connect(ctx, m.Provider, m.Warn, m.api, m.nodes)
}

// excludeLabel is the label of control planes that external load balancers of services leave out.
const excludeLabel = "node.kubernetes.io/exclude-from-external-load-balancers"

// includeOnlyNode lets load balancers of services send to the only node of a cluster.
func (m *createRun) includeOnlyNode(ctx context.Context) error {
	if len(m.Cluster.Nodes) > 1 {
		return nil
	}
	return m.api.LabelNode(ctx, m.Cluster.ContainerName(m.firstControlPlane()), map[string]*string{excludeLabel: nil})
}

// joinOthers joins all other nodes to the first control plane. It ends when `kubeadm init` fails
// meanwhile.
func (m *createRun) joinOthers(ctx context.Context) error {
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return m.init.Wait(ctx) })
	group.Go(func() error { return m.join(ctx, m.Cluster.ContainerName(m.firstControlPlane()), m.others()) })
	return group.Wait()
}

// installAddons stores the cluster file in the cluster, and installs the add-ons and the ConfigMap
// of the registry.
func (m *createRun) installAddons(ctx context.Context) error {
	if err := m.storeDescription(ctx); err != nil {
		return err
	}
	first := m.Cluster.ContainerName(m.firstControlPlane())
	installer := addons.Installer{
		Provider: m.Provider, API: m.api, Cluster: m.Cluster, Node: first, Runtime: m.runtimes[first], Endpoint: m.plan.Endpoint,
		Warn: m.Warn,
	}
	if m.registry != nil {
		installer.Documents = []string{m.registry.HostingConfigMap()}
	}
	return installer.Install(ctx)
}
