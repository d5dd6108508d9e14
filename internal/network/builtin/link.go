package builtin

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/sys/sysnet"
	"github.com/berthrun/berth/internal/sys/sysns"
)

const (
	// podLink is the pod's end.
	podLink = "eth0"
	// linkPrefix starts the names of the host's ends: network managers leave
	// links of this name alone.
	linkPrefix = "veth"
)

// linkName is the host's end for a sandbox: it shows how a usual id starts.
func linkName(sandbox string) string {
	const room = unix.IFNAMSIZ - 1 - len(linkPrefix)
	if _, err := hex.DecodeString(sandbox); err == nil && len(sandbox) == 2*sha256.Size {
		return linkPrefix + sandbox[:room]
	}
	sum := sha256.Sum256([]byte(sandbox))
	return linkPrefix + hex.EncodeToString(sum[:])[:room]
}

// aliasPrefix starts the alias of the host's end. The rest is the sandbox and its
// addresses: for people, and to know whose a link is when its record was lost.
const aliasPrefix = "berth sandbox "

func aliasOf(rec *record) string {
	alias := aliasPrefix + rec.Sandbox
	for _, p := range rec.Addrs {
		alias += " " + p.String()
	}
	return alias
}

// recordOf is the inverse of aliasOf: all that is known of an attachment whose
// record was lost.
func recordOf(link, alias, boot string) (*record, bool) {
	rest, ours := strings.CutPrefix(alias, aliasPrefix)
	words := strings.Fields(rest)
	if !ours || len(words) < 2 || checkID(words[0]) != nil {
		return nil, false
	}
	rec := &record{Sandbox: words[0], Link: link, BootID: boot}
	for _, word := range words[1:] {
		p, err := netip.ParsePrefix(word)
		if err != nil {
			return nil, false
		}
		rec.Addrs = append(rec.Addrs, p)
	}
	return rec, true
}

// plug makes the pair of a record and configures both ends: one datagram on the
// host's side, two on the pod's. The pod's end is born in its namespace under its
// final name, because moving and renaming wait for an RCU grace period.
func (n *Network) plug(rec *record) error {
	ns, err := sysns.OpenNetNS(rec.NetNS)
	if err != nil {
		return fmt.Errorf("cannot attach to the network: %w", err)
	}
	defer ns.Close()
	pod, err := openPod(ns, rec)
	if err != nil {
		return err
	}
	defer pod.close()
	idle := !n.host.running(n.cfg.Bridge)
	if _, err := n.host.rtnl.Do(hostBatch(rec, ns, int(n.host.bridgeIndex.Load()), n.host.mtu())...); err != nil {
		return fmt.Errorf("cannot make link %s: %w", rec.Link, plugError(err))
	}
	if err := n.host.shape(rec.Link, rec.Ingress, rec.Egress, n.host.mtu()); err != nil {
		return err
	}
	index, err := podUp(pod.rtnl)
	if err != nil {
		return fmt.Errorf("cannot bring up %s in the pod: %w", podLink, err)
	}
	addrs := pod.usable(rec.Addrs)
	if _, err := pod.rtnl.Do(podBatch(index, addrs)...); err != nil {
		return fmt.Errorf("cannot give the pod its addresses %s: %w", joinPrefixes(addrs), err)
	}
	if err := pod.awaitAddr(rec.addr(false)); err != nil {
		return err
	}
	if err := n.await(rec.Link, forwards); err != nil || !idle {
		return err
	}
	return n.await(n.cfg.Bridge, seenUp) // a bridge comes up with its first port
}

// pod is the inside of a sandbox's network namespace.
type pod struct {
	rtnl   *sysnet.Netlink
	events *sysnet.Netlink // nil without IPv6
}

// usable are the addresses that the namespace takes: a pod that has switched IPv6
// off by a sysctl keeps its IPv6 address, but not on its link.
func (p *pod) usable(addrs []netip.Prefix) []netip.Prefix {
	if p.events != nil {
		return addrs
	}
	return slices.DeleteFunc(slices.Clone(addrs), func(a netip.Prefix) bool { return a.Addr().Is6() })
}

// openPod opens netlink sockets in the pod's namespace, and makes the link that
// will appear there ignore router advertisements: the other pods on the bridge
// could send them.
func openPod(ns *os.File, rec *record) (*pod, error) {
	p := &pod{}
	err := sysns.InNetNSFile(ns, func() (err error) {
		if p.rtnl, err = sysnet.OpenNetlink(unix.NETLINK_ROUTE); err != nil || !rec.addr(false).IsValid() {
			return err
		}
		if off, err := os.ReadFile("/proc/sys/net/ipv6/conf/default/disable_ipv6"); err != nil || string(off) != "0\n" {
			return err
		}
		if err := setSysctl("ipv6/conf/default/accept_ra", "0"); err != nil {
			return err
		}
		if p.events, err = sysnet.OpenNetlink(unix.NETLINK_ROUTE); err != nil {
			return err
		}
		return p.events.Join(unix.RTNLGRP_IPV6_IFADDR)
	})
	if err != nil {
		p.close()
		return nil, fmt.Errorf("cannot prepare the pod's namespace: %w", err)
	}
	return p, nil
}

