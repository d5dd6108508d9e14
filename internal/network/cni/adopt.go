package cni

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/containernetworking/cni/libcni"
	"github.com/containernetworking/cni/pkg/types"
	"github.com/vishvananda/netlink"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/network"
	"github.com/berthrun/berth/internal/sys/sysns"
)

// loopbackNetwork is the network of dockershim and cri-dockerd for the loopback of a pod. It
// goes with the namespace and needs no DEL.
const loopbackNetwork = "cni-loopback"

var _ network.Adopter = (*Network)(nil)

// Adopt implements network.Adopter. The former runtime's cache has the configuration, the
// arguments and the result of each ADD since libcni 0.7; without them it is the configuration
// that is in use now, as the former runtime would have done.
func (n *Network) Adopt(ctx context.Context, att *network.Attachment) (*network.Result, error) {
	var result *network.Result
	err := n.calls.Do(ctx, att.SandboxID, "adoption", func() (err error) {
		result, err = n.adopt(att)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("cannot adopt the attachment of sandbox %s to the network: %w", att.SandboxID, err)
	}
	return result, nil
}

func (n *Network) adopt(att *network.Attachment) (*network.Result, error) {
	rec, err := n.records.Get(att.SandboxID)
	if err == nil {
		return n.resultOf(rec), nil
	}
	if !errors.Is(err, errs.NotFound) {
		return nil, err
	}
	rec = &record{Attachment: *att, Former: &former{CacheDir: n.cfg.FormerCacheDir}}
	list, err := n.formerList(rec)
	if err != nil {
		return nil, err
	}
	if list == nil && att.NetNS == "" {
		n.log.Info("a pod that another runtime made has ended, and its cache has nothing of it: no CNI DEL will run for it",
			"sandbox", att.SandboxID, "pod", att.Namespace+"/"+att.Name, "cache", n.cfg.FormerCacheDir)
	}
	if list == nil && att.NetNS != "" {
		n.log.Warn("nothing says how a former runtime attached a sandbox to its network: no CNI DEL will run for it, and addresses may stay allocated",
			"sandbox", att.SandboxID, "pod", att.Namespace+"/"+att.Name, "cache", n.cfg.FormerCacheDir, "configurations", n.cfg.ConfDir)
	}
	if list == nil {
		return n.formerResult(nil, rec), nil
	}
	rec.Conf = list.Bytes
	if r, err := n.ranges.Get(nodeID); err == nil {
		rec.Ranges = r.Ranges
	}
	rec.Result = n.formerResult(list, rec)
	if err := n.ports.Take(rec.holder(), rec.sockets()); err != nil {
		n.log.Warn("a pod of a former runtime has a host port that another pod has", "sandbox", att.SandboxID, "error", err)
	}
	if err := n.records.Create(att.SandboxID, rec); err != nil {
		n.ports.Free(att.SandboxID, rec.sockets())
		return nil, err
	}
	return rec.Result, nil
}

// formerList returns the configuration with which a sandbox was attached, nil if none is known
// or if the former runtime has detached a sandbox that does not run any more. It sets the
// arguments of ADD in rec, where they are known.
func (n *Network) formerList(rec *record) (*libcni.NetworkConfigList, error) {
	current, currentErr := n.confs.current()
	cached, err := n.formerCache(rec).GetCachedAttachments(rec.Attachment.SandboxID)
	if err != nil {
		return nil, fmt.Errorf("cannot read the former runtime's cache of results: %w", err)
	}
	var found *libcni.NetworkConfigList
	for _, a := range cached {
		if a.IfName != podLink || a.Network == loopbackNetwork {
			continue
		}
		list, err := libcni.NetworkConfFromBytes(a.Config)
		if err != nil || len(list.Plugins) == 0 { // kubenet has the configuration of one plugin
			list, err = listOfOne(a.Config)
		}
		if err != nil {
			n.log.Warn("cannot read a configuration in the former runtime's cache of results", "sandbox", a.ContainerID, "network", a.Network, "error", err)
			continue
		}
		// A plugin that calls others may cache theirs in the same directory.
		if found == nil || currentErr == nil && list.Name == current[0].list.Name {
			found, rec.Former.Args, rec.Former.Capabilities = list, a.CniArgs, a.CapabilityArgs
		}
	}
	if found == nil && currentErr == nil && rec.Attachment.NetNS != "" {
		found = current[0].list
	}
	return found, nil
}

// formerResult is the result of ADD, from the cache or else from the interface itself; nil if
// neither has addresses.
func (n *Network) formerResult(list *libcni.NetworkConfigList, rec *record) *network.Result {
	if list != nil {
		rt := &libcni.RuntimeConf{ContainerID: rec.Attachment.SandboxID, IfName: podLink}
		answer, err := n.formerCache(rec).GetNetworkListCachedResult(list, rt)
		if err == nil && answer != nil {
			if result, err := readResult([]types.Result{answer}, n.cfg.Preference); err == nil {
				return result
			}
		}
	}
	result := &network.Result{}
	err := sysns.InNetNS(rec.Attachment.NetNS, func() (err error) {
		result.IPs, err = addressesOf(podLink)
		return err
	})
	if err != nil || len(result.IPs) == 0 {
		if err != nil && rec.Attachment.NetNS != "" {
			n.log.Warn("cannot read the addresses of a pod of a former runtime", "sandbox", rec.Attachment.SandboxID, "error", err)
		}
		return nil
	}
	return result
}

// Has reports whether a sandbox that is attached has an address.
func (n *Network) Has(addr netip.Addr) bool {
	return slices.ContainsFunc(n.records.All(), func(rec *record) bool {
		result := n.resultOf(rec)
		return result != nil && slices.Contains(result.IPs, addr)
	})
}

// addressesOf reads the addresses of an interface, IPv4 first.
func addressesOf(name string) ([]netip.Addr, error) {
	link, err := netlink.LinkByName(name)
	if err != nil {
		return nil, fmt.Errorf("cannot find interface %s: %w", name, err)
	}
	var all []netip.Addr
	for _, family := range []int{netlink.FAMILY_V4, netlink.FAMILY_V6} {
		addresses, err := netlink.AddrList(link, family)
		if err != nil {
			return nil, fmt.Errorf("cannot list the addresses of interface %s: %w", name, err)
		}
		for _, a := range addresses {
			if ip, ok := netip.AddrFromSlice(a.IP); ok && ip.Unmap().IsGlobalUnicast() {
				all = append(all, ip.Unmap())
			}
		}
	}
	return all, nil
}

// libOf is the libcni whose cache has the result of a sandbox's ADD.
func (n *Network) libOf(rec *record) *libcni.CNIConfig {
	if rec.Former == nil {
		return n.lib
	}
	return n.formerCache(rec)
}

func (n *Network) formerCache(rec *record) *libcni.CNIConfig {
	return libcni.NewCNIConfigWithCacheDir(n.cfg.BinDirs, rec.Former.CacheDir, n.exec)
}

// forgetFormer removes what the former runtime's cache has of the sandbox after DEL. libcni has
// removed the result of the network itself.
func (r *record) forgetFormer() error {
	if r.Former == nil {
		return nil
	}
	file := filepath.Join(r.Former.CacheDir, "results", strings.Join([]string{loopbackNetwork, r.Attachment.SandboxID, podLink}, "-"))
	if err := errs.IgnoreNotExist(os.Remove(file)); err != nil {
		return fmt.Errorf("cannot remove the cached result of a former runtime: %w", err)
	}
	return nil
}
