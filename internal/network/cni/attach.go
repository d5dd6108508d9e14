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
	"golang.org/x/sync/errgroup"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/hostnet"
	"github.com/berthrun/berth/internal/network"
	"github.com/berthrun/berth/internal/network/cni/bridgeaddress"
	"github.com/berthrun/berth/internal/network/hostport"
	"github.com/berthrun/berth/internal/sys/sysns"
)

// Attach runs ADD once. Repeated after it succeeded, it returns the same result;
// repeated after it failed, it runs DEL first.
func (n *Network) Attach(ctx context.Context, att *network.Attachment) (*network.Result, error) {
	var result *network.Result
	err := n.calls.Do(ctx, att.SandboxID, "CNI ADD", func() (err error) {
		leave, err := n.upkeep.gate.enter(ctx, "CNI ADD of sandbox "+att.SandboxID, true)
		if err != nil {
			return err
		}
		defer leave()
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
	if err == nil && !rec.Deleting && rec.Attachment.NetNS == att.NetNS {
		if result := n.resultOf(rec); result != nil {
			return result, nil
		}
	}
	if err == nil {
		err = n.del(context.WithoutCancel(ctx), att.SandboxID)
	}
	if err != nil && !errors.Is(err, errs.NotFound) {
		return nil, err
	}
	n.followTemplate()
	confs, err := n.confsOf(att.Handler).current()
	if err != nil {
		return nil, err
	}
	if err := n.checkPorts(att, confs); err != nil {
		return nil, err
	}
	rec = &record{Attachment: *att, Conf: confs[0].list.Bytes}
	for _, c := range confs[1:] {
		rec.Others = append(rec.Others, c.list.Bytes)
	}
	if r, err := n.ranges.Get(nodeID); err == nil {
		rec.Ranges = r.Ranges
	}
	rt, err := runtimeConf(rec)
	if err != nil {
		return nil, err
	}
	if rt.CapabilityArgs[capBandwidth] != nil && !declared(confs, capBandwidth) {
		// No error: some networks read the annotation from the API server.
		n.log.Warn("cannot limit the bandwidth of a pod by its annotations: no plugin has the capability bandwidth (some networks read the annotations themselves)",
			"sandbox", att.SandboxID, "configuration", confs[0].file)
	}
	if err := n.ports.Take(rec.holder(), rec.sockets()); err != nil {
		return nil, err
	}
	if err := n.records.Create(att.SandboxID, rec); err != nil {
		n.ports.Free(att.SandboxID, rec.sockets())
		return nil, err
	}
	result, err := n.add(ctx, att.SandboxID, confs, rt)
	if err == nil {
		n.warnPorts(rec, result.IPs)
	}
	return result, err
}

// checkPorts is kind Unsupported when the pod has a host port that no plugin is asked to
// map: libcni hands the ports to those alone that declare the capability, and the pod
// would run with a port that leads nowhere.
func (n *Network) checkPorts(att *network.Attachment, confs []*conf) error {
	if n.cfg.AnyHostPorts || declared(confs, capPortMappings) {
		return nil
	}
	for _, p := range att.Ports {
		if p.HostPort != 0 {
			why, fix := "no plugin in "+confs[0].file+" has the capability portMappings", "add one, such as portmap,"
			if c := withPlugin(confs, portmapType); c != nil {
				why, fix = "the plugin portmap in "+c.file+` lacks "capabilities": {"portMappings": true}`, "add that to the plugin,"
			}
			return fmt.Errorf("config.port_mappings: host port %d/%s of container port %d would lead nowhere: %s; "+
				"%s or set network.host_ports = \"cni\" when the network serves host ports without it: %w",
				p.HostPort, cmp.Or(p.Protocol, "tcp"), p.ContainerPort, why, fix, errs.Unsupported)
		}
	}
	return nil
}

// declared reports whether a plugin has the capability. libcni gives the pod's values
// to no other.
func declared(confs []*conf, capability string) bool {
	return slices.ContainsFunc(confs, func(c *conf) bool {
		return slices.ContainsFunc(c.list.Plugins, func(p *libcni.PluginConfig) bool { return p.Network.Capabilities[capability] })
	})
}

// portmapType is the plugin that maps host ports where a configuration declares its capability.
const portmapType = "portmap"

// withPlugin returns the first configuration that has a plugin of a type, nil for none.
func withPlugin(confs []*conf, pluginType string) *conf {
	for _, c := range confs {
		if slices.ContainsFunc(c.list.Plugins, func(p *libcni.PluginConfig) bool { return p.Network.Type == pluginType }) {
			return c
		}
	}
	return nil
}

// warnPorts logs host ports that lead nowhere, and those that a program of the host has. Plugins refuse neither, and
// kubelets of other runtimes start such pods.
func (n *Network) warnPorts(rec *record, ips []netip.Addr) {
	var families hostport.Families
	for _, ip := range ips {
		families.V4, families.V6 = families.V4 || ip.Is4(), families.V6 || ip.Is6()
	}
	ports, err := hostport.Wanted(rec.Attachment.Ports, families)
	if err != nil || len(ports) == 0 {
		return
	}
	host, err := hostnet.In(n.cfg.HostNetNS)
	if err != nil {
		n.log.Warn("cannot find out whether the host has the host IPs of a pod's ports", "sandbox", rec.Attachment.SandboxID, "error", err)
		return
	}
	unserved := hostport.UnservedOf(ports, families, host.Has)
	for _, p := range ports {
		for _, s := range hostport.Sockets(p, families) {
			probe := func() error { return hostport.Probe([]hostport.Socket{s}) }
			if n.cfg.HostNetNS != "" {
				err = sysns.InNetNS(n.cfg.HostNetNS, probe)
			} else {
				err = probe()
			}
			if errors.Is(err, errs.Exists) {
				n.log.Warn("a host port of a pod is that of a program on the host, which may lose its traffic to the pod", "pod", rec.holder().Namespace+"/"+rec.holder().Name,
					"sandbox", rec.Attachment.SandboxID, "port", s.String(), "hostIP", p.HostIP, "reason", errs.Message(err))
			}
		}
	}
	hostport.Warn(n.log, rec.holder(), unserved)
}

// add runs ADD for each network and writes the result down. Where one fails, the others have
// ended: DEL undoes them all.
func (n *Network) add(ctx context.Context, sandbox string, confs []*conf, rt *libcni.RuntimeConf) (*network.Result, error) {
	answers, faults := make([]types.Result, len(confs)), make([]error, len(confs))
	kept := keeper{n: n, sandbox: sandbox}
	one := func(i int) {
		answers[i], faults[i] = n.lib.AddNetworkList(kept.of(ctx, i), confs[i].list, onNetwork(rt, i))
		if faults[i] != nil {
			faults[i] = fmt.Errorf("CNI ADD to network %q: %w%s", confs[i].list.Name, withKind(ctx, faults[i]), n.advice(confs[i].list))
		}
	}
	var g errgroup.Group
	for i := range confs {
		if n.cfg.Serially && errors.Join(faults...) != nil {
			break
		}
		if n.cfg.Serially || len(confs) == 1 {
			one(i)
			continue
		}
		g.Go(func() error { return errs.Guard("CNI ADD", func() error { one(i); return nil }) })
	}
	if err := errors.Join(g.Wait(), errors.Join(faults...)); err != nil {
		return nil, err
	}
	result, err := readResult(answers, n.cfg.Preference)
	if err != nil {
		return nil, fmt.Errorf("failed to find network info for sandbox %q: CNI ADD to network %q: %w", sandbox, confs[0].list.Name, err)
	}
	if err := n.keepResult(sandbox, func(a *added) { a.Partial, a.Result = nil, result }); err != nil {
		return nil, err
	}
	return result, nil
}

// advice says, for the end of an ADD's error, what to do about a bridge that is in the way; "" where none is.
func (n *Network) advice(list *libcni.NetworkConfigList) string {
	text := ""
	look := func() error {
		for _, p := range list.Plugins {
			if found, err := bridgeaddress.Advice(p.Bytes); err == nil && found != "" { // without an answer the plugin's own error is enough
				text = "; " + found
			}
		}
		return nil
	}
	if n.cfg.HostNetNS == "" {
		_ = look() // it returns nil
	} else if err := sysns.InNetNS(n.cfg.HostNetNS, look); err != nil {
		return ""
	}
	return text
}

// readResult takes the addresses of the pod's interface in the first network, in the preferred
// order. The result for verbose status has the interfaces, addresses and routes of all networks.
func readResult(answers []types.Result, preference Preference) (*network.Result, error) {
	result := &network.Result{}
	var all *types100.Result
	for i, answer := range answers {
		current, err := types100.NewResultFromResult(answer)
		if err != nil {
			return nil, fmt.Errorf("cannot read the plugins' result: %w", err)
		}
		if i == 0 {
			result.IPs = addressesIn(current, podLink)
			all = current
			continue
		}
		merge(all, current, linkName(i))
	}
	var err error
	if result.CNI, err = json.Marshal(all); err != nil {
		return nil, fmt.Errorf("cannot keep the plugins' result: %w", err)
	}
	if len(result.IPs) == 0 {
		return nil, fmt.Errorf("the plugins gave %s no address", podLink)
	}
	switch preference {
	case IPv4First:
		slices.SortStableFunc(result.IPs, func(a, b netip.Addr) int { return a.BitLen() - b.BitLen() })
	case IPv6First:
		slices.SortStableFunc(result.IPs, func(a, b netip.Addr) int { return b.BitLen() - a.BitLen() })
	case AsInResult:
	}
	return result, nil
}

// addressesIn are the addresses of an interface of the pod, in the plugins' order.
func addressesIn(answer *types100.Result, link string) []netip.Addr {
	var all []netip.Addr
	for _, ip := range answer.IPs {
		if i := ip.Interface; i != nil && *i >= 0 && *i < len(answer.Interfaces) {
			if in := answer.Interfaces[*i]; in.Name != link || in.Sandbox == "" {
				continue
			}
		}
		if addr, ok := netip.AddrFromSlice(ip.Address.IP); ok {
			all = append(all, addr.Unmap())
		}
	}
	return all
}

// merge adds the answer of another network to all. Addresses without an interface there are
// those of the pod's link.
func merge(all, answer *types100.Result, link string) {
	begin := len(all.Interfaces)
	all.Interfaces = append(all.Interfaces, answer.Interfaces...)
	own := slices.IndexFunc(answer.Interfaces, func(in *types100.Interface) bool { return in.Name == link && in.Sandbox != "" })
	if own < 0 {
		own = len(answer.Interfaces)
		all.Interfaces = append(all.Interfaces, &types100.Interface{Name: link})
	}
	for _, ip := range answer.IPs {
		at := own
		if i := ip.Interface; i != nil && *i >= 0 && *i < len(answer.Interfaces) {
			at = *i
		}
		added := *ip
		added.Interface = types100.Int(begin + at)
		all.IPs = append(all.IPs, &added)
	}
	all.Routes = append(all.Routes, answer.Routes...)
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
