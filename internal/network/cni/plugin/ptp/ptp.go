// Package ptp is the CNI plugin ptp: a veth pair between the pod and the host, which routes.
package ptp

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"

	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"
	"github.com/containernetworking/cni/pkg/version"
	"github.com/containernetworking/plugins/pkg/ip"
	"github.com/containernetworking/plugins/pkg/netlinksafe"
	"github.com/containernetworking/plugins/pkg/ns"
	"github.com/vishvananda/netlink"

	"github.com/berthrun/berth/internal/network/cni/plugin"
	"github.com/berthrun/berth/internal/network/cni/plugin/podlink"
)

// conf is the plugin's configuration.
type conf struct {
	types.NetConf
	IPMasq        bool    `json:"ipMasq"`
	IPMasqBackend *string `json:"ipMasqBackend"`
	MTU           int     `json:"mtu"`
}

// New returns the plugin.
func New() *plugin.Plugin {
	return &plugin.Plugin{
		Type: "ptp", Versions: version.All, Load: refuse, Add: add, Del: del, Check: check, Status: status,
		Options: plugin.Options{"ipMasq": nil, "ipMasqBackend": nil, "mtu": nil},
	}
}

// refuse is plugin.Plugin's Load.
func refuse(c *plugin.Call) error {
	n, err := load(c)
	if err == nil && n.IPAM.Type == "" {
		err = errors.New("ipam.type is missing: the plugin needs an IPAM plugin")
	}
	return err
}

func load(c *plugin.Call) (*conf, error) {
	n := &conf{}
	if err := json.Unmarshal(c.Config, n); err != nil {
		return nil, fmt.Errorf("failed to load netconf: %w", err)
	}
	return n, nil
}

func add(ctx context.Context, c *plugin.Call) (types.Result, error) {
	done := false // else the deferred call undoes
	n, err := load(c)
	if err != nil {
		return nil, err
	}
	result, err := podlink.Allocate(ctx, c, n.IPAM.Type)
	if err != nil {
		return nil, err
	}
	defer func() {
		if !done {
			podlink.Release(ctx, c, n.IPAM.Type)
		}
	}()
	if len(result.IPs) == 0 {
		return nil, errors.New("IPAM plugin returned missing IP config")
	}
	c.Stage("forwarding")
	if err := ip.EnableForward(result.IPs); err != nil {
		return nil, fmt.Errorf("Could not enable IP forwarding: %w", err)
	}
	pod, err := ns.GetNS(c.NetNS)
	if err != nil {
		return nil, fmt.Errorf("failed to open netns %q: %w", c.NetNS, err)
	}
	defer pod.Close()
	pair, err := podlink.NewPair(c, pod, c.IfName, n.MTU, "")
	if err != nil {
		return nil, err
	}
	defer pair.Close()
	host, inPod := pair.Interfaces(c.NetNS)
	result.Interfaces = []*types100.Interface{host, inPod}
	for _, address := range result.IPs {
		address.Interface = types100.Int(1)
	}
	c.Stage("addresses of the pod")
	if err := c.InNetNS(pod, func() error { return configurePod(pair, result) }); err != nil {
		return nil, err
	}
	c.Stage("routes of the host")
	if err := configureHost(pair.Host, result.IPs); err != nil {
		return nil, err
	}
	if n.IPMasq {
		if err := podlink.Masquerade(ctx, c, n.IPMasqBackend, n.Name, result.IPs); err != nil {
			return nil, err
		}
	}
	podlink.OwnDNS(result, n.DNS)
	done = true
	return result, nil
}

// alone is the subnet of an address alone, in the family of another, which IPAM has given.
func alone(address, given net.IP) *net.IPNet {
	bits := 8 * net.IPv6len
	if given.To4() != nil {
		bits = 8 * net.IPv4len
	}
	return &net.IPNet{IP: address, Mask: net.CIDRMask(bits, bits)}
}

