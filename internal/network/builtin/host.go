package builtin

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/berthrun/berth/internal/network/builtin/linkmsg"
	"github.com/berthrun/berth/internal/sys/sysnet"
	"github.com/berthrun/berth/internal/sys/sysns"
)

// host is the network namespace of bridge and table. Its sockets belong to that
// namespace, whichever thread uses them. Only calls that use /proc/sys, bind a socket
// or start a program need do.
type host struct {
	ns *os.File
	// own: every thread of the process is in ns, so do enters nothing.
	own    bool
	rtnl   *sysnet.Netlink
	handle *netlink.Handle
	// probe is an ordinary socket for interface ioctls, which take no lock.
	probe int

	bridgeIndex atomic.Int32
	linkMTU     atomic.Int32
}

// openHost opens the namespace at path, or the calling thread's.
func openHost(path string) (_ *host, err error) {
	h := &host{probe: -1}
	if path == "" {
		h.ns, h.own, err = sysns.ThreadNetNS()
	} else {
		h.ns, err = sysns.OpenNetNS(path)
	}
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, h.close())
		}
	}()
	return h, h.do(func() error {
		var err error
		if h.rtnl, err = sysnet.OpenNetlink(unix.NETLINK_ROUTE); err != nil {
			return err
		}
		if h.handle, err = netlink.NewHandle(unix.NETLINK_ROUTE, unix.NETLINK_NETFILTER); err != nil {
			return fmt.Errorf("cannot open the host's netlink sockets: %w", err)
		}
		h.probe, err = unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
		return err
	})
}

func (h *host) close() error {
	var errList []error
	if h.rtnl != nil {
		errList = append(errList, h.rtnl.Close())
	}
	if h.handle != nil {
		h.handle.Close()
	}
	if h.probe >= 0 {
		errList = append(errList, unix.Close(h.probe))
	}
	return errors.Join(append(errList, h.ns.Close())...)
}

// do runs fn on a thread in the host's namespace.
func (h *host) do(fn func() error) error {
	if h.own {
		return fn()
	}
	return sysns.InNetNSFile(h.ns, fn)
}

// index returns the index of a link, 0 when there is none. It takes no lock that the end of a
// network namespace may hold.
func (h *host) index(name string) int {
	ifr, err := unix.NewIfreq(name)
	if err != nil {
		return 0
	}
	if unix.IoctlIfreq(h.probe, unix.SIOCGIFINDEX, ifr) != nil {
		return 0
	}
	return int(ifr.Uint32())
}

// running reports whether a link is up and its carrier was seen. It takes no lock
// either.
func (h *host) running(name string) bool {
	ifr, err := unix.NewIfreq(name)
	if err != nil {
		return false
	}
	return unix.IoctlIfreq(h.probe, unix.SIOCGIFFLAGS, ifr) == nil && ifr.Uint16()&unix.IFF_RUNNING != 0
}

func (h *host) mtu() int { return int(h.linkMTU.Load()) }

// hasIPv6 reports whether the host speaks IPv6 at all.
func (h *host) hasIPv6() bool {
	has := false
	err := h.do(func() error {
		value, err := os.ReadFile("/proc/sys/net/ipv6/conf/default/disable_ipv6")
		has = err == nil && strings.TrimSpace(string(value)) == "0"
		return nil
	})
	return err == nil && has
}

// ports lists the ports of the bridge with an index, by name.
func (h *host) ports(bridge int) (map[string]linkmsg.Port, error) {
	list, err := sysnet.WholeList(func() ([]linkmsg.Port, error) {
		var all []linkmsg.Port
		complete, err := h.rtnl.Dump(linkmsg.Ports(bridge), func(message []byte) {
			if p, ok := linkmsg.ReadPort(message); ok && p.Bridge == bridge {
				all = append(all, p)
			}
		})
		if err == nil && !complete {
			err = netlink.ErrDumpInterrupted
		}
		return all, err
	})
	if err != nil {
		return nil, fmt.Errorf("cannot list the ports of the bridge: %w", err)
	}
	named := make(map[string]linkmsg.Port, len(list))
	for _, p := range list {
		named[p.Name] = p
	}
	return named, nil
}

// takenPrefixes lists what the host has an address in or a route to, except
// through the link named own, and except default routes.
func (h *host) takenPrefixes(own string) ([]netip.Prefix, error) {
	var taken []netip.Prefix
	ownIndex := h.index(own)
	addrs, err := sysnet.WholeList(func() ([]netlink.Addr, error) { return h.handle.AddrList(nil, netlink.FAMILY_ALL) })
	if err != nil {
		return nil, fmt.Errorf("cannot list the host's addresses: %w", err)
	}
	for _, a := range addrs {
		if p, ok := prefixOf(a.IPNet); ok && (ownIndex == 0 || a.LinkIndex != ownIndex) {
			taken = append(taken, p)
		}
	}
	for _, family := range []int{netlink.FAMILY_V4, netlink.FAMILY_V6} {
		routes, err := sysnet.WholeList(func() ([]netlink.Route, error) {
			return h.handle.RouteListFiltered(family, &netlink.Route{Table: unix.RT_TABLE_UNSPEC}, netlink.RT_FILTER_TABLE)
		})
		if err != nil {
			return nil, fmt.Errorf("cannot list the host's routes: %w", err)
		}
		for _, r := range routes {
			p, ok := prefixOf(r.Dst)
			if !ok || p.Bits() == 0 || p.Addr().IsMulticast() || (ownIndex != 0 && r.LinkIndex == ownIndex) {
				continue
			}
			taken = append(taken, p)
		}
	}
	return taken, nil
}

// localAddrs is the set of the host's own addresses.
func (h *host) localAddrs() (map[netip.Addr]bool, error) {
	addrs, err := sysnet.WholeList(func() ([]netlink.Addr, error) { return h.handle.AddrList(nil, netlink.FAMILY_ALL) })
	if err != nil {
		return nil, fmt.Errorf("cannot list the host's addresses: %w", err)
	}
	local := map[netip.Addr]bool{}
	for _, a := range addrs {
		if addr, ok := netip.AddrFromSlice(a.IP); ok {
			local[addr.Unmap()] = true
		}
	}
	return local, nil
}

func prefixOf(n *net.IPNet) (netip.Prefix, bool) {
	if n == nil {
		return netip.Prefix{}, false
	}
	addr, ok := netip.AddrFromSlice(n.IP)
	ones, _ := n.Mask.Size()
	return netip.PrefixFrom(addr.Unmap(), ones).Masked(), ok
}

// setSysctl writes a value below /proc/sys/net unless it is there already. The
// calling thread's namespace decides whose value it is.
func setSysctl(key, value string) error {
	path := filepath.Join("/proc/sys/net", key)
	if current, err := os.ReadFile(path); err == nil && strings.TrimSpace(string(current)) == value {
		return nil
	}
	if err := os.WriteFile(path, []byte(value), 0); err != nil {
		return fmt.Errorf("cannot set net/%s to %s: %w", key, value, err)
	}
	return nil
}
