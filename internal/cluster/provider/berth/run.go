package berth

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berthrun/berth/internal/cluster/config"
	"github.com/berthrun/berth/internal/cluster/plan"
	"github.com/berthrun/berth/internal/cluster/provider"
	"github.com/berthrun/berth/internal/errs"
)

// runTimeout bounds the creation of a pod and its container, which takes a second or two.
const runTimeout = 2 * time.Minute

// run creates the pod and the container of a node, and starts it. The caller holds the node's lock.
// It does not end with ctx: the runtime would continue to create the pod.
func (e *Provider) run(ctx context.Context, r *record) (err error) {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), runTimeout)
	defer cancel()
	if err := e.removePods(ctx, r.name()); err != nil {
		return err
	}
	network, err := e.EnsureNetwork(ctx, "")
	if err != nil {
		return err
	}
	if err := e.prepare(ctx, r, network); err != nil {
		return err
	}
	dir := e.nodeDir(r.name())
	pod, err := podConfig(r, dir, dns(e.host, gateway(network)))
	if err != nil {
		return err
	}
	e.traceCall("run pod", r.name())
	sandbox, err := e.conn.Runtime.RunPodSandbox(ctx, &runtimeapi.RunPodSandboxRequest{Config: pod})
	if err != nil {
		return e.explain(err, r)
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, e.removePods(ctx, r.name()))
		}
	}()
	if err := e.settle(ctx, r, sandbox.GetPodSandboxId()); err != nil {
		return err
	}
	made, err := e.conn.Runtime.CreateContainer(ctx, &runtimeapi.CreateContainerRequest{
		PodSandboxId: sandbox.GetPodSandboxId(), Config: containerConfig(r, dir), SandboxConfig: pod,
	})
	if err != nil {
		return err
	}
	e.traceCall("start container", r.name())
	_, err = e.conn.Runtime.StartContainer(ctx, &runtimeapi.StartContainerRequest{ContainerId: made.GetContainerId()})
	return err
}

// prepare records the next run: its number, its ports, and other addresses if the former ones are
// taken, or if the network has changed.
func (e *Provider) prepare(ctx context.Context, r *record, n provider.Network) error {
	r.Run++
	r.Stopped = false
	var err error
	if r.Ports, err = pickPorts(ctx, r.Spec.Ports); err != nil {
		return fmt.Errorf("node %s: %w", r.name(), err)
	}
	if err := e.dropLogs(r); err != nil {
		return err
	}
	err = e.alone(ctx, func() error {
		used, err := e.used(ctx, r.name())
		if err != nil {
			return err
		}
		if !fits(r.Addresses, n, used) {
			taken, err := e.taken(ctx)
			if err != nil {
				return err
			}
			if r.Addresses, err = choose(n, r.name(), taken); err != nil {
				return err
			}
		}
		return e.write(r)
	})
	if err != nil {
		return err
	}
	return e.updateHosts(ctx)
}

// fits reports whether a node may have its addresses again.
func fits(addresses []netip.Addr, n provider.Network, used map[netip.Addr]bool) bool {
	for _, subnet := range n.Subnets {
		if !slices.ContainsFunc(addresses, subnet.Contains) {
			return false
		}
	}
	return !slices.ContainsFunc(addresses, func(a netip.Addr) bool {
		return used[a] || !slices.ContainsFunc(n.Subnets, func(s netip.Prefix) bool { return s.Contains(a) })
	})
}

// settle records the addresses of a pod: one without privilege requests none.
func (e *Provider) settle(ctx context.Context, r *record, sandbox string) error {
	addresses, err := e.addresses(ctx, sandbox)
	if err != nil || slices.Equal(addresses, r.Addresses) {
		return err
	}
	r.Addresses = addresses
	if err := e.write(r); err != nil {
		return err
	}
	return e.updateHosts(ctx)
}

// gateway is the host's own address on the pods' network.
func gateway(n provider.Network) netip.Addr {
	if len(n.Subnets) == 0 {
		return netip.Addr{}
	}
	return n.Subnets[0].Masked().Addr().Next()
}

// pickPorts returns ports with a free host port for each that the engine should pick.
func pickPorts(ctx context.Context, ports []plan.Port) ([]plan.Port, error) {
	picked := slices.Clone(ports)
	for i, p := range picked {
		if p.Host != config.EnginePort && p.Host != config.FreePort {
			continue
		}
		p.Host = config.FreePort
		one := plan.Plan{Containers: []plan.Container{{Ports: []plan.Port{p}}}}
		release, err := one.PickPorts(ctx)
		if err != nil {
			return nil, err
		}
		release()
		picked[i] = one.Containers[0].Ports[0]
	}
	return picked, nil
}

// explain names the field to change if berth's error has only a port.
func (e *Provider) explain(err error, r *record) error {
	if !errors.Is(err, errs.Exists) {
		return err
	}
	for _, p := range r.Spec.Ports {
		if p.Field != "" {
			return fmt.Errorf("%w; the ports of the host are those of %s", err, p.Field)
		}
	}
	return err
}

// keptLogs is how many logs of earlier runs stay.
const keptLogs = 4

// dropLogs removes the oldest log beyond keptLogs.
func (e *Provider) dropLogs(r *record) error {
	if r.Run <= keptLogs {
		return nil
	}
	return errs.IgnoreNotExist(os.Remove(filepath.Join(e.nodeDir(r.name()), logs, logName(r.Run-keptLogs-1))))
}

// removePods removes all pods of a node, with their containers.
func (e *Provider) removePods(ctx context.Context, name string) error {
	list, err := e.conn.Runtime.ListPodSandbox(ctx, &runtimeapi.ListPodSandboxRequest{Filter: &runtimeapi.PodSandboxFilter{
		LabelSelector: map[string]string{provider.LabelNode: name},
	}})
	if err != nil {
		return fmt.Errorf("cannot list the pods of berth: %w", err)
	}
	var failed []error
	for _, sandbox := range list.GetItems() {
		e.traceCall("remove pod", name)
		_, err := e.conn.Runtime.RemovePodSandbox(ctx, &runtimeapi.RemovePodSandboxRequest{PodSandboxId: sandbox.GetId()})
		failed = append(failed, errs.IgnoreNotFound(err))
	}
	return errors.Join(failed...)
}
