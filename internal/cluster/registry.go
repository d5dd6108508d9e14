package cluster

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strconv"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/berthrun/berth/internal/cluster/config"
	"github.com/berthrun/berth/internal/cluster/inventory"
	"github.com/berthrun/berth/internal/cluster/nodeimage"
	"github.com/berthrun/berth/internal/cluster/noderuntime"
	"github.com/berthrun/berth/internal/cluster/plan"
	"github.com/berthrun/berth/internal/cluster/provider"
	"github.com/berthrun/berth/internal/cluster/registry"
	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/undo"
)

// DefaultRegistryPort is the port of a registry that is asked for without one.
const DefaultRegistryPort = 5001

// RegistryOptions are what a registry is made of.
type RegistryOptions struct {
	// Image is that of nodes, which has the registry's program; "" is config.DefaultImage.
	Image string
	// Port is that of the host's loopback. 0 is the one that it has, or a free one.
	Port int
}

// RegistryStatus is the registry that clusters of an engine share.
type RegistryStatus struct {
	// Name is its container's, Address what names of images begin with that are pushed
	// from this host.
	Name    string `json:"name"`
	Address string `json:"address"`
	State   string `json:"state"`
	Running bool   `json:"running"`
	Image   string `json:"image"`

	port int
}

// Registry tells of the registry. It is errs.NotFound that there is none.
func (c *Clusters) Registry(ctx context.Context) (RegistryStatus, error) {
	found, err := c.Provider.List(ctx, plan.RegistryGroup)
	if err != nil {
		return RegistryStatus{}, err
	}
	if len(found) == 0 {
		return RegistryStatus{}, fmt.Errorf("there is no registry in %s; berth cluster registry start makes one: %w", c.Provider.Name(), errs.NotFound)
	}
	n := found[0]
	s := RegistryStatus{Name: n.Name, State: n.State, Running: n.Running, Image: n.Image}
	if at, err := n.Endpoint(plan.RegistryPort); err == nil {
		s.port, s.Address = int(at.Port()), net.JoinHostPort("localhost", strconv.Itoa(int(at.Port())))
	}
	return s, nil
}

// StartRegistry makes the registry or starts it, and gives all clusters that run its mirror.
// Clusters that are made later have it from the start.
func (c *Clusters) StartRegistry(ctx context.Context, o RegistryOptions) (RegistryStatus, error) {
	var s RegistryStatus
	err := c.RunStep("Starting the registry", func() (err error) {
		s, _, err = c.ensureRegistry(ctx, o)
		return err
	})
	if err != nil {
		return s, err
	}
	clusters, err := inventory.Clusters(ctx, c.Provider)
	if err != nil {
		return s, err
	}
	var failed []error
	for _, summary := range clusters {
		if summary.Running == 0 {
			continue
		}
		failed = append(failed, c.RunStep("Telling the nodes of "+summary.Name, func() error { return c.tellOfRegistry(ctx, summary.Name, s) }))
	}
	return s, errors.Join(failed...)
}

// StopRegistry stops the registry; its images stay.
func (c *Clusters) StopRegistry(ctx context.Context) error {
	if _, err := c.Registry(ctx); err != nil {
		return err
	}
	return c.RunStep("Stopping the registry", func() error { return c.Provider.Stop(ctx, plan.RegistryName) })
}

// DeleteRegistry removes the registry with its images; the network stays, as with a cluster. An absent one is no error; found
// tells whether there was one. The mirrors of nodes stay, and lead nowhere.
func (c *Clusters) DeleteRegistry(ctx context.Context) (found bool, err error) {
	all, err := c.Provider.List(ctx, plan.RegistryGroup)
	if err != nil {
		return false, err
	}
	err = c.RunStep("Deleting the registry", func() error {
		return c.Provider.DeleteCluster(ctx, plan.RegistryGroup)
	})
	if err != nil {
		return len(all) > 0, fmt.Errorf("cannot delete the registry: %w", err)
	}
	return len(all) > 0, nil
}

// madeRegistry is what an ensureRegistry has made, also one that fails.
type madeRegistry struct {
	container bool
	// network is the name of the one that the registry is on, "" where that was there.
	network string
}

// ensureRegistry makes the registry where there is none, and starts it where it is stopped.
func (c *Clusters) ensureRegistry(ctx context.Context, o RegistryOptions) (s RegistryStatus, made madeRegistry, err error) {
	s, err = c.Registry(ctx)
	switch {
	case errors.Is(err, errs.NotFound):
		if made, err = c.makeRegistry(ctx, o); err != nil {
			return s, made, fmt.Errorf("cannot make the registry: %w", err)
		}
	case err != nil:
		return s, made, err
	case o.Port != 0 && o.Port != s.port:
		return s, made, fmt.Errorf("the registry is at %s already, not at port %d; ask for its port, or make it anew after berth cluster registry delete: %w", s.Address, o.Port, errs.Exists)
	case !s.Running:
		if err := c.Provider.Start(ctx, plan.RegistryName); err != nil {
			return s, made, err
		}
	}
	if s, err = c.Registry(ctx); err == nil {
		err = c.awaitRegistry(ctx, s)
	}
	return s, made, err
}