func (p *pod) close() {
	for _, s := range []*sysnet.Netlink{p.rtnl, p.events} {
		if s != nil {
			s.Close()
		}
	}
}

// settleWait bounds the waits for what the kernel does in its workers. It needs
// microseconds when it is idle; past the bound the pod's first packets may be lost
// and repeated, which is better than no pod.
const settleWait = time.Second

// awaitAddr waits until the kernel announces the pod's IPv6 address: only then has
// it joined the group by which neighbours ask for it.
func (p *pod) awaitAddr(addr netip.Addr) error {
	if p.events == nil {
		return nil
	}
	err := p.events.Await(settleWait, func(kind uint16, payload []byte) bool {
		return kind == unix.RTM_NEWADDR && len(payload) > unix.SizeofIfAddrmsg &&
			bytes.Equal(attribute(payload[unix.SizeofIfAddrmsg:], unix.IFA_ADDRESS), addr.AsSlice())
	})
	if err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
		return fmt.Errorf("cannot wait for the pod's address %s: %w", addr, err)
	}
	return nil
}

// plugError gives the kernel's refusals their kind.
func plugError(err error) error {
	switch {
	case errors.Is(err, unix.EXFULL):
		return fmt.Errorf("%w: the bridge has no port left: %w", err, errs.Exhausted)
	case errors.Is(err, unix.EEXIST):
		return fmt.Errorf("%w: a link %s or, in the pod, %s is there already: %w", err, linkPrefix+"...", podLink, errs.Exists)
	}
	return err
}

// hostBatch makes the pair and sets up the host's end. The two ends cannot be made
// and brought up in one message.
func hostBatch(rec *record, ns *os.File, bridge, mtu int) []sysnet.NetlinkRequest {
	info := nl.NewRtAttr(unix.IFLA_LINKINFO, nil)
	info.AddRtAttr(nl.IFLA_INFO_KIND, nl.NonZeroTerminated("veth"))
	peer := info.AddRtAttr(nl.IFLA_INFO_DATA, nil).AddRtAttr(nl.VETH_INFO_PEER, nil)
	nl.NewIfInfomsgChild(peer, unix.AF_UNSPEC)
	peer.AddRtAttr(unix.IFLA_IFNAME, nl.ZeroTerminated(podLink))
	peer.AddRtAttr(unix.IFLA_ADDRESS, macOf(rec.Addrs[0].Addr()))
	peer.AddRtAttr(unix.IFLA_MTU, nl.Uint32Attr(uint32(mtu)))
	peer.AddRtAttr(unix.IFLA_NET_NS_FD, nl.Uint32Attr(uint32(ns.Fd())))
	// One queue each way: the kernel makes one per processor, which only XDP uses
	// on such a link, and pays for each in sysfs.
	peer.AddRtAttr(unix.IFLA_NUM_TX_QUEUES, nl.Uint32Attr(1))
	peer.AddRtAttr(unix.IFLA_NUM_RX_QUEUES, nl.Uint32Attr(1))
	create := sysnet.NetlinkRequest{
		Type: unix.RTM_NEWLINK, Flags: unix.NLM_F_CREATE | unix.NLM_F_EXCL,
		Payload: payload(nl.NewIfInfomsg(unix.AF_UNSPEC),
			nl.NewRtAttr(unix.IFLA_IFNAME, nl.ZeroTerminated(rec.Link)),
			nl.NewRtAttr(unix.IFLA_MTU, nl.Uint32Attr(uint32(mtu))),
			nl.NewRtAttr(unix.IFLA_NUM_TX_QUEUES, nl.Uint32Attr(1)),
			nl.NewRtAttr(unix.IFLA_NUM_RX_QUEUES, nl.Uint32Attr(1)),
			nl.NewRtAttr(unix.IFLA_MASTER, nl.Uint32Attr(uint32(bridge))),
			info),
	}

	// No IPv6 link-local address on the host's end: with hundreds of ports its
	// chatter, flooded to all of them, costs more than the pods' own traffic.
	spec := nl.NewRtAttr(unix.IFLA_AF_SPEC, nil)
	spec.AddRtAttr(unix.AF_INET6, nil).AddRtAttr(unix.IFLA_INET6_ADDR_GEN_MODE, []byte{nl.IN6_ADDR_GEN_MODE_NONE})
	// A pod that reaches itself through a host port or a service goes out by the
	// port it came in by, where the host filters bridged traffic
	// (bridge-nf-call-iptables).
	port := nl.NewRtAttr(unix.IFLA_LINKINFO, nil)
	port.AddRtAttr(nl.IFLA_INFO_SLAVE_KIND, nl.NonZeroTerminated("bridge"))
	port.AddRtAttr(nl.IFLA_INFO_SLAVE_DATA, nil).AddRtAttr(nl.IFLA_BRPORT_MODE, []byte{1})
	up := nl.NewIfInfomsg(unix.AF_UNSPEC)
	up.Flags, up.Change = unix.IFF_UP, unix.IFF_UP
	configure := sysnet.NetlinkRequest{
		Type: unix.RTM_NEWLINK, // SETLINK would ignore the port's settings
		Payload: payload(up,
			nl.NewRtAttr(unix.IFLA_IFNAME, nl.ZeroTerminated(rec.Link)),
			nl.NewRtAttr(unix.IFLA_IFALIAS, []byte(aliasOf(rec))),
			spec, port),
	}
	return []sysnet.NetlinkRequest{create, configure}
}

