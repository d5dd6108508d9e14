// Package bandwidth is the CNI plugin bandwidth: token buckets on the host's end of the pod's
// link for what the pod receives, and on an ifb link for what it sends.
package bandwidth

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"net"

	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"
	"github.com/containernetworking/cni/pkg/version"
	"github.com/containernetworking/plugins/pkg/ip"
	"github.com/containernetworking/plugins/pkg/netlinksafe"
	"github.com/containernetworking/plugins/pkg/ns"
	"github.com/containernetworking/plugins/pkg/utils"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/berthrun/berth/internal/network/cni/plugin"
)

const (
	ifbPrefix = "bwp"
	ifbLength = 15
	// latency is how long a packet waits at most, in milliseconds.
	latency = 25
)

// Limits are in bits a second, and in bits. A rate needs a burst, and a burst a rate.
type Limits struct {
	IngressRate  uint64 `json:"ingressRate"`
	IngressBurst uint64 `json:"ingressBurst"`
	EgressRate   uint64 `json:"egressRate"`
	EgressBurst  uint64 `json:"egressBurst"`
}

// conf is the plugin's configuration.
type conf struct {
	types.NetConf
	RuntimeConfig struct {
		Bandwidth *Limits `json:"bandwidth"`
	} `json:"runtimeConfig"`
	*Limits

	previous *types100.Result
}

// New returns the plugin.
func New() *plugin.Plugin {
	return &plugin.Plugin{
		Type: "bandwidth", Chained: true, Versions: version.VersionsStartingFrom("0.3.0"), Add: add, Del: del, Check: check,
		Load:    plugin.Loads(load),
		Options: plugin.Options{"ingressRate": nil, "ingressBurst": nil, "egressRate": nil, "egressBurst": nil},
	}
}

func load(c *plugin.Call) (*conf, error) {
	n := &conf{}
	if err := json.Unmarshal(c.Config, n); err != nil {
		return nil, fmt.Errorf("failed to parse network configuration: %w", err)
	}
	if n.Limits == nil {
		n.Limits = n.RuntimeConfig.Bandwidth // the pod's count only without the configuration's
	}
	if n.Limits == nil {
		n.Limits = &Limits{}
	}
	for _, pair := range [][2]uint64{{n.IngressRate, n.IngressBurst}, {n.EgressRate, n.EgressBurst}} {
		rate, burst := pair[0], pair[1]
		switch {
		case burst == 0 && rate != 0:
			return nil, errors.New("if rate is set, burst must also be set")
		case rate == 0 && burst != 0:
			return nil, errors.New("if burst is set, rate must also be set")
		case burst/8 >= math.MaxUint32:
			return nil, errors.New("burst cannot be more than 4GB")
		}
	}
	var err error
	if n.previous, err = plugin.ChainedPrevious(&n.NetConf); err != nil {
		return nil, err
	}
	return n, nil
}

// ifbName is the name of the link for what a pod sends.
func ifbName(network, container string) string {
	return utils.MustFormatHashWithPrefix(ifbLength, ifbPrefix, network+container)
}

// hostLink finds the host's end of the pod's link, which the result of the plugins before has.
func hostLink(c *plugin.Call, previous *types100.Result) (netlink.Link, error) {
	pod, err := ns.GetNS(c.NetNS)
	if err != nil {
		return nil, fmt.Errorf("failed to open netns %q: %w", c.NetNS, err)
	}
	defer pod.Close()
	if len(previous.Interfaces) == 0 {
		return nil, errors.New("no interfaces provided")
	}
	peer := 0
	err = c.InNetNS(pod, func() (err error) {
		_, peer, err = ip.GetVethPeerIfindex(c.IfName)
		return err
	})
	if peer <= 0 {
		return nil, fmt.Errorf("container interface %s has no veth peer: %w", c.IfName, err)
	}
	link, err := netlink.LinkByIndex(peer)
	if err != nil {
		return nil, fmt.Errorf("veth peer with index %d is not in host ns", peer)
	}
	for _, in := range previous.Interfaces {
		if in.Sandbox == "" && in.Name == link.Attrs().Name {
			return link, nil
		}
	}
	return nil, errors.New("no veth peer of container interface found in host ns")
}

