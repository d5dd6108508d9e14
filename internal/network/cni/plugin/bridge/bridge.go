// Package bridge is the CNI plugin bridge: a veth pair whose host end is a port of a bridge.
package bridge

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"time"

	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"
	"github.com/containernetworking/cni/pkg/version"
	spoofcheck "github.com/containernetworking/plugins/pkg/link"
	"github.com/containernetworking/plugins/pkg/netlinksafe"
	"github.com/containernetworking/plugins/pkg/ns"
	"github.com/vishvananda/netlink"

	"github.com/berthrun/berth/internal/network/cni/plugin"
	"github.com/berthrun/berth/internal/network/cni/plugin/podlink"
)

const (
	defaultBridge = "cni0"
	maxVlan       = 4094
	// portTimeout is how long the port of the bridge may take to come up.
	portTimeout = 2550 * time.Millisecond
	// portPause is the first pause between two looks at the port; each one doubles, up to portPauseMost.
	portPause     = time.Millisecond
	portPauseMost = 50 * time.Millisecond
)

// conf is the plugin's configuration.
type conf struct {
	types.NetConf
	Bridge              string   `json:"bridge"`
	IsGateway           bool     `json:"isGateway"`
	IsDefaultGateway    bool     `json:"isDefaultGateway"`
	ForceAddress        bool     `json:"forceAddress"`
	IPMasq              bool     `json:"ipMasq"`
	IPMasqBackend       *string  `json:"ipMasqBackend"`
	MTU                 int      `json:"mtu"`
	HairpinMode         bool     `json:"hairpinMode"`
	PromiscMode         bool     `json:"promiscMode"`
	Vlan                int      `json:"vlan"`
	VlanTrunk           []*trunk `json:"vlanTrunk"`
	PreserveDefaultVlan bool     `json:"preserveDefaultVlan"`
	MacSpoofCheck       bool     `json:"macspoofchk"`
	EnableDAD           bool     `json:"enabledad"`
	DisableInterface    bool     `json:"disableContainerInterface"`
	PortIsolation       bool     `json:"portIsolation"`
	Args                struct {
		CNI withMAC `json:"cni"`
	} `json:"args"`
	RuntimeConfig withMAC `json:"runtimeConfig"`

	mac   string
	vlans []int
}

type withMAC struct {
	MAC string `json:"mac"`
}

// trunk is a VLAN of a trunk, or a range of them.
type trunk struct {
	MinID *int `json:"minID"`
	MaxID *int `json:"maxID"`
	ID    *int `json:"id"`
}

// New returns the plugin.
func New() *plugin.Plugin {
	return &plugin.Plugin{
		Type: "bridge", Versions: version.All, Load: plugin.Loads(load), Add: add, Del: del, Check: check, Status: status,
		Options: plugin.Options{
			"bridge": nil, "isGateway": nil, "isDefaultGateway": nil, "forceAddress": nil, "ipMasq": nil, "ipMasqBackend": nil,
			"mtu": nil, "hairpinMode": nil, "promiscMode": nil, "vlan": nil, "preserveDefaultVlan": nil, "macspoofchk": nil,
			"enabledad": nil, "disableContainerInterface": nil, "portIsolation": nil,
			"vlanTrunk": {"minID": nil, "maxID": nil, "id": nil},
		},
	}
}

// load reads the configuration.
func load(c *plugin.Call) (*conf, error) {
	n := &conf{Bridge: defaultBridge}
	if err := json.Unmarshal(c.Config, n); err != nil {
		return nil, fmt.Errorf("failed to load netconf: %w", err)
	}
	if n.Vlan < 0 || n.Vlan > maxVlan {
		return nil, fmt.Errorf("invalid VLAN ID %d (must be between 0 and %d)", n.Vlan, maxVlan)
	}
	var err error
	if n.vlans, err = vlansOf(n.VlanTrunk); err != nil {
		return nil, err
	}
	if c.Args != "" {
		var args struct {
			types.CommonArgs
			MAC types.UnmarshallableString
		}
		if err := types.LoadArgs(c.Args, &args); err != nil {
			return nil, err
		}
		n.mac = string(args.MAC)
	}
	for _, mac := range []string{n.Args.CNI.MAC, n.RuntimeConfig.MAC} {
		if mac != "" {
			n.mac = mac
		}
	}
	return n, nil
}