// podUp brings up the pod's loopback and its end of the pair, whose index it
// returns.
func podUp(rtnl *sysnet.Netlink) (int, error) {
	name := nl.NewRtAttr(unix.IFLA_IFNAME, nl.ZeroTerminated(podLink))
	up := nl.NewIfInfomsg(unix.AF_UNSPEC)
	up.Flags, up.Change = unix.IFF_UP, unix.IFF_UP
	replies, err := rtnl.Do(
		sysnet.NetlinkRequest{Type: unix.RTM_SETLINK, Payload: payload(up, nl.NewRtAttr(unix.IFLA_IFNAME, nl.ZeroTerminated("lo")))},
		sysnet.NetlinkRequest{Type: unix.RTM_SETLINK, Payload: payload(up, name)},
		sysnet.NetlinkRequest{Type: unix.RTM_GETLINK, Payload: payload(nl.NewIfInfomsg(unix.AF_UNSPEC), name)},
	)
	if err != nil {
		return 0, err
	}
	if len(replies[2]) < unix.SizeofIfInfomsg {
		return 0, fmt.Errorf("the kernel described %s in %d bytes", podLink, len(replies[2]))
	}
	return int(nl.DeserializeIfInfomsg(replies[2]).Index), nil
}

// podBatch gives the pod's end its addresses and default routes. Its own IPv6
// address needs no detection of duplicates, and would be unusable for a second
// with it.
func podBatch(index int, addrs []netip.Prefix) []sysnet.NetlinkRequest {
	var batch []sysnet.NetlinkRequest
	for _, p := range addrs {
		head := &nl.IfAddrmsg{IfAddrmsg: unix.IfAddrmsg{Family: family(p.Addr()), Prefixlen: uint8(p.Bits()), Index: uint32(index)}}
		attrs := []*nl.RtAttr{
			nl.NewRtAttr(unix.IFA_LOCAL, p.Addr().AsSlice()),
			nl.NewRtAttr(unix.IFA_ADDRESS, p.Addr().AsSlice()),
		}
		if p.Addr().Is6() {
			attrs = append(attrs, nl.NewRtAttr(unix.IFA_FLAGS, nl.Uint32Attr(unix.IFA_F_NODAD)))
		} else {
			attrs = append(attrs, nl.NewRtAttr(unix.IFA_BROADCAST, broadcast(p).AsSlice()))
		}
		batch = append(batch, sysnet.NetlinkRequest{
			Type: unix.RTM_NEWADDR, Flags: unix.NLM_F_CREATE | unix.NLM_F_REPLACE, Payload: payload(head, attrs...),
		})
	}
	for _, p := range addrs {
		gateway := at(p.Masked(), 1)
		head := &nl.RtMsg{RtMsg: unix.RtMsg{
			Family: family(gateway), Table: unix.RT_TABLE_MAIN, Protocol: unix.RTPROT_BOOT,
			Scope: unix.RT_SCOPE_UNIVERSE, Type: unix.RTN_UNICAST,
		}}
		batch = append(batch, sysnet.NetlinkRequest{
			Type: unix.RTM_NEWROUTE, Flags: unix.NLM_F_CREATE | unix.NLM_F_REPLACE,
			Payload: payload(head,
				nl.NewRtAttr(unix.RTA_GATEWAY, gateway.AsSlice()),
				nl.NewRtAttr(unix.RTA_OIF, nl.Uint32Attr(uint32(index)))),
		})
	}
	return batch
}

// payload joins a family's header and its attributes.
func payload(head nl.NetlinkRequestData, attrs ...*nl.RtAttr) []byte {
	b := append([]byte(nil), head.Serialize()...)
	for _, a := range attrs {
		b = append(b, a.Serialize()...)
	}
	return b
}

