// Package cluster creates and manages clusters whose nodes are containers on this host, as `berth cluster` does. The
// command and this package manage the same clusters: nothing is stored outside of the containers.
//
// The API follows semantic versioning from berth v1.0 on. Before that, a minor version may change it; the release notes
// name each change.
package cluster

import (
	"context"
	"io"
	"net/netip"
	"time"

	"k8s.io/client-go/tools/clientcmd"

	"github.com/berthrun/berth/internal/cluster"
	"github.com/berthrun/berth/internal/cluster/config"
	"github.com/berthrun/berth/internal/cluster/images"
	"github.com/berthrun/berth/internal/cluster/inventory"
	"github.com/berthrun/berth/internal/cluster/local"
	"github.com/berthrun/berth/internal/cluster/logs"
	"github.com/berthrun/berth/internal/cluster/report"
)

// Options choose the container engine, and who hears of progress.
type Options struct {
	// Provider is the container engine that creates nodes: docker, podman, nerdctl, finch or berth. "" is that of
	// $KIND_EXPERIMENTAL_PROVIDER, or else the first one that works, berth last.
	Provider string
	// Kubeconfig is the kubeconfig file that gets the clusters. "" is the one that kubectl would use.
	Kubeconfig string
	// Step reports that a step begins. The function that it returns is called when the step ends, with its error. nil
	// for nobody. Steps may run at the same time.
	Step func(text string) (end func(error))
	// Warn reports a problem that stops nothing. nil for nobody.
	Warn func(text string)
}

// Clusters are the clusters of one provider. The methods may be called by several goroutines and processes at the same
// time: two that change one cluster do not run at once. The later one returns an error of kind State.
type Clusters struct{ all *cluster.Clusters }

// Open finds the provider. The error is of kind Unsupported or Unavailable when this host has none that works; its text
// says what is missing.
func Open(ctx context.Context, o Options) (*Clusters, error) {
	if o.Step == nil {
		o.Step = func(string) func(error) { return func(error) {} }
	}
	if o.Warn == nil {
		o.Warn = func(string) {}
	}
	engine, err := local.Open(ctx, local.Options{Name: o.Provider, Skipped: o.Warn})
	if err != nil {
		return nil, err
	}
	all, err := local.Clusters(engine, o.Kubeconfig, report.Reporter{Step: o.Step, Warn: o.Warn})
	if err != nil {
		return nil, err
	}
	return &Clusters{all}, nil
}

// CreateOptions say which cluster is created.
type CreateOptions struct {
	// Name is the name of the cluster. "" is that of the file, or "berth" without one.
	Name string
	// File is the text of a cluster file of berth or of kind (kind.x-k8s.io/v1alpha4). Without a file, the cluster has
	// one control-plane node.
	File []byte
	// Image is the node image of all nodes; "" is that of the file, or the default one.
	Image string
	// Wait is how long all nodes may take to be Ready; 0 waits for none.
	Wait time.Duration
	// Retain keeps the nodes when a step fails, for debugging.
	Retain bool
}

// Create creates a cluster and adds it to the kubeconfig file, whose path it returns. When a step fails or ctx ends, it
// removes what it has created. When not all nodes are Ready in time, it returns an error and the cluster stays. Kind
// Invalid names a field of the file by line and column; kind Exists means that there is a cluster of this name.
func (c *Clusters) Create(ctx context.Context, o CreateOptions) (kubeconfig string, err error) {
	described, err := describe(o)
	if err != nil {
		return "", err
	}
	release, err := local.Lock(c.all.Provider, described.Name)
	if err != nil {
		return "", err
	}
	defer release()
	return c.all.Create(ctx, cluster.CreateOptions{Cluster: described, Retain: o.Retain, Wait: o.Wait})
}

func describe(o CreateOptions) (*config.Cluster, error) {
	given := config.Options{Name: o.Name, Image: o.Image}
	if o.File == nil {
		return config.Default(given)
	}
	return config.Load("cluster file", o.File, given)
}