func add(_ context.Context, c *plugin.Call) (types.Result, error) {
	n, err := load(c)
	if err != nil {
		return nil, err
	}
	switch {
	case *n.Limits == Limits{} && n.PrevResult != nil:
		return n.PrevResult, nil
	case n.PrevResult == nil:
		return nil, errors.New("must be called as chained plugin")
	}
	c.Stage("host's end of the link")
	host, err := hostLink(c, n.previous)
	if err != nil {
		return nil, err
	}
	if n.IngressRate > 0 {
		c.Stage("limit of what the pod receives")
		if err := addBucket(n.IngressRate, n.IngressBurst, host.Attrs().Index); err != nil {
			return nil, err
		}
	}
	if n.EgressRate == 0 {
		return n.previous, nil
	}
	c.Stage("limit of what the pod sends")
	name := ifbName(n.Name, c.ContainerID)
	// A queue length other than 0 has the kernel make several queues.
	if err := netlink.LinkAdd(&netlink.Ifb{LinkAttrs: netlink.LinkAttrs{Name: name, Flags: net.FlagUp, MTU: host.Attrs().MTU}}); err != nil {
		return nil, fmt.Errorf("adding link: %w", err)
	}
	ifb, err := netlinksafe.LinkByName(name)
	if err != nil {
		return nil, err
	}
	n.previous.Interfaces = append(n.previous.Interfaces, &types100.Interface{Name: name, Mac: ifb.Attrs().HardwareAddr.String()})
	if err := redirect(host.Attrs().Index, ifb.Attrs().Index); err != nil {
		return nil, err
	}
	if err := addBucket(n.EgressRate, n.EgressBurst, ifb.Attrs().Index); err != nil {
		return nil, fmt.Errorf("create ifb qdisc: %w", err)
	}
	return n.previous, nil
}

// redirect has all that a link receives leave by another.
func redirect(from, to int) error {
	ingress := &netlink.Ingress{QdiscAttrs: netlink.QdiscAttrs{LinkIndex: from, Handle: netlink.MakeHandle(0xffff, 0), Parent: netlink.HANDLE_INGRESS}}
	if err := netlink.QdiscAdd(ingress); err != nil {
		return fmt.Errorf("create ingress qdisc: %w", err)
	}
	filter := &netlink.U32{
		FilterAttrs: netlink.FilterAttrs{LinkIndex: from, Parent: ingress.Handle, Priority: 1, Protocol: unix.ETH_P_ALL},
		ClassId:     netlink.MakeHandle(1, 1), RedirIndex: to,
		Actions: []netlink.Action{&netlink.MirredAction{MirredAction: netlink.TCA_EGRESS_REDIR, Ifindex: to}},
	}
	if err := netlink.FilterAdd(filter); err != nil {
		return fmt.Errorf("add filter: %w", err)
	}
	return nil
}

// bucket is a token bucket for a rate and a burst in bits, as the kernel counts them.
func bucket(rate, burst uint64, link int) *netlink.Tbf {
	bytes, burstBytes := rate/8, uint32(burst/8)
	microseconds := uint32(float64(burstBytes) * netlink.TIME_UNITS_PER_SEC / float64(bytes))
	return &netlink.Tbf{
		QdiscAttrs: netlink.QdiscAttrs{LinkIndex: link, Handle: netlink.MakeHandle(1, 0), Parent: netlink.HANDLE_ROOT},
		Rate:       bytes,
		Buffer:     uint32(float64(microseconds) * netlink.TickInUsec()),
		Limit:      uint32(float64(bytes)*latency/1000) + burstBytes,
	}
}

func addBucket(rate, burst uint64, link int) error {
	if err := netlink.QdiscAdd(bucket(rate, burst, link)); err != nil {
		return fmt.Errorf("create qdisc: %w", err)
	}
	return nil
}

func del(_ context.Context, c *plugin.Call) error {
	n, err := load(c)
	if err != nil {
		return err
	}
	c.Stage("delete the ifb link")
	if _, err := ip.DelLinkByNameAddr(ifbName(n.Name, c.ContainerID)); err != nil && !errors.Is(err, ip.ErrLinkNotFound) {
		return err
	}
	return nil
}

func check(_ context.Context, c *plugin.Call) error {
	n, err := load(c)
	if err != nil {
		return err
	}
	if n.PrevResult == nil {
		return errors.New("must be called as a chained plugin")
	}
	c.Stage("look at the queues")
	host, err := hostLink(c, n.previous)
	if err != nil {
		return err
	}
	if n.IngressRate > 0 {
		if err := checkBucket(host, bucket(n.IngressRate, n.IngressBurst, 0)); err != nil {
			return err
		}
	}
	if n.EgressRate == 0 {
		return nil
	}
	ifb, err := netlinksafe.LinkByName(ifbName(n.Name, c.ContainerID))
	if err != nil {
		return fmt.Errorf("get ifb device: %w", err)
	}
	return checkBucket(ifb, bucket(n.EgressRate, n.EgressBurst, 0))
}

// checkBucket compares the token buckets of a link, up to the first queue of another kind.
func checkBucket(link netlink.Link, want *netlink.Tbf) error {
	queues, err := netlinksafe.QdiscList(link)
	if err != nil {
		return err
	}
	found := false
	for _, q := range queues {
		if _, fifo := q.(*netlink.PfifoFast); fifo {
			continue // some kernels report it, and some do not
		}
		found = true
		have, ok := q.(*netlink.Tbf)
		if !ok {
			return nil
		}
		switch {
		case have.Rate != want.Rate:
			return errors.New("Rate doesn't match")
		case have.Limit != want.Limit:
			return errors.New("Limit doesn't match")
		case have.Buffer != want.Buffer:
			return errors.New("Buffer doesn't match")
		}
	}
	if !found {
		return errors.New("Failed to find qdisc")
	}
	return nil
}