func family(addr netip.Addr) uint8 {
	if addr.Is4() {
		return unix.AF_INET
	}
	return unix.AF_INET6
}

// broadcast is the last address of an IPv4 subnet.
func broadcast(p netip.Prefix) netip.Addr {
	b := p.Masked().Addr().As4()
	ip := binary.BigEndian.Uint32(b[:]) | (1<<(32-p.Bits()) - 1)
	binary.BigEndian.PutUint32(b[:], ip)
	return netip.AddrFrom4(b)
}

// await waits until the kernel describes a link of the host as settled. It decides
// in a worker that packets may pass, and a pod's first packet must not be lost to
// that: the sender would repeat it a second later.
func (n *Network) await(link string, settled func(reply []byte) bool) error {
	get := sysnet.NetlinkRequest{
		Type:    unix.RTM_GETLINK,
		Payload: payload(nl.NewIfInfomsg(unix.AF_UNSPEC), nl.NewRtAttr(unix.IFLA_IFNAME, nl.ZeroTerminated(link))),
	}
	pause := 50 * time.Microsecond
	for deadline := time.Now().Add(settleWait); time.Now().Before(deadline); pause = min(2*pause, 10*time.Millisecond) {
		replies, err := n.host.rtnl.Do(get)
		if err != nil {
			return fmt.Errorf("cannot look up link %s: %w", link, err)
		}
		if settled(replies[0]) {
			break
		}
		time.Sleep(pause)
	}
	return nil
}

// seenUp reports whether the worker has seen a link come up; until then its queue
// drops everything.
func seenUp(reply []byte) bool {
	const operUp = 6 // IF_OPER_UP
	oper := attribute(reply[min(len(reply), unix.SizeofIfInfomsg):], unix.IFLA_OPERSTATE)
	return len(oper) == 1 && oper[0] == operUp
}

// forwards reports whether the bridge forwards for a link that is up. The bridge
// alone is no proof: it takes a link that the worker has not seen yet for one that
// is up.
func forwards(reply []byte) bool {
	const (
		portState  = 1 // IFLA_BRPORT_STATE
		forwarding = 3 // BR_STATE_FORWARDING
	)
	attrs := reply[min(len(reply), unix.SizeofIfInfomsg):]
	for _, kind := range []uint16{unix.IFLA_LINKINFO, nl.IFLA_INFO_SLAVE_DATA} {
		attrs = attribute(attrs, kind)
	}
	state := attribute(attrs, portState)
	return seenUp(reply) && len(state) == 1 && state[0] == forwarding
}

// attribute finds one among netlink attributes; nil when it is not there.
func attribute(attrs []byte, kind uint16) []byte {
	all, err := nl.ParseRouteAttr(attrs)
	if err != nil {
		return nil
	}
	for _, a := range all {
		if a.Attr.Type&^unix.NLA_F_NESTED == kind {
			return a.Value
		}
	}
	return nil
}

// plugged reports whether the pair of a record is whole, so that a repeated Attach
// has nothing to do.
func (n *Network) plugged(rec *record) bool {
	if n.host.index(rec.Link) == 0 {
		return false
	}
	ns, err := sysns.OpenNetNS(rec.NetNS)
	if err != nil {
		return false
	}
	defer ns.Close()
	have := map[netip.Addr]bool{}
	err = sysns.InNetNSFile(ns, func() error {
		link, err := net.InterfaceByName(podLink)
		if err != nil {
			return err
		}
		addrs, err := link.Addrs()
		for _, a := range addrs {
			if p, ok := prefixOf(a.(*net.IPNet)); ok {
				have[p.Addr()] = true
			}
		}
		return err
	})
	// They were all given at once.
	return err == nil && have[rec.Addrs[0].Addr()]
}

// unplug removes the host's end, and with it the pod's, and the link that limits what the
// pod sends. It takes the kernel tens of milliseconds, so only what cannot leave it to the
// end of the namespace does it.
func (n *Network) unplug(link string) error {
	return errors.Join(n.removeLink(link), n.removeLink(shaperName(link)))
}

func (n *Network) removeLink(link string) error {
	if n.host.index(link) == 0 {
		return nil
	}
	_, err := n.host.rtnl.Do(sysnet.NetlinkRequest{
		Type:    unix.RTM_DELLINK,
		Payload: payload(nl.NewIfInfomsg(unix.AF_UNSPEC), nl.NewRtAttr(unix.IFLA_IFNAME, nl.ZeroTerminated(link))),
	})
	if err != nil && !errors.Is(err, unix.ENODEV) {
		return fmt.Errorf("cannot remove link %s: %w", link, err)
	}
	return nil
}
