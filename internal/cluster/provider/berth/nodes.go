package berth

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"golang.org/x/sync/errgroup"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berthrun/berth/internal/cluster/plan"
	"github.com/berthrun/berth/internal/cluster/provider"
	"github.com/berthrun/berth/internal/errs"
)

// found is the runtime's part of a node: the pod of the last run and its container, nil if there is
// none.
type found struct {
	sandbox   *runtimeapi.PodSandbox
	container *runtimeapi.Container
}

func (f found) running() bool {
	return f.container.GetState() == runtimeapi.ContainerState_CONTAINER_RUNNING
}

// state is the state of the container, in podman's terms.
func (f found) state() string {
	switch {
	case f.container == nil && f.sandbox == nil:
		return "stopped" // after a reboot, or never started
	case f.container == nil, f.container.GetState() == runtimeapi.ContainerState_CONTAINER_CREATED:
		return "created"
	case f.running():
		return "running"
	}
	return "exited"
}

// find finds the pod and the container of a node.
func (e *Provider) find(ctx context.Context, r *record) (found, error) {
	all, err := e.findAll(ctx, map[string]string{provider.LabelNode: r.name()})
	return all[key{r.UID, r.Run}], err
}

// key is a run of a node.
type key struct {
	uid string
	run uint32
}

// findAll finds the pods and containers of all nodes with some labels.
func (e *Provider) findAll(ctx context.Context, with map[string]string) (map[key]found, error) {
	sandboxes, err := e.conn.Runtime.ListPodSandbox(ctx, &runtimeapi.ListPodSandboxRequest{Filter: &runtimeapi.PodSandboxFilter{LabelSelector: with}})
	if err != nil {
		return nil, fmt.Errorf("cannot list the pods of berth: %w", err)
	}
	containers, err := e.conn.Runtime.ListContainers(ctx, &runtimeapi.ListContainersRequest{Filter: &runtimeapi.ContainerFilter{LabelSelector: with}})
	if err != nil {
		return nil, fmt.Errorf("cannot list the containers of berth: %w", err)
	}
	all := map[key]found{}
	for _, s := range sandboxes.GetItems() {
		if s.GetMetadata().GetNamespace() != namespace {
			continue
		}
		f := found{sandbox: s}
		for _, c := range containers.GetContainers() {
			if c.GetPodSandboxId() == s.GetId() {
				f.container = c
			}
		}
		all[key{s.GetMetadata().GetUid(), s.GetMetadata().GetAttempt()}] = f
	}
	return all, nil
}

// List lists the records.
func (e *Provider) List(ctx context.Context, cluster string) ([]provider.Node, error) {
	all, err := e.records(cluster)
	if err != nil || len(all) == 0 {
		return nil, err
	}
	var with map[string]string
	if cluster != "" {
		with = map[string]string{plan.LabelCluster: cluster}
	}
	known, err := e.findAll(ctx, with)
	if err != nil {
		return nil, err
	}
	var nodes []provider.Node
	for _, r := range all {
		n, err := e.node(ctx, r, known[key{r.UID, r.Run}])
		if err != nil {
			return nil, err
		}
		nodes = append(nodes, n)
	}
	return nodes, nil
}

// node is a node in the form of a provider.
func (e *Provider) node(ctx context.Context, r *record, f found) (provider.Node, error) {
	n := provider.Node{
		Name: r.name(), ID: f.container.GetId(), Image: r.Spec.Image, Labels: maps.Clone(r.Spec.Labels),
		State: f.state(), Running: f.running(), Ports: r.Ports,
	}
	var own []string
	for _, a := range r.Addresses {
		own = append(own, a.String())
		if a.Is4() {
			n.IPv4 = a
		} else {
			n.IPv6 = a
		}
	}
	if r.isNode() { // others get any free address, like any pod
		n.Labels[provider.LabelAddresses] = strings.Join(own, ",")
	}
	if n.State != "exited" {
		return n, nil
	}
	status, err := e.conn.Runtime.ContainerStatus(ctx, &runtimeapi.ContainerStatusRequest{ContainerId: n.ID})
	if errs.IgnoreNotFound(err) != nil {
		return n, fmt.Errorf("cannot read how %s has ended: %w", r.name(), err)
	}
	n.ExitCode = int(status.GetStatus().GetExitCode())
	return n, nil
}

// Start starts stopped nodes, and waits for systemd.
func (e *Provider) Start(ctx context.Context, names ...string) error {
	return each(ctx, names, func(ctx context.Context, name string) error {
		var run *record
		err := e.withNode(ctx, name, func(r *record) error {
			run = r
			f, err := e.find(ctx, r)
			switch {
			case err != nil:
				return err
			case !f.running():
				return e.run(ctx, r)
			case r.Stopped: // but not yet
				r.Stopped = false
				return e.write(r)
			}
			return nil
		})
		if err == nil {
			err = e.ready(ctx, run, provider.DefaultWait)
		}
		if err != nil {
			return fmt.Errorf("cannot start %s: %w", name, err)
		}
		return nil
	})
}