// configurePod gives the pod its addresses. All other addresses of the subnet are reached by the
// gateway: they are not on the link.
func configurePod(pair *podlink.Pair, result *types100.Result) error {
	if err := pair.Configure(result); err != nil {
		return err
	}
	index := pair.Pod.Attrs().Index
	for _, address := range result.IPs {
		subnet := &net.IPNet{IP: address.Address.IP.Mask(address.Address.Mask), Mask: address.Address.Mask}
		onLink := netlink.Route{LinkIndex: index, Dst: subnet, Scope: netlink.SCOPE_NOWHERE}
		if err := netlink.RouteDel(&onLink); err != nil {
			return fmt.Errorf("failed to delete route %v: %w", onLink, err)
		}
		for _, r := range []netlink.Route{
			{LinkIndex: index, Dst: alone(address.Gateway, address.Address.IP), Scope: netlink.SCOPE_LINK, Src: address.Address.IP},
			{LinkIndex: index, Dst: subnet, Scope: netlink.SCOPE_UNIVERSE, Gw: address.Gateway, Src: address.Address.IP},
		} {
			if err := netlink.RouteAdd(&r); err != nil {
				return fmt.Errorf("failed to add route %v: %w", r, err)
			}
		}
	}
	return nil
}

// configureHost gives the host's end the gateways' addresses, and routes to the pod's.
func configureHost(link netlink.Link, addresses []*types100.IPConfig) error {
	for _, address := range addresses {
		gateway := alone(address.Gateway, address.Address.IP)
		if err := netlink.AddrAdd(link, &netlink.Addr{IPNet: gateway}); err != nil {
			return fmt.Errorf("failed to add IP addr (%#v) to veth: %w", gateway, err)
		}
		if err := ip.AddHostRoute(alone(address.Address.IP, address.Address.IP), nil, link); err != nil && !errors.Is(err, os.ErrExist) {
			return fmt.Errorf("failed to add route on host: %w", err)
		}
	}
	return nil
}

func del(ctx context.Context, c *plugin.Call) error {
	n, err := load(c)
	if err != nil {
		return err
	}
	// The address is released last, other than by the reference: until all that refers to it is gone, no other pod may get it.
	if c.NetNS != "" {
		if _, err := podlink.Delete(c); err != nil {
			return err
		}
	}
	if n.IPMasq {
		if err := podlink.RemoveMasquerade(ctx, c, n.Name); err != nil {
			return err
		}
	}
	c.Stage("DEL of the IPAM plugin " + n.IPAM.Type)
	return c.Delegate(ctx, "DEL", n.IPAM.Type)
}

func check(ctx context.Context, c *plugin.Call) error {
	n, err := load(c)
	if err != nil {
		return err
	}
	pod, previous, err := podlink.BeginCheck(ctx, c, &n.NetConf, n.IPAM.Type)
	if err != nil {
		return err
	}
	defer pod.Close()
	if previous == nil {
		return errors.New("ptp: Required prevResult missing")
	}
	var own types100.Interface
	for _, in := range previous.Interfaces {
		if in.Name == c.IfName && in.Sandbox == c.NetNS {
			own = *in
		}
	}
	if own.Sandbox != c.NetNS {
		return fmt.Errorf("Sandbox in prevResult %s doesn't match configured netns: %s", own.Sandbox, c.NetNS)
	}
	c.Stage("look at the pod's link")
	return c.InNetNS(pod, func() error {
		if err := checkLink(own); err != nil {
			return err
		}
		if err := ip.ValidateExpectedInterfaceIPs(c.IfName, previous.IPs); err != nil {
			return err
		}
		return ip.ValidateExpectedRoute(previous.Routes)
	})
}

func checkLink(in types100.Interface) error {
	if in.Name == "" {
		return fmt.Errorf("Container interface name missing in prevResult: %v", in.Name)
	}
	link, err := netlinksafe.LinkByName(in.Name)
	if err != nil {
		return fmt.Errorf("ptp: Container Interface name in prevResult: %s not found", in.Name)
	}
	if in.Sandbox == "" {
		return fmt.Errorf("ptp: Error: Container interface %s should not be in host namespace", in.Name)
	}
	if _, ok := link.(*netlink.Veth); !ok {
		return fmt.Errorf("Error: Container interface %s not of type veth/p2p", in.Name)
	}
	if mac := link.Attrs().HardwareAddr; in.Mac != "" && in.Mac != mac.String() {
		return fmt.Errorf("ptp: Interface %s Mac %s doesn't match container Mac: %s", in.Name, in.Mac, mac)
	}
	return nil
}

func status(ctx context.Context, c *plugin.Call) error {
	n, err := load(c)
	if err != nil {
		return err
	}
	c.Stage("STATUS of the IPAM plugin " + n.IPAM.Type)
	return c.Delegate(ctx, "STATUS", n.IPAM.Type)
}