// makeRegistry makes the container. Where it fails, nothing is left.
func (c *Clusters) makeRegistry(ctx context.Context, o RegistryOptions) (made madeRegistry, err error) {
	if o.Port < 0 || o.Port > 65535 {
		return made, fmt.Errorf("port %d: want 1 to 65535, or 0 for a free one: %w", o.Port, errs.Invalid)
	}
	image := cmp.Or(o.Image, config.DefaultImage)
	if _, err := c.Provider.Ensure(ctx, image, nil); err != nil {
		return made, fmt.Errorf("%w\n  its program is in the image of nodes: berth cluster build-image --kubernetes v1.36.3", err)
	}
	found, err := c.Provider.Present(ctx, image)
	if err != nil {
		return made, err
	}
	if _, ours := found.Labels[nodeimage.LabelBerth]; !ours {
		return made, fmt.Errorf("the image %s is not of berth cluster build-image, so that the registry's program is not in it: %w", image, errs.Invalid)
	}
	p := plan.Plan{Containers: []plan.Container{plan.Registry(image, o.Port)}}
	if !c.Provider.Facts().Remote {
		release, err := p.PickPorts(ctx)
		if err != nil {
			return made, err
		}
		release()
	}
	network, err := c.Provider.EnsureNetwork(ctx, c.network())
	if err != nil {
		return made, err
	}
	var u undo.Stack
	defer u.OnError(ctx, &err)
	if network.Made {
		u.Push("make the network "+network.Name, func(ctx context.Context) error { return c.Provider.RemoveNetwork(ctx, network.Name) })
	}
	command := []string{nodeimage.EntryProgram, "cluster", "in-node", "registry"}
	if err := c.Provider.Create(ctx, provider.Request{Network: network, Specs: []provider.Spec{{Container: p.Containers[0], Command: command}}}); err != nil {
		return made, err
	}
	made.container = true
	if network.Made {
		made.network = network.Name
	}
	return made, nil
}

// registryTime bounds the wait for a registry that was started, which takes a blink. Where
// the engine gives it another link address, this host sends to the old one for most of a
// minute. registryAnswer bounds one request, which may have been sent there.
const (
	registryTime   = time.Minute
	registryAnswer = 3 * time.Second
)

// awaitRegistry waits until the registry answers on this host.
func (c *Clusters) awaitRegistry(ctx context.Context, s RegistryStatus) error {
	if c.Provider.Facts().Remote {
		return nil // its loopback is another one
	}
	ctx, cancel := context.WithTimeout(ctx, registryTime)
	defer cancel()
	client := http.Client{Timeout: registryAnswer}
	var last error
	for {
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+s.Address+"/v2/", nil)
		if err != nil {
			return err
		}
		answer, err := client.Do(request)
		if err == nil {
			answer.Body.Close()
			if answer.StatusCode == http.StatusOK {
				c.warnOfWriters(answer.Header)
				return nil
			}
			err = fmt.Errorf("it answers %s", answer.Status)
		}
		if ctx.Err() == nil || last == nil {
			last = err
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("the registry does not answer at %s; its log tells more (%s logs %s): %w: %w", s.Address, c.Provider.Name(), s.Name, errs.Unavailable, last)
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// warnOfWriters tells of a registry whose program is older than the rule that only the host pushes.
func (c *Clusters) warnOfWriters(header http.Header) {
	if header.Get(registry.WritersHeader) == "" {
		c.Warn("the registry's program is that of an older berth, and takes images from every pod of every cluster\n" +
			"  to fix it: berth cluster build-image, berth cluster registry delete, and start; what was pushed has to be pushed again")
	}
}

// lookForRegistry finds the registry; nil is that there is none.
func (c *Clusters) lookForRegistry(ctx context.Context) (*RegistryStatus, error) {
	s, err := c.Registry(ctx)
	if errors.Is(err, errs.NotFound) {
		return nil, nil
	}
	return &s, err
}

// mirrors are the entries that lead a node to the registry, whichever name an image was
// pushed by.
func (s RegistryStatus) mirrors() []config.Registry {
	inside := net.JoinHostPort(plan.RegistryName, strconv.Itoa(plan.RegistryPort))
	var all []config.Registry
	for _, host := range []string{s.Address, net.JoinHostPort("127.0.0.1", strconv.Itoa(s.port)), inside} {
		all = append(all, config.Registry{Host: host, Server: "http://" + inside})
	}
	return all
}

// hosting is how tools find the registry of a cluster (KEP-1755).
func (s RegistryStatus) hosting() string {
	return fmt.Sprintf(`apiVersion: v1
kind: ConfigMap
metadata: {name: local-registry-hosting, namespace: kube-public}
data:
  localRegistryHosting.v1: |
    host: %q
    hostFromContainerRuntime: "%s:%d"
    help: "push to %[1]s on the host of the cluster; berth cluster registry status tells more"
`, s.Address, plan.RegistryName, plan.RegistryPort)
}

// tellOfRegistry gives nodes that run the mirror, and the cluster the word of it.
func (c *Clusters) tellOfRegistry(ctx context.Context, name string, s RegistryStatus) error {
	all, err := inventory.Nodes(ctx, c.Provider, name)
	if err != nil {
		return err
	}
	group, within := errgroup.WithContext(ctx)
	for _, n := range all {
		if n.Running && inventory.Role(n) != config.BalancerRole {
			group.Go(func() error {
				runtime, _, err := noderuntime.Identify(within, c.Provider, n)
				if err != nil {
					return err
				}
				return noderuntime.WriteRegistries(within, c.Provider, n.Name, runtime, s.mirrors())
			})
		}
	}
	if err := group.Wait(); err != nil {
		return err
	}
	first, err := inventory.ControlPlane(all)
	if err != nil || !first.Running {
		return err
	}
	if err := c.applyIn(ctx, first.Name, s.hosting()); err != nil {
		return fmt.Errorf("%s is not told of its registry (ConfigMap kube-public/local-registry-hosting): %w", name, err)
	}
	return nil
}
