package builtin

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/network/builtin/linkmsg"
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

// linkName is the name of the host's end for a sandbox. It has the begin of a usual id.
func linkName(sandbox string) string {
	const room = unix.IFNAMSIZ - 1 - len(linkPrefix)
	if _, err := hex.DecodeString(sandbox); err == nil && len(sandbox) == 2*sha256.Size {
		return linkPrefix + sandbox[:room]
	}
	sum := sha256.Sum256([]byte(sandbox))
	return linkPrefix + hex.EncodeToString(sum[:])[:room]
}

// aliasPrefix starts the alias of the host's end. The rest is the sandbox and its
// addresses: for people, and to find the sandbox of a link when its record was lost.
const aliasPrefix = "berth sandbox "

// checkedWord ends the alias of a link whose frames are checked. Links of older berths do not have it.
const checkedWord = "checked"

func aliasOf(rec *record) string {
	alias := aliasPrefix + rec.Sandbox
	for _, p := range rec.Addrs {
		alias += " " + p.String()
	}
	if rec.Checked {
		alias += " " + checkedWord
	}
	return alias
}

// recordOf is the inverse of aliasOf: it returns what is known of an attachment whose record was
// lost. ok is false for a link that is not ours.
func recordOf(link, alias, boot string) (*record, bool) {
	rest, ours := strings.CutPrefix(alias, aliasPrefix)
	words := strings.Fields(rest)
	if !ours || len(words) < 2 || checkID(words[0]) != nil {
		return nil, false
	}
	rec := &record{Sandbox: words[0], Link: link, BootID: boot}
	addrs := words[1:]
	if last := len(addrs) - 1; last > 0 && addrs[last] == checkedWord {
		rec.Checked, addrs = true, addrs[:last]
	}
	for _, word := range addrs {
		p, err := netip.ParsePrefix(word)
		if err != nil {
			return nil, false
		}
		rec.Addrs = append(rec.Addrs, p)
	}
	return rec, true
}

// SandboxOfLink returns the sandbox of a host's end by its alias. ok is false for a link that is not
// one.
func SandboxOfLink(alias string) (sandbox string, ok bool) {
	rec, ours := recordOf("", alias, "")
	if !ours {
		return "", false
	}
	return rec.Sandbox, true
}

// plug makes the pair of a record and configures both ends: one datagram on the
// host's side, two on the pod's. The pod's end is made in its namespace under its final
// name, because moving and renaming wait for an RCU grace period.
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
	if _, err := n.host.rtnl.Do(n.pair(rec, ns).Create()...); err != nil {
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
	if _, err := pod.rtnl.Do(addressRequests(index, addrs)...); err != nil {
		return fmt.Errorf("cannot give the pod its addresses %s: %w", joinPrefixes(addrs), err)
	}
	if err := pod.awaitAddr(rec.addr(false)); err != nil {
		return err
	}
	if err := n.await(rec.Link, linkmsg.Forwards); err != nil || !idle {
		return err
	}
	return n.await(n.cfg.Bridge, linkmsg.SeenUp) // a bridge comes up with its first port
}

// pair is the pair of a record, whose pod's end will be in ns.
func (n *Network) pair(rec *record, ns *os.File) linkmsg.Pair {
	return linkmsg.Pair{
		Port: rec.Link, Alias: aliasOf(rec), Bridge: int(n.host.bridgeIndex.Load()),
		Peer: podLink, PeerMAC: macOf(rec.Addrs[0].Addr()), PeerNetNS: ns, MTU: n.host.mtu(),
		Hairpin: n.cfg.Hairpin.ports(),
	}
}

// podUp brings up the pod's loopback and its end of the pair, whose index it returns.
func podUp(rtnl *sysnet.Netlink) (int, error) {
	replies, err := rtnl.Do(linkmsg.BringUp("lo"), linkmsg.BringUp(podLink), linkmsg.Get(podLink))
	if err != nil {
		return 0, err
	}
	return linkmsg.Index(replies[2])
}

// addressRequests give the pod's end its addresses, and then the default routes, whose gateways
// the addresses make reachable.
func addressRequests(index int, addrs []netip.Prefix) []sysnet.NetlinkRequest {
	var requests []sysnet.NetlinkRequest
	for _, addr := range addrs {
		requests = append(requests, linkmsg.AddAddress(index, addr))
	}
	for _, addr := range addrs {
		requests = append(requests, linkmsg.AddDefaultRoute(index, at(addr.Masked(), 1)))
	}
	return requests
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
// could send them. The link looks for no duplicates either: its address follows from one
// that no other pod has, and the bridge would send the question to all pods.
func openPod(ns *os.File, rec *record) (*pod, error) {
	p := &pod{}
	err := sysns.InNetNSFile(ns, func() (err error) {
		if p.rtnl, err = sysnet.OpenNetlink(unix.NETLINK_ROUTE); err != nil || !rec.addr(false).IsValid() {
			return err
		}
		if on, err := prepareIPv6(); err != nil || !on {
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

// prepareIPv6 sets what links that appear in the namespace of this thread get, and reports whether it has IPv6.
func prepareIPv6() (on bool, err error) {
	var dirs sysns.SysctlDirs
	defer dirs.Close()
	const of = "net/ipv6/conf/default/"
	if off, err := dirs.Read(of + "disable_ipv6"); err != nil || off != "0" {
		return false, err
	}
	for _, key := range []string{"accept_ra", "accept_dad"} {
		if value, err := dirs.Read(of + key); err == nil && value == "0" {
			continue
		}
		if err := dirs.Write(of+key, "0"); err != nil {
			return false, fmt.Errorf("cannot set %s%s to 0: %w", of, key, err)
		}
	}
	return true, nil
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
		return linkmsg.Announces(kind, payload, addr)
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

// await waits until settled is true for the kernel's description of a link. A worker of
// the kernel lets packets pass some time after the link is up. Without the wait a pod's
// first packet could be lost, and its sender would repeat it a second later.
func (n *Network) await(link string, settled func(reply []byte) bool) error {
	get := linkmsg.Get(link)
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
// pod sends. It takes the kernel tens of milliseconds. Callers that can wait for the end of
// the namespace do not need it.
func (n *Network) unplug(link string) error {
	return errors.Join(n.removeLink(link), n.removeLink(shaperName(link)))
}

func (n *Network) removeLink(link string) error {
	if n.host.index(link) == 0 {
		return nil
	}
	_, err := n.host.rtnl.Do(linkmsg.Delete(link))
	if err != nil && !errors.Is(err, unix.ENODEV) {
		return fmt.Errorf("cannot remove link %s: %w", link, err)
	}
	return nil
}