// vlansOf returns the VLANs of a trunk, each once, in order.
func vlansOf(items []*trunk) ([]int, error) {
	valid := func(id int) bool { return id > 0 && id <= maxVlan }
	var all []int
	for _, t := range items {
		switch {
		case t.MinID != nil && t.MaxID != nil && !valid(*t.MinID):
			return nil, errors.New("incorrect trunk minID parameter")
		case t.MinID != nil && t.MaxID != nil && !valid(*t.MaxID):
			return nil, errors.New("incorrect trunk maxID parameter")
		case t.MinID != nil && t.MaxID != nil && *t.MaxID < *t.MinID:
			return nil, errors.New("minID is greater than maxID in trunk parameter")
		case t.MinID == nil && t.MaxID != nil:
			return nil, errors.New("minID and maxID should be configured simultaneously, minID is missing")
		case t.MinID != nil && t.MaxID == nil:
			return nil, errors.New("minID and maxID should be configured simultaneously, maxID is missing")
		case t.ID != nil && !valid(*t.ID):
			return nil, errors.New("incorrect trunk id parameter")
		}
		if t.MinID != nil {
			for id := *t.MinID; id <= *t.MaxID; id++ {
				all = append(all, id)
			}
		}
		if t.ID != nil {
			all = append(all, *t.ID)
		}
	}
	slices.Sort(all)
	return slices.Compact(all), nil
}

func add(ctx context.Context, c *plugin.Call) (made types.Result, err error) {
	done := false // else the deferred calls undo
	n, err := load(c)
	if err != nil {
		return nil, err
	}
	if n.IPAM.Type != "" && n.DisableInterface {
		return nil, errors.New("cannot use IPAM when DisableContainerInterface flag is set")
	}
	n.IsGateway = n.IsGateway || n.IsDefaultGateway
	if n.HairpinMode && n.PromiscMode {
		return nil, errors.New("cannot set hairpin mode and promiscuous mode at the same time")
	}
	br, err := ensureBridge(c, n)
	if err != nil {
		return nil, fmt.Errorf("failed to create bridge %q: %w", n.Bridge, err)
	}
	pod, err := ns.GetNS(c.NetNS)
	if err != nil {
		return nil, fmt.Errorf("failed to open netns %q: %w", c.NetNS, err)
	}
	defer pod.Close()
	var addresses *podlink.Allocation // nil without an IPAM plugin
	if n.IPAM.Type != "" {
		addresses = podlink.BeginAllocation(ctx, c, n.IPAM.Type)
		defer func() {
			if !done {
				addresses.Undo(ctx, err)
			}
		}()
	}
	pair, err := newPort(c, pod, br, port{
		name: c.IfName, mtu: n.MTU, mac: n.mac, hairpin: n.HairpinMode, isolated: n.PortIsolation,
		vlan: n.Vlan, trunk: n.vlans, keepDefaultVlan: n.PreserveDefaultVlan,
	})
	if err != nil {
		return nil, err
	}
	defer pair.Close()
	host, inPod := pair.Interfaces(c.NetNS)
	result := &types100.Result{
		CNIVersion: types100.ImplementedSpecVersion,
		Interfaces: []*types100.Interface{{Name: br.Name, Mac: br.HardwareAddr.String()}, host, inPod},
	}
	if n.MacSpoofCheck {
		c.Stage("macspoofchk")
		checker := spoofcheck.NewSpoofChecker(host.Name, inPod.Mac, ruleID(c))
		if err := checker.Setup(); err != nil {
			return nil, err
		}
		defer func() {
			if !done {
				_ = checker.Teardown() // DEL repeats it
			}
		}()
	}
	switch {
	case addresses != nil:
		given, err := addresses.Result(ctx)
		if err != nil {
			return nil, err
		}
		if err := addAddresses(ctx, c, n, onBridge{br, pod, pair}, given, result); err != nil {
			return nil, err
		}
	case !n.DisableInterface:
		if err := podUp(c, pod); err != nil {
			return nil, err
		}
	}
	if err := finish(ctx, c, n, result); err != nil {
		return nil, err
	}
	podlink.OwnDNS(result, n.DNS)
	done = true
	return result, nil
}

// onBridge is a pod's link to a bridge.
type onBridge struct {
	bridge *netlink.Bridge
	pod    ns.NetNS
	pair   *podlink.Pair
}

