package cluster

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"
	"k8s.io/client-go/tools/clientcmd/api"

	"github.com/berthrun/berth/internal/cluster/addons"
	"github.com/berthrun/berth/internal/cluster/inventory"
	"github.com/berthrun/berth/internal/cluster/kubeadm"
	"github.com/berthrun/berth/internal/cluster/kubeapi"
	"github.com/berthrun/berth/internal/cluster/kubeconfig"
	"github.com/berthrun/berth/internal/cluster/nodenet"
	"github.com/berthrun/berth/internal/cluster/plan"
	"github.com/berthrun/berth/internal/cluster/provider"
)

// startControlPlane begins `kubeadm init` on the first control plane, and returns when other nodes
// may join: the end of init, where the first control plane is all there is, or where others follow
// it. What is lacking then goes on beside the next steps, to finishControlPlane.
func (m *creation) startControlPlane(ctx context.Context) error {
	first, err := m.find(m.Cluster.ContainerName(m.first()))
	if err != nil {
		return err
	}
	if m.init, err = m.initialize(ctx, first.Name); err != nil {
		return err
	}
	if err := m.enter(ctx, first); err != nil {
		if failed := m.init.wait(ctx); failed != nil {
			return failed // which is why nobody could enter
		}
		return err
	}
	if m.init.over() || len(m.others()) == 0 || m.Cluster.ControlPlanes() > 1 {
		if err := m.init.wait(ctx); err != nil {
			return err
		}
	}
	return m.background.Wait()
}

// enter waits until the API tells nodes what they need to know to join, and begins what needs the
// API. The end of init ends the waiting: patches may have nodes learn it elsewhere.
func (m *creation) enter(ctx context.Context, first provider.Node) error {
	waiting, stop := m.init.during(ctx)
	defer stop()
	server, err := serverOf(first, m.nodes)
	if err != nil {
		return err
	}
	kubeapi.AwaitServer(waiting, server)
	// By now kubeadm has written it, and roles are still to be made.
	if m.admin, err = m.kubeconfig(ctx, first, m.nodes, m.plan.Context, false); err != nil {
		return err
	}
	if m.api, err = kubeapi.New(m.admin); err != nil {
		return err
	}
	m.api.AwaitInfo(waiting)
	m.beside.Go(func() error {
		if err := m.init.wait(ctx); err != nil {
			return err
		}
		if err := m.keep(ctx); err != nil {
			return err
		}
		return m.installAddons(ctx)
	})
	if !m.Cluster.Networking.DisableDefaultCNI {
		m.connecting.Go(func() error { return m.connect(ctx) })
	}
	return context.Cause(ctx)
}

// connect gives each node of a new cluster routes to the pods of all others. A network of
// the image's own does that itself.
func (m *creation) connect(ctx context.Context) error {
	if !m.ours() {
		return nil
	}
	return nodenet.Connect(ctx, m.Provider, m.Warn, m.api, m.nodes)
}

// finishConnecting waits until all nodes have their routes.
func (m *creation) finishConnecting(context.Context) error { return m.connecting.Wait() }

// noBalancers is the label that kubeadm gives control planes, so that load balancers of services send
// them nothing.
const noBalancers = "node.kubernetes.io/exclude-from-external-load-balancers"

// finishControlPlane waits until the first control plane is marked and has the add-ons. The only node of
// a cluster is one that load balancers send to: there is no other.
func (m *creation) finishControlPlane(ctx context.Context) error {
	if err := m.beside.Wait(); err != nil || len(m.Cluster.Nodes) > 1 {
		return err
	}
	return m.api.Relabel(ctx, m.Cluster.ContainerName(m.first()), map[string]*string{noBalancers: nil})
}

// marking is the phase of `kubeadm init` that gives the node the labels and taints of a control
// plane. It waits until the kubelet has registered the node, and the kubelet, which has found no
// API yet when it started, tries that in ever longer pauses of up to seven seconds.
const marking = "mark-control-plane"

// initialization is a run of `kubeadm init` beside other things.
type initialization struct {
	ended chan struct{}
	err   error // once it has ended
}

// over: it has ended.
func (i *initialization) over() bool {
	select {
	case <-i.ended:
		return true
	default:
		return false
	}
}

// wait returns how it has ended.
func (i *initialization) wait(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-i.ended:
		return i.err
	}
}

