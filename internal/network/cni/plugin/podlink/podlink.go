// Package podlink has what the CNI plugins share that give a pod its link: the veth pair, the
// delegation to IPAM, and masquerade.
package podlink

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"os"
	"time"

	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"
	"github.com/containernetworking/plugins/pkg/ip"
	"github.com/containernetworking/plugins/pkg/netlinksafe"
	"github.com/containernetworking/plugins/pkg/ns"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/berthrun/berth/internal/network/cni/plugin"
)

const (
	// namesTried is how many names of the host's end are tried.
	namesTried = 10
	// releaseTimeout bounds the DEL of the IPAM plugin that undoes an ADD.
	releaseTimeout = 30 * time.Second
)

// Pair is a veth pair. Host is up and in the host's network namespace.
type Pair struct {
	Pod, Host netlink.Link
	links     netlinksafe.Handle // a socket for requests about links of the pod
}

// Close closes what the pair has open. Both links stay.
func (p *Pair) Close() { p.links.Close() }

// Interfaces describes the pair for a result, with the path of the pod's namespace.
func (p *Pair) Interfaces(sandbox string) (host, pod *types100.Interface) {
	host = &types100.Interface{Name: p.Host.Attrs().Name, Mac: p.Host.Attrs().HardwareAddr.String()}
	pod = &types100.Interface{Name: p.Pod.Attrs().Name, Mac: p.Pod.Attrs().HardwareAddr.String(), Sandbox: sandbox}
	return host, pod
}

// NewPair makes a veth pair, whose end name is in the namespace pod. The host's end has a random
// name. An empty mac has the kernel choose. The caller closes the pair.
func NewPair(c *plugin.Call, pod ns.NetNS, name string, mtu int, mac string) (_ *Pair, err error) {
	c.Stage("veth pair")
	pair := &Pair{}
	defer func() {
		if err != nil {
			pair.Close()
		}
	}()
	var peer string
	if err := c.InNetNS(pod, func() (err error) {
		if pair.links, err = netlinksafe.NewHandle(unix.NETLINK_ROUTE); err != nil {
			return fmt.Errorf("failed to make veth pair: %w", err)
		}
		peer, pair.Pod, err = addPair(pair.links, c.Home(), name, mtu, mac)
		return err
	}); err != nil {
		return nil, err
	}
	if pair.Host, err = c.Links().LinkByName(peer); err != nil {
		return nil, fmt.Errorf("failed to lookup %q in %q: %w", peer, c.Home().Name(), err)
	}
	if err := c.Links().LinkSetUp(pair.Host); err != nil {
		return nil, fmt.Errorf("failed to set %q up: %w", peer, err)
	}
	_ = plugin.WriteSysctl(fmt.Sprintf("net/ipv6/conf/%s/accept_ra", peer), "0") // a host without IPv6 does not have it
	return pair, nil
}

// addPair makes the pair from within the pod's namespace, where links has been opened.
func addPair(links netlinksafe.Handle, host *os.File, name string, mtu int, mac string) (peer string, link netlink.Link, err error) {
	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.MTU = name, mtu
	if mac != "" {
		if attrs.HardwareAddr, err = net.ParseMAC(mac); err != nil {
			return "", nil, fmt.Errorf("failed to make veth pair: %w", err)
		}
	}
	for range namesTried {
		peer = hostName()
		err := links.LinkAdd(&netlink.Veth{LinkAttrs: attrs, PeerName: peer, PeerNamespace: netlink.NsFd(int(host.Fd()))})
		if errors.Is(err, os.ErrExist) {
			if _, own := links.LinkByName(name); own == nil {
				return "", nil, fmt.Errorf("container veth name (%q) peer provided (%q) already exists", name, peer)
			}
			continue // the host's name is taken
		}
		if err != nil {
			return "", nil, fmt.Errorf("failed to make veth pair: %w", err)
		}
		if link, err = links.LinkByName(name); err != nil {
			return "", nil, fmt.Errorf("failed to make veth pair: %w", err)
		}
		return peer, link, nil
	}
	return "", nil, errors.New("failed to find a unique veth name")
}