// Delete removes a cluster with its volumes and its entries in kubeconfig files. found reports whether it existed; an
// absent cluster is not an error.
func (c *Clusters) Delete(ctx context.Context, name string) (found bool, err error) {
	release, err := local.Lock(c.all.Provider, name)
	if err != nil {
		return false, err
	}
	defer release()
	return c.all.Delete(ctx, name)
}

// Stop stops the nodes of a cluster. Their disks stay.
func (c *Clusters) Stop(ctx context.Context, name string) error {
	release, err := local.Lock(c.all.Provider, name)
	if err != nil {
		return err
	}
	defer release()
	return c.all.Stop(ctx, name)
}

// Start starts the nodes of a stopped cluster. wait is how long all nodes may take to be Ready; 0 waits for none.
func (c *Clusters) Start(ctx context.Context, name string, wait time.Duration) error {
	release, err := local.Lock(c.all.Provider, name)
	if err != nil {
		return err
	}
	defer release()
	return c.all.Start(ctx, name, wait)
}

// List returns the names of the clusters, sorted.
func (c *Clusters) List(ctx context.Context) ([]string, error) {
	found, err := inventory.Clusters(ctx, c.all.Provider)
	if err != nil {
		return nil, err
	}
	names := make([]string, 0, len(found))
	for _, f := range found {
		names = append(names, f.Name)
	}
	return names, nil
}

// Node is a container of a cluster.
type Node struct {
	Name string
	// Role is control-plane, worker or external-load-balancer.
	Role  string
	Image string
	// Running is false for one that is stopped.
	Running bool
	// IPv4 and IPv6 are its addresses on the network of the provider; the zero value is none.
	IPv4, IPv6 netip.Addr
}

// Nodes returns the nodes of a cluster. Kind NotFound for an unknown cluster.
func (c *Clusters) Nodes(ctx context.Context, name string) ([]Node, error) {
	found, err := inventory.Nodes(ctx, c.all.Provider, name)
	if err != nil {
		return nil, err
	}
	nodes := make([]Node, 0, len(found))
	for _, n := range found {
		nodes = append(nodes, Node{
			Name: n.Name, Role: string(inventory.Role(n)), Image: n.Image, Running: n.Running, IPv4: n.IPv4, IPv6: n.IPv6,
		})
	}
	return nodes, nil
}

// Kubeconfig returns the kubeconfig of a cluster as YAML: for this host, or with internal for containers on the network
// of its nodes. Kind State when no control plane runs.
func (c *Clusters) Kubeconfig(ctx context.Context, name string, internal bool) ([]byte, error) {
	found, err := c.all.Config(ctx, name, internal)
	if err != nil {
		return nil, err
	}
	return clientcmd.Write(*found)
}

// LoadOptions say which images are loaded, and into which nodes.
type LoadOptions struct {
	// Images are names of images of the provider.
	Images []string
	// Archives are files of docker save or of OCI tools, plain or compressed; "-" is Stdin.
	Archives []string
	Stdin    io.Reader
	// Nodes are the names of the nodes; none is all.
	Nodes []string
}

// Load loads images into the nodes of a cluster. A node gets only what it does not have.
func (c *Clusters) Load(ctx context.Context, name string, o LoadOptions) error {
	release, err := local.LockShared(c.all.Provider, name)
	if err != nil {
		return err
	}
	defer release()
	return images.Loader{Provider: c.all.Provider, Reporter: c.all.Reporter}.Load(ctx, name, images.Options{
		Images: o.Images, Archives: o.Archives, Stdin: o.Stdin, Nodes: o.Nodes,
	})
}

// CollectLogs writes the logs and the state of a cluster into a directory of this host, under the file names of kind's
// `export logs`. It warns of what a node could not deliver.
func (c *Clusters) CollectLogs(ctx context.Context, name, dir string) error {
	return logs.Collector{Provider: c.all.Provider, Warn: c.all.Warn}.Collect(ctx, name, dir)
}