// during is a context that ends with it.
func (i *initialization) during(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(ctx)
	go func() {
		_ = i.wait(ctx)
		cancel()
	}()
	return ctx, cancel
}

// initialize begins `kubeadm init`, the marking last and beside what comes next: a phase that
// follows it by kubeadm's order restarts the kubelet, which registers the node at once then.
func (m *creation) initialize(ctx context.Context, node string) (*initialization, error) {
	config, err := m.kubeadmConfig(m.first())
	if err != nil {
		return nil, err
	}
	skipped, err := kubeadm.SkippedPhases(config)
	if err != nil {
		return nil, err
	}
	// The flag counts instead of what the configuration says.
	skip := "--skip-phases=" + strings.Join(append(slices.Clone(skipped), marking), ",")
	run := &initialization{ended: make(chan struct{})}
	m.beside.Go(func() error {
		run.err = m.kubeadm(ctx, node, "init", "--skip-token-print", skip)
		close(run.ended)
		if run.err != nil || slices.Contains(skipped, marking) {
			return run.err
		}
		return m.kubeadm(ctx, node, "init phase "+marking)
	})
	return run, nil
}

// joinOthers has all nodes join the first control plane. It ends when init fails meanwhile.
func (m *creation) joinOthers(ctx context.Context) error {
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return m.init.wait(ctx) })
	group.Go(func() error { return m.join(ctx, m.Cluster.ContainerName(m.first()), m.others()) })
	return group.Wait()
}

// kubeconfig is the cluster's, as a control plane has it, for this host or, internal, for its
// nodes' network.
func (c *Clusters) kubeconfig(ctx context.Context, plane provider.Node, all []provider.Node, name string, internal bool) (*api.Config, error) {
	text, err := provider.Output(ctx, c.Provider, plane.Name, "cat", kubeadm.AdminFile)
	if err != nil {
		return nil, fmt.Errorf("the cluster has no kubeconfig: %w", err)
	}
	server := ""
	if !internal {
		if server, err = serverOf(plane, all); err != nil {
			return nil, err
		}
	}
	return kubeconfig.FromAdmin([]byte(text), name, server)
}

// serverOf is the URL of the API for this host: a control plane's, or that of the load balancer
// where there is one.
func serverOf(plane provider.Node, all []provider.Node) (string, error) {
	entrance, found := inventory.Balancer(all)
	if !found {
		entrance = plane
	}
	at, err := entrance.Endpoint(plan.APIPort)
	if err != nil {
		return "", err
	}
	return kubeconfig.Server(at.Addr().String(), int(at.Port())), nil
}

// waitReady waits until these nodes have said since a time that they are Ready: what they said
// before they were stopped holds on for a while.
func waitReady(ctx context.Context, client *kubeapi.Client, members []string, since time.Time, wait time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	nodes, err := client.Wait(ctx, kubeapi.Every(members, func(n kubeapi.Node) bool { return n.Ready && !n.Seen.Before(since) }))
	if err == nil {
		return nil
	}
	return lateness(members, wait, nodes, err)
}

// lateness says which nodes are not Ready, and why.
func lateness(members []string, wait time.Duration, nodes []kubeapi.Node, err error) error {
	var slow []string
	for _, name := range members {
		i := slices.IndexFunc(nodes, func(n kubeapi.Node) bool { return n.Name == name })
		switch {
		case i < 0:
			slow = append(slow, name+" (the API has not heard of it)")
		case !nodes[i].Ready:
			slow = append(slow, name+" ("+nodes[i].Why+")")
		}
	}
	return fmt.Errorf("not all of %d nodes are Ready after %s, and the cluster stays as it is: %s: %w", len(members), wait, strings.Join(slow, ", "), err)
}

// installAddons installs the add-ons of the cluster, and the ConfigMap of the registry.
func (m *creation) installAddons(ctx context.Context) error {
	first := m.Cluster.ContainerName(m.first())
	installer := addons.Installer{
		Provider: m.Provider, API: m.api, Cluster: m.Cluster, Node: first, Runtime: m.runtimes[first], Endpoint: m.plan.Endpoint,
	}
	if m.registry != nil {
		installer.Documents = []string{m.registry.HostingConfigMap()}
	}
	return installer.Install(ctx)
}
