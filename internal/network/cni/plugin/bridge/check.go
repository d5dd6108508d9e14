package bridge

import (
	"context"
	"errors"
	"fmt"

	types100 "github.com/containernetworking/cni/pkg/types/100"
	"github.com/containernetworking/plugins/pkg/ip"
	"github.com/containernetworking/plugins/pkg/netlinksafe"
	"github.com/vishvananda/netlink"

	"github.com/berthrun/berth/internal/network/cni/plugin"
	"github.com/berthrun/berth/internal/network/cni/plugin/podlink"
)

// found is a link that exists as the result of ADD has it.
type found struct{ index, peer int }

// check compares what is there with the result of ADD. Texts of errors are the reference's.
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
		return errors.New("Required prevResult missing")
	}
	c.Stage("look at the links")
	var bridgeIf, podIf types100.Interface
	for _, in := range previous.Interfaces {
		switch {
		case in.Name == n.Bridge:
			bridgeIf = *in
		case in.Name == c.IfName && in.Sandbox == c.NetNS:
			podIf = *in
		}
	}
	br, err := n.checkBridge(bridgeIf)
	if err != nil {
		return err
	}
	if podIf.Sandbox != c.NetNS {
		return fmt.Errorf("Sandbox in prevResult %s doesn't match configured netns: %s", podIf.Sandbox, c.NetNS)
	}
	var inPod found
	err = c.InNetNS(pod, func() (err error) {
		inPod, err = checkPodLink(podIf)
		return err
	})
	if err != nil {
		return err
	}
	if err := n.checkPort(previous, bridgeIf, podIf, br, inPod); err != nil {
		return err
	}
	return c.InNetNS(pod, func() error {
		if err := ip.ValidateExpectedInterfaceIPs(c.IfName, previous.IPs); err != nil {
			return err
		}
		return ip.ValidateExpectedRoute(previous.Routes)
	})
}

// linkOf finds the link of an interface, which is in a sandbox or is not.
func linkOf(in types100.Interface, inSandbox bool) (netlink.Link, error) {
	if in.Name == "" {
		return nil, errors.New("Interface name missing ")
	}
	link, err := netlinksafe.LinkByName(in.Name)
	switch {
	case err != nil:
		return nil, fmt.Errorf("Interface name %s not found", in.Name)
	case inSandbox && in.Sandbox == "":
		return nil, fmt.Errorf("Interface %s is expected to be in a sandbox", in.Name)
	case !inSandbox && in.Sandbox != "":
		return nil, fmt.Errorf("Interface %s should not be in sandbox", in.Name)
	}
	return link, nil
}

func (n *conf) checkBridge(in types100.Interface) (found, error) {
	link, err := linkOf(in, false)
	if err != nil {
		return found{}, err
	}
	if _, ok := link.(*netlink.Bridge); !ok {
		return found{}, fmt.Errorf("Interface %s does not have link type of bridge", in.Name)
	}
	if in.Mac != "" && in.Mac != link.Attrs().HardwareAddr.String() {
		return found{}, fmt.Errorf("Bridge interface %s Mac doesn't match: %s", in.Name, in.Mac)
	}
	if promiscuous := link.Attrs().Promisc != 0; promiscuous != n.PromiscMode {
		return found{}, fmt.Errorf("Bridge interface %s configured Promisc Mode %v doesn't match current state: %v ", in.Name, n.PromiscMode, promiscuous)
	}
	return found{index: link.Attrs().Index}, nil
}

func checkPodLink(in types100.Interface) (found, error) {
	link, err := linkOf(in, true)
	if err != nil {
		return found{}, err
	}
	if _, ok := link.(*netlink.Veth); !ok {
		return found{}, fmt.Errorf("Error: Container interface %s not of type veth", in.Name)
	}
	_, peer, err := ip.GetVethPeerIfindex(in.Name)
	if err != nil {
		return found{}, fmt.Errorf("Unable to obtain veth peer index for veth %s", in.Name)
	}
	if mac := link.Attrs().HardwareAddr; in.Mac != "" && in.Mac != mac.String() {
		return found{}, fmt.Errorf("Interface %s Mac %s doesn't match container Mac: %s", in.Name, in.Mac, mac)
	}
	return found{link.Attrs().Index, peer}, nil
}

// checkPort looks for the host's end of the pod's link among the interfaces of the result.
func (n *conf) checkPort(previous *types100.Result, bridgeIf, podIf types100.Interface, br, inPod found) error {
	for _, in := range previous.Interfaces {
		if in.Name == bridgeIf.Name || in.Name == podIf.Name {
			continue
		}
		link, err := linkOf(*in, false)
		if err != nil {
			return err
		}
		if _, ok := link.(*netlink.Veth); !ok {
			continue // another plugin's
		}
		_, peer, err := ip.GetVethPeerIfindex(in.Name)
		if err != nil {
			return fmt.Errorf("Unable to obtain veth peer index for veth %s", in.Name)
		}
		attrs := link.Attrs()
		if attrs.Index != inPod.peer || peer != inPod.index || attrs.MasterIndex != br.index {
			continue
		}
		if in.Mac != "" && in.Mac != attrs.HardwareAddr.String() {
			return fmt.Errorf("Interface %s Mac doesn't match: %s not found", in.Name, in.Mac)
		}
		return nil
	}
	return fmt.Errorf("CNI veth created for bridge %s was not found", n.Bridge)
}
