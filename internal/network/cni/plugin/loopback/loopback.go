// Package loopback is the CNI plugin loopback: it brings the pod's lo up.
package loopback

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"

	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"
	"github.com/containernetworking/cni/pkg/version"
	"github.com/containernetworking/plugins/pkg/netlinksafe"
	"github.com/vishvananda/netlink"

	"github.com/berthrun/berth/internal/network/cni/plugin"
)

// name is that of the interface, whatever the call says.
const name = "lo"

// New returns the plugin.
func New() *plugin.Plugin {
	return &plugin.Plugin{Type: "loopback", Versions: version.All, Add: add, Del: del, Check: check}
}

func add(_ context.Context, c *plugin.Call) (types.Result, error) {
	conf := &types.NetConf{}
	if err := json.Unmarshal(c.Config, conf); err != nil {
		return nil, fmt.Errorf("failed to parse network config: %w", err)
	}
	if conf.RawPrevResult != nil {
		if err := version.ParsePrevResult(conf); err != nil {
			return nil, fmt.Errorf("failed to parse prevResult: %w", err)
		}
		if _, err := types100.NewResultFromResult(conf.PrevResult); err != nil {
			return nil, fmt.Errorf("failed to convert result to current version: %w", err)
		}
	}
	c.Stage("lo up")
	result := &types100.Result{
		CNIVersion: conf.CNIVersion,
		Interfaces: []*types100.Interface{{Name: name, Mac: "00:00:00:00:00:00", Sandbox: c.NetNS}},
	}
	err := c.InPod(func() error {
		link, err := netlinksafe.LinkByName(name)
		if err != nil {
			return err
		}
		if err := netlink.LinkSetUp(link); err != nil {
			return err
		}
		for _, family := range []int{netlink.FAMILY_V4, netlink.FAMILY_V6} {
			addresses, err := netlinksafe.AddrList(link, family)
			if err != nil {
				return err
			}
			for i, a := range addresses {
				if !a.IP.IsLoopback() {
					return fmt.Errorf("loopback interface found with non-loopback address %q", a.IP)
				}
				if i == 0 {
					result.IPs = append(result.IPs, &types100.IPConfig{Interface: types100.Int(0), Address: *a.IPNet})
				}
			}
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	if conf.PrevResult != nil {
		return conf.PrevResult, nil
	}
	return result, nil
}

func del(_ context.Context, c *plugin.Call) error {
	if c.NetNS == "" {
		return nil
	}
	c.Stage("lo down")
	err := c.InPod(func() error {
		link, err := netlinksafe.LinkByName(name)
		if err != nil {
			return err
		}
		return netlink.LinkSetDown(link)
	})
	if plugin.IsGone(err) {
		return nil
	}
	return err
}

func check(_ context.Context, c *plugin.Call) error {
	c.Stage("look at lo")
	return c.InPod(func() error {
		link, err := netlinksafe.LinkByName(name)
		if err != nil {
			return err
		}
		if link.Attrs().Flags&net.FlagUp == 0 {
			return errors.New("loopback interface is down")
		}
		return nil
	})
}
