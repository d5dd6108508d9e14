package cni

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/containernetworking/cni/libcni"
	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/network"
	"github.com/berthrun/berth/internal/sys/sysns"
)

// Attach runs ADD once. Repeated after it succeeded, it returns the same result;
// repeated after it failed, it runs DEL first.
func (n *Network) Attach(ctx context.Context, att *network.Attachment) (*network.Result, error) {
	var result *network.Result
	err := n.calls.Do(ctx, att.SandboxID, "CNI ADD", func() (err error) {
		if err := n.upkeep.gate.enter(ctx); err != nil {
			return err
		}
		defer n.upkeep.gate.leave()
		result, err = n.attach(ctx, att)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("cannot attach sandbox %s to the network: %w", att.SandboxID, err)
	}
	return result, nil
}

func (n *Network) attach(ctx context.Context, att *network.Attachment) (*network.Result, error) {
	if len(att.Addresses) > 0 {
		return nil, fmt.Errorf("config.annotations[%q]: plugins choose the pods' addresses; only the built-in network gives out those that are asked for: %w", network.AnnotationAddresses, errs.Unsupported)
	}
	rec, err := n.records.Get(att.SandboxID)
	if err == nil && rec.Result != nil && !rec.Deleting && rec.Attachment.NetNS == att.NetNS {
		return rec.Result, nil
	}
	if err == nil {
		err = n.del(context.WithoutCancel(ctx), att.SandboxID)
	}
	if err != nil && !errors.Is(err, errs.NotFound) {
		return nil, err
	}
	confs, err := n.confsOf(att.Handler).current()
	if err != nil {
		return nil, err
	}
	conf := confs[0]
	if err := n.checkPorts(att, conf); err != nil {
		return nil, err
	}
	rec = &record{Attachment: *att, Conf: conf.list.Bytes}
	if r, err := n.ranges.Get(nodeID); err == nil {
		rec.Ranges = r.Ranges
	}
	rt, err := runtimeConf(rec)
	if err != nil {
		return nil, err
	}
	if err := sysns.InNetNS(att.NetNS, sysns.LoopbackUp); err != nil {
		return nil, fmt.Errorf("cannot bring up the pod's loopback: %w", err)
	}
	if rt.CapabilityArgs[capBandwidth] != nil && !conf.declares(capBandwidth) {
		// No error: some networks read the annotation from the API server.
		n.log.Warn("cannot limit the bandwidth of a pod by its annotations: no plugin has the capability bandwidth (some networks read the annotations themselves)",
			"sandbox", att.SandboxID, "configuration", conf.file)
	}
	if err := n.ports.Take(rec.holder(), rec.sockets()); err != nil {
		return nil, err
	}
	if err := n.records.Create(att.SandboxID, rec); err != nil {
		n.ports.Free(att.SandboxID, rec.sockets())
		return nil, err
	}
	return n.add(ctx, att.SandboxID, conf.list, rt)
}

// checkPorts is kind Unsupported when the pod has a host port that no plugin is asked to
// map: libcni hands the ports to those alone that declare the capability, and the pod
// would run with a port that leads nowhere.
func (n *Network) checkPorts(att *network.Attachment, c *conf) error {
	if n.cfg.AnyHostPorts || c.declares(capPortMappings) {
		return nil
	}
	for _, p := range att.Ports {
		if p.HostPort != 0 {
			return fmt.Errorf("config.port_mappings: host port %d/%s of container port %d would lead nowhere: no plugin in %s has the capability %s; "+
				"add one, such as portmap, or set network.host_ports = \"cni\" when the network serves host ports without it: %w",
				p.HostPort, cmp.Or(p.Protocol, "tcp"), p.ContainerPort, c.file, capPortMappings, errs.Unsupported)
		}
	}
	return nil
}

// declares reports whether a plugin has the capability. libcni gives the pod's values
// to no other.
func (c *conf) declares(capability string) bool {
	return slices.ContainsFunc(c.list.Plugins, func(p *libcni.PluginConfig) bool { return p.Network.Capabilities[capability] })
}

// add runs ADD and writes its result down.
func (n *Network) add(ctx context.Context, sandbox string, list *libcni.NetworkConfigList, rt *libcni.RuntimeConf) (*network.Result, error) {
	answer, err := n.lib.AddNetworkList(ctx, list, rt)
	if err != nil {
		return nil, fmt.Errorf("CNI ADD to network %q: %w", list.Name, withKind(ctx, err))
	}
	result, err := resultOf(answer, rt.IfName)
	if err != nil {
		return nil, fmt.Errorf("failed to find network info for sandbox %q: CNI ADD to network %q: %w", sandbox, list.Name, err)
	}
	if _, err := n.records.Update(sandbox, func(r *record) error { r.Result = result; return nil }); err != nil {
		return nil, err
	}
	return result, nil
}

// resultOf takes the addresses of the pod's interface, IPv4 first.
func resultOf(answer types.Result, link string) (*network.Result, error) {
	current, err := types100.NewResultFromResult(answer)
	if err != nil {
		return nil, fmt.Errorf("cannot read the plugins' result: %w", err)
	}
	raw, err := json.Marshal(current)
	if err != nil {
		return nil, fmt.Errorf("cannot keep the plugins' result: %w", err)
	}
	result := &network.Result{CNI: raw}
	for _, ip := range current.IPs {
		if i := ip.Interface; i != nil && *i >= 0 && *i < len(current.Interfaces) {
			if in := current.Interfaces[*i]; in.Name != link || in.Sandbox == "" {
				continue
			}
		}
		if addr, ok := netip.AddrFromSlice(ip.Address.IP); ok {
			result.IPs = append(result.IPs, addr.Unmap())
		}
	}
	if len(result.IPs) == 0 {
		return nil, fmt.Errorf("the plugins gave %s no address", link)
	}
	slices.SortStableFunc(result.IPs, func(a, b netip.Addr) int { return a.BitLen() - b.BitLen() })
	return result, nil
}

// withKind gives plugin errors their kinds.
func withKind(ctx context.Context, err error) error {
	var plugin *types.Error
	switch {
	case errors.Is(ctx.Err(), context.DeadlineExceeded):
		return fmt.Errorf("%w: %w", err, errs.Deadline)
	case errors.As(err, &plugin) && isTryLater(plugin.Code):
		return fmt.Errorf("%w: %w", err, errs.Unavailable)
	}
	return err
}

// isTryLater reports whether an error has one of the specification's codes for "not now".
func isTryLater(code uint) bool {
	const limited = 51 // CNI 1.1: no new connections, existing ones may suffer
	return code == types.ErrTryAgainLater || code == types.ErrPluginNotAvailable || code == limited
}