// hostName is a name for the host's end, in the form that NetworkManager leaves alone.
func hostName() string {
	var random [4]byte
	_, _ = rand.Read(random[:]) // it cannot fail
	return fmt.Sprintf("veth%x", random)
}

// Delete removes the pod's link. Nothing, without an error, for a link or a namespace that does not exist; gone is for
// the namespace.
func Delete(c *plugin.Call) (gone bool, err error) {
	c.Stage("delete the link")
	err = c.InPod(func() error {
		err := ip.DelLinkByName(c.IfName)
		if errors.Is(err, ip.ErrLinkNotFound) {
			return nil
		}
		return err
	})
	if plugin.IsGone(err) {
		return true, nil
	}
	return false, err
}

// Allocate runs ADD of the IPAM plugin.
func Allocate(ctx context.Context, c *plugin.Call, ipam string) (*types100.Result, error) {
	c.Stage(stageOf(ipam))
	return c.DelegateAdd(ctx, ipam)
}

func stageOf(ipam string) string { return "ADD of the IPAM plugin " + ipam }

// Allocation is an ADD of the IPAM plugin.
type Allocation struct {
	c    *plugin.Call
	ipam string
	// wait returns what the ADD has returned. It is nil before the ADD has begun.
	wait func() (*types100.Result, error)
}

// BeginAllocation begins ADD of the IPAM plugin while the caller makes links, where that plugin works with files alone. Any
// other one may need the pod's link, and begins in Result. So a link that cannot be made costs an address for a moment, unlike
// with the reference, which asks for the address afterwards. The caller calls Undo if it fails.
func BeginAllocation(ctx context.Context, c *plugin.Call, ipam string) *Allocation {
	return &Allocation{c: c, ipam: ipam, wait: c.AddBeside(ctx, ipam)}
}

// Result returns what the ADD has returned.
func (a *Allocation) Result(ctx context.Context) (*types100.Result, error) {
	if a.wait == nil {
		result, err := Allocate(ctx, a.c, a.ipam)
		a.wait = func() (*types100.Result, error) { return result, err }
		return result, err
	}
	a.c.Stage(stageOf(a.ipam))
	return a.wait()
}

// Undo releases what the ADD has allocated, if it has begun. cause is why.
func (a *Allocation) Undo(ctx context.Context, cause error) {
	if a.wait == nil {
		return
	}
	a.c.Stage(fmt.Sprintf("release the address after: %v", cause))
	if _, err := a.wait(); err == nil {
		Release(ctx, a.c, a.ipam)
	}
}

// Release runs DEL of the IPAM plugin after an ADD that failed, also past the ADD's deadline. A program that does not
// end is killed at a deadline of its own, and a plugin in process runs on: the next DEL of the pod waits for this call.
func Release(ctx context.Context, c *plugin.Call, ipam string) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), releaseTimeout)
	defer cancel()
	_ = c.Delegate(ctx, "DEL", ipam) // the DEL that follows a failed ADD repeats it
}

// BeginCheck is what each CHECK begins with: the pod's namespace, which the caller closes, CHECK of the
// IPAM plugin, and the result of ADD, nil for none.
func BeginCheck(ctx context.Context, c *plugin.Call, conf *types.NetConf, ipam string) (pod ns.NetNS, previous *types100.Result, err error) {
	if pod, err = ns.GetNS(c.NetNS); err != nil {
		return nil, nil, fmt.Errorf("failed to open netns %q: %w", c.NetNS, err)
	}
	c.Stage("CHECK of the IPAM plugin " + ipam)
	if err = c.Delegate(ctx, "CHECK", ipam); err == nil {
		previous, err = plugin.Previous(conf)
	}
	if err != nil {
		return nil, nil, errors.Join(err, pod.Close())
	}
	return pod, previous, nil
}

// OwnDNS replaces the DNS settings of a result if the configuration has some.
func OwnDNS(result *types100.Result, own types.DNS) {
	if own.Nameservers != nil || own.Search != nil || own.Options != nil || own.Domain != "" {
		result.DNS = own
	}
}