// addAddresses gives the pod the addresses of the IPAM plugin, and makes the bridge a gateway if
// it shall be one.
func addAddresses(ctx context.Context, c *plugin.Call, n *conf, on onBridge, given, result *types100.Result) error {
	result.IPs, result.Routes, result.DNS = given.IPs, given.Routes, given.DNS
	if len(result.IPs) == 0 {
		return errors.New("IPAM plugin returned missing IP config")
	}
	gateways, err := n.gateways(result)
	if err != nil {
		return err
	}
	c.Stage("addresses of the pod")
	err = c.InNetNS(on.pod, func() error {
		accept := "0"
		if n.EnableDAD {
			accept = "1"
			_ = plugin.WriteSysctl(fmt.Sprintf("net/ipv6/conf/%s/enhanced_dad", c.IfName), "1")
		}
		// A kernel without one of the families does not have these.
		_ = plugin.WriteSysctl(fmt.Sprintf("net/ipv6/conf/%s/accept_dad", c.IfName), accept)
		_ = plugin.WriteSysctl(fmt.Sprintf("net/ipv4/conf/%s/arp_notify", c.IfName), "1")
		return on.pair.Configure(result)
	})
	if err != nil {
		return err
	}
	if n.IsGateway {
		if err := n.beGateway(c, on.bridge, gateways, result); err != nil {
			return err
		}
	}
	if n.IPMasq {
		return podlink.Masquerade(ctx, c, n.IPMasqBackend, n.Name, result.IPs)
	}
	return nil
}

// podUp brings the pod's link up where no IPAM plugin has it do so.
func podUp(c *plugin.Call, pod ns.NetNS) error {
	c.Stage("pod's link up")
	return c.InNetNS(pod, func() error {
		link, err := netlinksafe.LinkByName(c.IfName)
		if err != nil {
			return fmt.Errorf("failed to retrieve link: %w", err)
		}
		if err := netlink.LinkSetUp(link); err != nil {
			return fmt.Errorf("failed to set %q up: %w", c.IfName, err)
		}
		return nil
	})
}

// finish waits for the port, and reads the MACs, which may have changed, again.
func finish(ctx context.Context, c *plugin.Call, n *conf, result *types100.Result) error {
	c.Stage("port of the bridge up")
	host := result.Interfaces[1]
	link, err := c.Links().LinkByName(host.Name)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, portTimeout)
	defer cancel()
	for pause := portPause; !n.DisableInterface && link.Attrs().OperState != netlink.OperUp; pause = min(2*pause, portPauseMost) {
		select {
		case <-ctx.Done():
			return fmt.Errorf("bridge port in error state: %s", link.Attrs().OperState)
		case <-time.After(pause):
		}
		if link, err = c.Links().LinkByName(host.Name); err != nil {
			return err
		}
	}
	host.Mac = link.Attrs().HardwareAddr.String()
	br, err := bridgeByName(c, n.Bridge)
	if err != nil {
		return err
	}
	result.Interfaces[0].Mac = br.HardwareAddr.String()
	return nil
}

func del(ctx context.Context, c *plugin.Call) error {
	n, err := load(c)
	if err != nil {
		return err
	}
	gone := c.NetNS == ""
	if !gone {
		if gone, err = podlink.Delete(c); err != nil {
			return err
		}
	}
	if n.MacSpoofCheck && !gone {
		c.Stage("macspoofchk")
		if err := spoofcheck.NewSpoofChecker("", "", ruleID(c)).Teardown(); err != nil {
			fmt.Fprintf(os.Stderr, "%v", err) // as the reference: nothing depends on the rules of a link that is gone
		}
	}
	if n.IPAM.Type == "" {
		return nil
	}
	if n.IPMasq {
		if err := podlink.RemoveMasquerade(ctx, c, n.Name); err != nil {
			return err
		}
	}
	// The address is released last, other than by the reference: until all that refers to it is gone, no other pod may get it.
	c.Stage("DEL of the IPAM plugin " + n.IPAM.Type)
	return c.Delegate(ctx, "DEL", n.IPAM.Type)
}

func status(ctx context.Context, c *plugin.Call) error {
	var n conf
	if err := json.Unmarshal(c.Config, &n); err != nil {
		return fmt.Errorf("failed to load netconf: %w", err)
	}
	if n.IPAM.Type == "" {
		return nil
	}
	c.Stage("STATUS of the IPAM plugin " + n.IPAM.Type)
	return c.Delegate(ctx, "STATUS", n.IPAM.Type)
}

// ruleID names the rules of macspoofchk.
func ruleID(c *plugin.Call) string { return c.ContainerID + "-" + c.IfName }

// subnet of a gateway.
func networkOf(address net.IPNet) net.IP { return address.IP.Mask(address.Mask) }