// stopSeconds is how long systemd may take to end everything in a node.
const stopSeconds = 30

// Stop stops nodes, which Up does not start. It frees their host ports. It frees their addresses,
// too, but pods get those last.
func (e *Provider) Stop(ctx context.Context, names ...string) error {
	return each(ctx, names, func(ctx context.Context, name string) error {
		err := e.withNode(ctx, name, func(r *record) error {
			r.Stopped = true
			if err := e.write(r); err != nil {
				return err
			}
			return e.halt(ctx, r)
		})
		if err == nil {
			err = e.updateHosts(ctx)
		}
		if err != nil {
			return fmt.Errorf("cannot stop %s: %w", name, err)
		}
		return nil
	})
}

// halt stops the pod of a node. The caller holds the node's lock.
func (e *Provider) halt(ctx context.Context, r *record) error {
	f, err := e.find(ctx, r)
	if err != nil {
		return err
	}
	e.traceCall("stop", r.name())
	if f.container != nil {
		_, err := e.conn.Runtime.StopContainer(ctx, &runtimeapi.StopContainerRequest{ContainerId: f.container.GetId(), Timeout: stopSeconds})
		if errs.IgnoreNotFound(err) != nil {
			return err
		}
	}
	if f.sandbox == nil {
		return nil
	}
	_, err = e.conn.Runtime.StopPodSandbox(ctx, &runtimeapi.StopPodSandboxRequest{PodSandboxId: f.sandbox.GetId()})
	return errs.IgnoreNotFound(err)
}

// Delete kills and removes nodes with their directories. It tries all.
func (e *Provider) Delete(ctx context.Context, names ...string) error {
	return each(ctx, names, func(ctx context.Context, name string) error {
		err := e.withNode(ctx, name, func(*record) error {
			if err := e.removePods(ctx, name); err != nil {
				return err
			}
			if err := e.emptyDir(name); err != nil { // this takes time
				return err
			}
			return e.alone(ctx, func() error { return e.dropDir(name) })
		})
		if err == nil {
			err = e.updateHosts(ctx)
		}
		if errs.IgnoreNotFound(err) != nil {
			return fmt.Errorf("cannot delete %s: %w", name, err)
		}
		return nil
	})
}

// Release stops nodes and removes them, except for their volumes.
func (e *Provider) Release(ctx context.Context, names ...string) error {
	return each(ctx, names, func(ctx context.Context, name string) error {
		err := e.withNode(ctx, name, func(r *record) error {
			if err := e.halt(ctx, r); err != nil {
				return err
			}
			if err := e.removePods(ctx, name); err != nil {
				return err
			}
			r.Released = true
			return e.alone(ctx, func() error { return errors.Join(e.dropAllButVolumes(name), e.write(r)) })
		})
		if err == nil {
			err = e.updateHosts(ctx)
		}
		if errs.IgnoreNotFound(err) != nil {
			return fmt.Errorf("cannot release %s: %w", name, err)
		}
		return nil
	})
}

// DeleteCluster removes all nodes of a cluster, and pods with its label that have no record.
func (e *Provider) DeleteCluster(ctx context.Context, cluster string) error {
	if cluster == "" {
		return fmt.Errorf("a cluster without a name is every cluster: %w", errs.Invalid)
	}
	all, err := e.recordsWithReleased(cluster)
	if err != nil {
		return fmt.Errorf("cannot delete the cluster %s: %w", cluster, err)
	}
	var names []string
	for _, r := range all {
		names = append(names, r.name())
	}
	failed := e.Delete(ctx, names...)
	left, err := e.findAll(ctx, map[string]string{plan.LabelCluster: cluster})
	for _, f := range left {
		if name := f.sandbox.GetLabels()[provider.LabelNode]; !slices.Contains(names, name) {
			err = errors.Join(err, e.removePods(ctx, name))
		}
	}
	if err := errors.Join(failed, err); err != nil {
		return fmt.Errorf("cannot delete the cluster %s: %w", cluster, err)
	}
	return nil
}

// each calls a function for all at once, also if it fails for some.
func each[T any](ctx context.Context, all []T, do func(context.Context, T) error) error {
	var group errgroup.Group
	failed := make([]error, len(all))
	for i, one := range all {
		group.Go(func() error {
			failed[i] = do(ctx, one)
			return nil
		})
	}
	_ = group.Wait() // the errors are in failed
	return errors.Join(failed...)
}

// one is the container of a running node.
func (e *Provider) one(ctx context.Context, name string) (string, error) {
	r, err := e.read(name)
	if err != nil {
		return "", err
	}
	f, err := e.find(ctx, r)
	if err != nil {
		return "", err
	}
	if !f.running() {
		return "", fmt.Errorf("%s does not run (%s): %w", name, f.state(), errs.State)
	}
	return f.container.GetId(), nil
}
